"""What a policy's outputs mean: a Gaussian by its mean and log σ or, where log σ is None, a choice by its logits.

A choice among n is a one-hot vector of n numbers, so that both kinds of action have one shape, [A].
"""

import jax
import jax.numpy as jnp

from tqpo.types import Array

LOG_TWO_PI = 1.8378770664093453


def log_prob(mean: Array, log_std: Array | None, action: Array) -> Array:
    """log π(a) = Σ_i −½((a_i − μ_i)/σ_i)² − log σ_i − ½ log 2π; of a choice, its log-softmax."""
    if log_std is not None:
        z = (action - mean) * jnp.exp(-log_std)
        return jnp.sum(-0.5 * z**2 - log_std - 0.5 * LOG_TWO_PI, axis=-1)
    return jnp.sum(action * jax.nn.log_softmax(mean), -1)


def entropy(mean: Array, log_std: Array | None) -> Array:
    """H = Σ_i log σ_i + ½(1 + log 2π), or −Σ p log p."""
    if log_std is not None:
        return jnp.sum(log_std + 0.5 * (1 + LOG_TWO_PI), axis=-1)
    log_p = jax.nn.log_softmax(mean)
    return -jnp.sum(jnp.exp(log_p) * log_p, -1)


def sample(mean: Array, log_std: Array | None, noise: Array) -> Array:
    """The action of standard normal noise z [..., A]: μ + σ·z, or the choice with the highest logit + Gumbel(Φ(z)).

    Zero noise gives the mean, or the likeliest choice.
    """
    if log_std is not None:
        return mean + jnp.exp(log_std) * noise
    gumbel = -jnp.log(-jax.scipy.stats.norm.logcdf(noise))
    return jax.nn.one_hot(jnp.argmax(mean + gumbel, -1), mean.shape[-1])
