"""Safety Gym's pseudo-lidar: closeness of the nearest object per angular bin, smeared into both neighbours.

An object at distance r and angle φ (body frame) falls into bin i = ⌊φ/Δ⌋, Δ = 2π/bins, with fraction f = φ/Δ − i. Its
closeness s = max(0, (D − r)/D) enters bin i fully, bin i+1 with weight f and bin i−1 with weight 1 − f; each bin keeps
the largest entry.
"""

import functools

import jax.numpy as jnp

from tqpo.types import Array


def lidar(pose: Array, objects: Array, bins: int, max_range: float) -> Array:
    """pose [3] (x, y, heading), objects [N, 2] → [bins]."""
    if objects.shape[0] == 0:
        return jnp.zeros((bins,), pose.dtype)
    delta = objects - pose[:2]
    cos, sin = jnp.cos(pose[2]), jnp.sin(pose[2])
    ahead = cos * delta[:, 0] + sin * delta[:, 1]  # [N]
    left = cos * delta[:, 1] - sin * delta[:, 0]
    distance = jnp.sqrt(ahead * ahead + left * left)
    turns = jnp.arctan2(left, ahead) / (2.0 * jnp.pi)
    position = (turns - jnp.floor(turns)) * bins  # in [0, bins]
    first = jnp.minimum(jnp.floor(position), bins - 1)
    fraction = position - first
    closeness = jnp.maximum(0.0, (max_range - distance) / max_range)
    numbers = jnp.arange(bins, dtype=pose.dtype)

    def smeared(i: int) -> Array:
        after = numbers - first[i]
        weight = jnp.where(after == 0, 1.0, jnp.where((after == 1) | (after == 1 - bins), fraction[i], 0.0))
        return jnp.where((after == -1) | (after == bins - 1), 1.0 - fraction[i], weight) * closeness[i]

    return functools.reduce(jnp.maximum, map(smeared, range(len(objects))))  # a CPU is slow at a maximum over an axis
