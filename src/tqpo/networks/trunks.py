"""A module in front of a network's layers: a user's own, or the small CNN that ships, for pictures.

A trunk is made by `factory(obs_shape, key=key)`: an Equinox module, or anything that is a pytree, whose call takes one
observation of that shape, normalised, and gives a vector of features. What else is observed (the budget) goes past it.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from tqpo import references
from tqpo.errors import ConfigError
from tqpo.types import Array, Key, PyTree

CHANNELS = (16, 32, 32)
MOST_COLOURS = 4  # an axis this short is that of the colours


class CNN(eqx.Module):
    """Three convolutions, each of which halves the picture, [H, W, C] or [C, H, W]."""

    layers: tuple[eqx.nn.Conv2d, ...]
    last: bool = eqx.field(static=True)  # the colours are the last axis

    def __init__(self, obs_shape: tuple[int, ...], *, key: Key):
        if len(obs_shape) != 3:
            raise ConfigError(
                f"trunk = cnn: for pictures [H, W, C] or [C, H, W], not for observations {list(obs_shape)}"
            )
        self.last = obs_shape[-1] <= MOST_COLOURS or obs_shape[0] > MOST_COLOURS
        sizes = (obs_shape[-1 if self.last else 0], *CHANNELS)
        pairs = zip(jax.random.split(key, len(CHANNELS)), sizes[:-1], sizes[1:], strict=True)
        self.layers = tuple(eqx.nn.Conv2d(a, b, 3, stride=2, padding=1, key=k) for k, a, b in pairs)

    def __call__(self, x: Array) -> Array:
        x = jnp.moveaxis(x, -1, 0) if self.last else x
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return x.reshape(-1)


SHIPPED = {"cnn": CNN}


class Fronted(eqx.Module):
    """Layers behind a trunk."""

    arrays: PyTree  # of the trunk
    fixed: PyTree = eqx.field(static=True)  # all else of it
    obs_shape: tuple[int, ...] = eqx.field(static=True)
    layers: Any  # [..., F + what goes past] → [..., H]

    def __call__(self, x: Array) -> Array:
        size = math.prod(self.obs_shape)
        seen = x[..., :size].reshape(-1, *self.obs_shape)
        features = jax.vmap(eqx.combine(self.arrays, self.fixed))(seen).reshape(*x.shape[:-1], -1)
        return self.layers(jnp.concatenate([features, x[..., size:]], -1))


def make(key: Key, name: str, obs_shape: tuple[int, ...]) -> tuple[PyTree, PyTree, int]:
    """A trunk's arrays, the rest of it, and how many features it gives."""
    factory = SHIPPED.get(name) or references.find(name)
    trunk: Any = factory(obs_shape, key=key)
    arrays, fixed = eqx.partition(trunk, eqx.is_inexact_array)
    shown = references.shown(name)
    try:
        hash(fixed)
    except TypeError as error:
        raise ConfigError(f"trunk = {shown}: its arrays must be of floats, all else hashable ({error})") from None
    features = jax.eval_shape(trunk, jax.ShapeDtypeStruct(obs_shape, jnp.zeros(()).dtype))
    if not hasattr(features, "shape") or len(features.shape) != 1:
        raise ConfigError(f"trunk = {shown}: it gives {features}; a vector of features is expected")
    return arrays, fixed, features.shape[0]
