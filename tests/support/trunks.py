"""A trunk of one's own."""

import math
from collections.abc import Callable

import equinox as eqx
import jax


class Features(eqx.Module):
    """One layer, with a function among its fields."""

    layer: eqx.nn.Linear
    squash: Callable

    def __init__(self, obs_shape, *, key):
        self.layer, self.squash = eqx.nn.Linear(math.prod(obs_shape), 6, key=key), jax.nn.softplus

    def __call__(self, x):
        return self.squash(self.layer(x.reshape(-1)))
