"""Environments that run on the host: anyone's Gymnasium environment, with its costs, its faults and its restarts.

Nothing here but `hosts` needs JAX: worker processes import the rest, and start fast.
"""
