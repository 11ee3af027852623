"""Environments that run on the host: anyone's Gymnasium environment, with its costs, its faults and its restarts.

`probe` and `check` import JAX, since a task may be a JAX environment. Workers do without it, so they start fast.
"""
