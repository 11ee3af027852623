"""The Lagrange multiplier λ: its tilted step and what it does to the advantage."""

import enum

import jax.numpy as jnp

from tqpo.maths.quantile import Window, window_mask
from tqpo.types import Array


class Tilt(enum.IntEnum):
    """How λ's step depends on its sign. Numbers, so that runs with different tilts can share one program."""

    ADAPTIVE = 0  # paper Eq. 14
    NONE = 1  # paper Eq. 13 as it stands
    FIXED = 2  # the ablation's constant pair
    RELEASED = 3  # Eq. 14 with F_q(d) ≡ 0: the released window never fills


def share_below(window: Window, limit: Array | float) -> Array:
    """F_q(d): the share of recent quantiles below the limit (paper Eq. 14); 0 while the window is empty.

    Windows [..., N] and limits [...] go together, one per constraint. It counts from the first quantile on:
    the released code waits for a 101st in a window of 100.
    """
    below = window_mask(window) & (window.values < jnp.asarray(limit)[..., None])
    return below.sum(-1) / jnp.maximum(window.count, 1)


def tilt_rates(
    kind: Array | float,
    share_below: Array | float,
    delta: Array | float,
    fixed_up: Array | float = 0.2,
    fixed_down: Array | float = 0.8,
) -> tuple[Array, Array]:
    """η₊ = (F_q(d) + δ)/(1 + δ) and η₋ = (1 − F_q(d) + δ)/(1 + δ) (paper Eq. 14), or a variant of them.

    `kind` is a `Tilt` and may be traced. The released pair is Eq. 14 at F_q(d) = 0: (δ/(1 + δ), 1).
    """
    share = jnp.where(kind == Tilt.RELEASED, 0.0, share_below)
    up, down = (share + delta) / (1 + delta), (1 - share + delta) / (1 + delta)
    none, fixed = jnp.equal(kind, Tilt.NONE), jnp.equal(kind, Tilt.FIXED)
    return (
        jnp.where(none, 1.0, jnp.where(fixed, fixed_up, up)),
        jnp.where(none, 1.0, jnp.where(fixed, fixed_down, down)),
    )


def multiplier_step(
    lam: Array | float,
    quantile: Array | float,
    limit: Array | float,
    eta_plus: Array | float,
    eta_minus: Array | float,
    gain: Array | float,
    cost_scale: Array | float,
    max_step: Array | float = 10.0,
    max_multiplier: Array | float = jnp.inf,
    log_gain: Array | float = 0.0,
) -> Array:
    """λ ← clip((λ + η·K·m)·exp(η·K_log·m), 0, λ_max), m = min((q − d)/c, 10), η = η₊ if q ≥ d else η₋ (paper Eqs. 13–14).

    Gain K, cost scale c and the bound on the step are the released code's. K_log is not in the paper: with it log λ moves, as in
    mirror descent, so that the same excess moves a λ of 10 a hundred times as far as one of 0.1. `quantile` is whatever the
    constraint bounds: PPO-Lagrangian puts the mean episode cost here. All arguments broadcast, one entry per
    constraint.
    """
    excess = jnp.asarray(quantile - limit)
    eta = jnp.where(excess >= 0, eta_plus, eta_minus)
    move = eta * jnp.minimum(excess / cost_scale, max_step)
    return jnp.clip((lam + gain * move) * jnp.exp(log_gain * move), 0.0, max_multiplier)


def penalised(adv_reward: Array, adv_constraints: Array, lam: Array) -> Array:
    """(A + Σ_k λ_k·A_k)/(1 + Σ_k λ_k), with A_k ascending safety (`quantile_advantage`).

    The paper's V − λq (Eq. 10) divided by 1 + λ as in the released code, so that a large λ turns the gradient
    rather than lengthening it. `adv_reward` [...], `adv_constraints` [..., K], `lam` [K].
    """
    return (adv_reward + adv_constraints @ lam) / (1 + lam.sum())
