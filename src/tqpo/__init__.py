"""Safe reinforcement learning with a stated probability."""

__version__ = "0.1.0"
