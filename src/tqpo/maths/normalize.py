"""Running mean and variance of observations."""

import math
from typing import NamedTuple

import jax.numpy as jnp

from tqpo.types import Array

CLIP = 10.0  # standard deviations


class Moments(NamedTuple):
    """Mean and (population) variance of `count` samples.

    The count is a float: an int32 would overflow in a long run, and only its ratio to a batch's size is used.
    """

    mean: Array  # [*shape]
    var: Array  # [*shape]
    count: Array  # []  # pyright: ignore[reportIncompatibleMethodOverride]


def init(shape: tuple[int, ...] | int = ()) -> Moments:
    """No samples yet: `normalize` only clips."""
    return Moments(jnp.zeros(shape), jnp.ones(shape), jnp.zeros(()))


def merge(moments: Moments, batch: Array) -> Moments:
    """Adds a batch [..., *shape]: mean += w·Δ, var = (1 − w)·var + w·var_b + w(1 − w)·Δ², w = n_b/(n + n_b).

    Chan, Golub & LeVeque 1983, Eq. 2.1, in its weighted form: no sum of squares grows with the count, so
    float32 is as good after 10⁹ samples as after 10³.
    """
    axes = tuple(range(batch.ndim - moments.mean.ndim))
    size = math.prod(batch.shape[: len(axes)])
    weight = size / (moments.count + size)
    shift = batch.mean(axes) - moments.mean
    var = (1 - weight) * moments.var + weight * batch.var(axes) + weight * (1 - weight) * shift**2
    return Moments(moments.mean + weight * shift, var, moments.count + size)


def scale(moments: Moments, var_floor: float = 1e-6) -> Array:
    """√max(var, floor); the floor keeps a constant input from being blown up."""
    return jnp.sqrt(jnp.maximum(moments.var, var_floor))


def normalize(moments: Moments, x: Array, clip: float = CLIP) -> Array:
    """clip((x − mean)/scale, ±clip)."""
    return jnp.clip((x - moments.mean) / scale(moments), -clip, clip)
