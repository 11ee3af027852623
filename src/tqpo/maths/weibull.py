"""The Weibull tail of QCPO (Jung et al., NeurIPS 2022): F(x) = 1 − exp(−(x/β)^α), scale β, shape α.

Where the QCPO paper leaves a constant open, it is the one of its authors' code (github.com/wyjung0625/QCPO).
"""

import jax
import jax.numpy as jnp

from tqpo.types import Array


def log_pdf(x: Array, scale: Array, shape: Array) -> Array:
    """log f(x) = log α − α·log β + (α − 1)·log x − (x/β)^α, x > 0."""
    log_ratio = jnp.log(x) - jnp.log(scale)
    return jnp.log(shape) - jnp.log(scale) + (shape - 1) * log_ratio - jnp.exp(shape * log_ratio)


def quantile(level: Array | float, scale: Array, shape: Array) -> Array:
    """F⁻¹(τ) = β·(−log(1 − τ))^{1/α}."""
    return scale * (-jnp.log1p(-jnp.asarray(level))) ** (1 / shape)


def tail_loss(scale: Array, shape: Array, quantiles: Array, levels: Array, tail_from: float = 0.7) -> Array:
    """Mean over τ ≥ tail_from of ½(log β + α⁻¹·log(−log(1 − τ)) − log q_τ)²: a fit in log quantiles.

    `scale`, `shape` [...]; `quantiles` [..., N] at `levels` [N]. The quantiles are targets: sorted, and no
    gradient flows into them. With 25 levels (i + ½)/25 one level is 0.7 itself and counts, as in the authors'
    code.
    """
    ordered = jax.lax.stop_gradient(jnp.sort(quantiles, axis=-1))
    target = jnp.log(jnp.maximum(ordered, 1e-6))  # exp(linear) can underflow to 0
    fitted = jnp.log(scale)[..., None] + jnp.log(-jnp.log1p(-levels)) / shape[..., None]
    tail = jnp.broadcast_to(levels >= tail_from - 1e-6, target.shape)
    return jnp.mean(0.5 * (fitted - target) ** 2, where=tail)


def log_density_ratio(
    quantile_now: Array,
    cost: Array,
    weibull_now: tuple[Array, Array],
    weibull_next: tuple[Array, Array],
    discount: Array | float,
    *,
    smallest: float = 1e-3,
) -> Array:
    """ℓ_t = log f(z'; s_{t+1}) − log γ − log f(z; s_t), z' = (z − c_t)/γ: is z still as likely?

    z is the cost-to-go's quantile at s_t; after paying c_t it leaves z' to go. Where that leaves nothing (z'
    ≤ smallest) the densities say nothing and ℓ = 0. `weibull_now`, `weibull_next` are (scale, shape) at each
    state.
    """
    to_go = (quantile_now - cost) / discount
    later = log_pdf(jnp.maximum(to_go, smallest), *weibull_next)
    return jnp.where(to_go > smallest, later - jnp.log(discount) - log_pdf(quantile_now, *weibull_now), 0.0)


def density_ratio_weight(log_ratio: Array, ended: Array, spread: float = 5.0, clip: float = 0.5) -> Array:
    """w_t = 1 + clip((ℓ_t − mean ℓ)/(5·std ℓ), ±½), and 1 where the episode ended: an advantage's weight.

    The exact factor is the ratio e^ℓ, which no finite batch can average. 1 + ℓ is its first-order expansion;
    centred, scaled and clipped over the batch it stays within [½, 1½], so a weight never changes an advantage's
    sign.
    """
    std = jnp.maximum(log_ratio.std(), 1e-6)  # all ratios equal: every weight is 1
    normalised = (log_ratio - log_ratio.mean()) / (spread * std)
    return 1 + jnp.where(ended, 0.0, jnp.clip(normalised, -clip, clip))
