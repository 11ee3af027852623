"""Environments that run on the host: anyone's Gymnasium environment, with its costs, its faults and its restarts.

`spec` and `check` import JAX, for a task may be a JAX environment. What worker processes import does not, so they start fast.
"""
