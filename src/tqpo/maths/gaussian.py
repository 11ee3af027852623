"""The diagonal Gaussian N(μ, diag σ²) over the last axis, by its mean and log σ."""

import jax
import jax.numpy as jnp

from tqpo.types import Array, Key

LOG_TWO_PI = 1.8378770664093453


def log_prob(mean: Array, log_std: Array, x: Array) -> Array:
    """log p(x) = Σ_i −½((x_i − μ_i)/σ_i)² − log σ_i − ½ log 2π."""
    z = (x - mean) * jnp.exp(-log_std)
    return jnp.sum(-0.5 * z**2 - log_std - 0.5 * LOG_TWO_PI, axis=-1)


def entropy(log_std: Array) -> Array:
    """H = Σ_i log σ_i + ½(1 + log 2π)."""
    return jnp.sum(log_std + 0.5 * (1 + LOG_TWO_PI), axis=-1)


def sample(key: Key, mean: Array, log_std: Array) -> Array:
    """x = μ + σ·z, z ~ N(0, 1)."""
    return mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape, mean.dtype)


def kl(mean_p: Array, log_std_p: Array, mean_q: Array, log_std_q: Array) -> Array:
    """KL(p‖q) = Σ_i log(σ_q/σ_p) + (σ_p² + (μ_p − μ_q)²)/(2σ_q²) − ½."""
    ratio = jnp.exp(2 * (log_std_p - log_std_q))
    shift = ((mean_p - mean_q) * jnp.exp(-log_std_q)) ** 2
    return jnp.sum(log_std_q - log_std_p + 0.5 * (ratio + shift - 1), axis=-1)
