"""Actions as an environment's `step` takes them. Needs no Gymnasium, for a trained policy acts without it."""

import itertools
from typing import Any


def to_env(action: Any, low: Any = None, high: Any = None, start: Any = 0, sizes: Any = None) -> Any:
    """Actions [..., A] in [-1, 1] scaled to the bounds, [..., *shape]; without bounds the number of the choice, from `start`
    on, or of several choices among so many each, [..., len(sizes)].

    Arrays of NumPy or JAX.
    """
    if sizes is not None:
        ends = list(itertools.accumulate(map(int, sizes)))
        parts = [action[..., end - int(n) : end].argmax(-1) for n, end in zip(sizes, ends, strict=True)]
        return start + action.__array_namespace__().stack(parts, -1)
    if low is None:
        return start + action.argmax(-1)
    shaped = action.reshape(*action.shape[:-1], *low.shape)
    return low + (shaped + 1.0) / 2.0 * (high - low)
