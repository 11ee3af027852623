"""What a policy's outputs mean: a Gaussian by its mean and log σ or, where log σ is None, a choice by its logits.

A choice among n is a one-hot vector of n numbers, so that both kinds of action have one shape, [A]. Several choices at once
(`Choices` in the place of log σ) are one such vector after the other, and independent of each other.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from tqpo.types import Array

LOG_TWO_PI = 1.8378770664093453


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Choices:
    """Several choices at once, by how many there are to choose from in each."""

    sizes: tuple[int, ...]


def split(x: Array, choices: Choices | None) -> list[Array]:
    """[..., A] as one [..., n] of each choice."""
    ends = np.cumsum(choices.sizes if choices else [x.shape[-1]])
    return jnp.split(x, ends[:-1].tolist(), -1)


def log_prob(mean: Array, log_std: Array | Choices | None, action: Array) -> Array:
    """log π(a) = Σ_i −½((a_i − μ_i)/σ_i)² − log σ_i − ½ log 2π; of choices, the sum of their log-softmax."""
    if log_std is not None and not isinstance(log_std, Choices):
        z = (action - mean) * jnp.exp(-log_std)
        return jnp.sum(-0.5 * z**2 - log_std - 0.5 * LOG_TWO_PI, axis=-1)
    pairs = zip(split(action, log_std), split(mean, log_std), strict=True)
    return sum(jnp.sum(chosen * jax.nn.log_softmax(logits), -1) for chosen, logits in pairs)  # type: ignore[return-value]


def entropy(mean: Array, log_std: Array | Choices | None) -> Array:
    """H = Σ_i log σ_i + ½(1 + log 2π), or −Σ p log p over all choices."""
    if log_std is not None and not isinstance(log_std, Choices):
        return jnp.sum(log_std + 0.5 * (1 + LOG_TWO_PI), axis=-1)
    log_p = [jax.nn.log_softmax(logits) for logits in split(mean, log_std)]
    return -sum(jnp.sum(jnp.exp(x) * x, -1) for x in log_p)  # type: ignore[return-value]


def sample(mean: Array, log_std: Array | Choices | None, noise: Array) -> Array:
    """The action of standard normal noise z [..., A]: μ + σ·z, or the choices with the highest logit + Gumbel(Φ(z)).

    Zero noise gives the mean, or the likeliest choices.
    """
    if log_std is not None and not isinstance(log_std, Choices):
        return mean + jnp.exp(log_std) * noise
    gumbel = -jnp.log(-jax.scipy.stats.norm.logcdf(noise))
    parts = split(mean + gumbel, log_std)
    return jnp.concatenate([jax.nn.one_hot(jnp.argmax(x, -1), x.shape[-1]) for x in parts], -1)
