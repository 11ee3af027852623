"""Actions as an environment's `step` takes them. Needs no Gymnasium, for a trained policy acts without it."""

from typing import Any


def to_env(action: Any, low: Any = None, high: Any = None, start: Any = 0) -> Any:
    """Actions [..., A] in [-1, 1] scaled to the bounds, [..., *shape]; without bounds, `start` + the choice.

    Arrays of NumPy or JAX.
    """
    if low is None:
        return start + action.argmax(-1)
    shaped = action.reshape(*action.shape[:-1], *low.shape)
    return low + (shaped + 1.0) / 2.0 * (high - low)
