"""Step sizes of stochastic approximation."""

import jax.numpy as jnp

from tqpo.types import Array


def power(k: Array | float, scale: Array | float, offset: Array | float, exponent: Array | float) -> Array:
    """a_k = scale/(1 + k/offset)^exponent: about `scale` for the first `offset` steps, then a power law."""
    return scale / (1 + jnp.asarray(k) / offset) ** exponent
