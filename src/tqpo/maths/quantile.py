"""Quantiles: from samples, by regression, and the windows of past values that they are taken over.

One convention everywhere (the released code has two): the quantile at level p is inf{x : F(x) ≥ p}
(paper Eq. 3).
"""

from typing import NamedTuple

import jax.numpy as jnp

from tqpo.types import Array


def empirical_quantile(values: Array, level: Array | float, mask: Array | None = None, upper: bool = False) -> Array:
    """q̂_p = x_(⌈p·n⌉), the smallest sample with F(x) ≥ p (paper Eq. 3; numpy's `inverted_cdf`).

    `values` [N], of which the n entries in `mask` count; `level` may have any shape and gives the result's.
    With nothing to count the result is 0.

    p·n is compared with an integer, and neither 0.9 nor 1 − ε is exact in binary. A product within a few
    roundings *above* an integer is that integer: 0.9 of 100 samples is the 90th in float32 as in float64.
    (numpy takes the 56th of 100 at level 0.55, where its product is 55.000000000000007; here it is the 55th.)

    `upper` gives inf{x : F(x) > p} = x_(⌊p·n⌋ + 1) instead, the released code's rule for episode costs: of 100 at level 0.9
    the 91st.
    """
    mask = jnp.ones(values.shape, bool) if mask is None else mask
    values = jnp.asarray(values, jnp.result_type(values, float))
    n = mask.sum().astype(values.dtype)
    rounding = 4 * jnp.finfo(values.dtype).eps * n
    place = jnp.asarray(level, values.dtype) * n
    rank = (jnp.floor(place + rounding) + 1 if upper else jnp.ceil(place - rounding)).astype(int)
    ordered = jnp.sort(jnp.where(mask, values, jnp.inf))
    last = jnp.maximum(n.astype(int) - 1, 0)
    return jnp.where(n > 0, ordered[jnp.clip(rank - 1, 0, last)], 0.0)


def safety_probability(costs: Array, limit: Array | float, mask: Array | None = None) -> Array:
    """Pr[C ≤ d], the share of episodes within the limit (paper Eq. 2); 0 when there is none to count."""
    mask = jnp.ones(costs.shape, bool) if mask is None else mask
    return (mask & (costs <= limit)).sum() / jnp.maximum(mask.sum(), 1)


def quantile_huber_loss(quantiles: Array, targets: Array, levels: Array, kappa: Array | float = 1.0) -> Array:
    """Mean over pairs of |τ_i − I(u < 0)|·H_κ(u)/κ, u = y_j − q_i (Dabney et al. 2018, Eqs. 9–10).

    H_κ(u) = u²/2 where |u| ≤ κ and κ·(|u| − κ/2) elsewhere. `quantiles` [..., N] at `levels` [N], `targets`
    [..., M].
    """
    u = targets[..., None, :] - quantiles[..., :, None]  # [..., N, M]
    size = jnp.abs(u)
    huber = jnp.where(size <= kappa, 0.5 * u**2, kappa * (size - 0.5 * kappa))
    return jnp.mean(jnp.abs(levels[:, None] - (u < 0)) * huber / kappa)


class Window(NamedTuple):
    """The last `count` ≤ N values, oldest first, at the end of `values`; entries before them are unused."""

    values: Array  # [..., N]
    count: Array  # [...] int32  # pyright: ignore[reportIncompatibleMethodOverride]


def window_init(n: int, dtype=float) -> Window:
    """An empty window of size n."""
    return Window(jnp.zeros(n, dtype), jnp.zeros((), jnp.int32))


def window_mask(window: Window) -> Array:
    """Which entries hold a value, [..., N]."""
    n = window.values.shape[-1]
    return jnp.arange(n) >= n - window.count[..., None]


def window_push(window: Window, values: Array, mask: Array) -> Window:
    """Appends those of `values` [B] that `mask` marks, in order; the oldest drop out."""
    n = window.values.shape[0]
    both = jnp.concatenate([window.values, values.astype(window.values.dtype)])  # [N + B]
    valid = jnp.concatenate([window_mask(window), mask])
    newer = jnp.cumsum(valid[::-1])[::-1] - valid  # how many valid entries come after each
    slot = jnp.where(valid & (newer < n), n - 1 - newer, n)  # n lies outside: dropped
    kept = jnp.zeros_like(window.values).at[slot].set(both, mode="drop")
    return Window(kept, jnp.minimum(valid.sum(), n).astype(jnp.int32))
