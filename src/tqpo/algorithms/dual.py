"""The multipliers λ of several constraints: what each bounds is tracked, λ follows it, and stays in [0, λ_max].

Shared by every algorithm with a multiplier. The equations are TQPO's; the rates η₊, η₋ of Eq. 14 are in `tqpo`.

| paper | here | |
|---|---|---|
| λ | `multiplier` | [K], one per constraint |
| q_k (Eqs. 9, 17a) | `tracked` | [K] episode-cost quantile, or mean for a mean constraint |
| η₊, η₋ (Eq. 14) | `Rates` | [K]; both 1 without a tilt and for a mean constraint |
| α_k, η_k (Eq. 17) | `alpha`, `gain`, with their exponents | |
"""

import enum
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tqpo.algorithms import episodes
from tqpo.algorithms.settings import Constraint, require, settings, static
from tqpo.maths import quantile, schedule
from tqpo.types import Array


class Tilt(enum.IntEnum):
    """How λ's step depends on its sign. Numbers, so that runs with different tilts can share one program."""

    ADAPTIVE = 0  # paper Eq. 14
    NONE = 1  # paper Eq. 13 as it stands
    FIXED = 2  # the ablation's constant pair
    RELEASED = 3  # Eq. 14 with F_q(d) ≡ 0: the released window never fills


@settings
class DualConfig:
    """How λ moves. An exponent of 0 keeps a step size constant; Assumption 3 asks for ½ < α's < lr's < λ's ≤ 1."""

    initial_multiplier: float = 0.5  # λ at the start
    max_multiplier: float = float("inf")  # λ_max: no λ is larger
    gain: float = 0.1  # K: λ's step is η·K·min((q − d)/cost_scale, max_step)
    max_step: float = 10.0  # the most that (q − d)/cost_scale counts for in a step up
    cost_scale: float | None = 10.0  # costs are divided by it; null: each by its limit / 1.5 (own environments)
    tilt: int = Tilt.ADAPTIVE  # 0: paper Eq. 14; 1: none; 2: fixed; 3: as in the released code
    delta: float = 0.1  # δ of the tilt; larger is milder
    fixed_up: float = 0.2  # η₊ of the fixed tilt
    fixed_down: float = 0.8  # η₋ of the fixed tilt
    alpha: float = 1.0  # α: 1 replaces q_k by the new estimate
    alpha_exponent: float = 0.0  # how fast α falls with the iteration; 0: constant
    gain_exponent: float = 0.0  # the same of K
    decay_offset: float = 100.0  # iterations before exponents bite
    quantile_window: int = static(default=100)  # past values that F_q(d) is taken over
    count_from: int = static(default=1)  # F_q(d) is 0 until it has so many; 101 of 100, as released: for ever


class DualState(NamedTuple):
    multiplier: Array  # [K]
    tracked: Array  # [K]
    recent: quantile.Window  # [K, N] of `tracked`


class Rates(NamedTuple):
    """η for a step up and for a step down, and F_q(d) that they follow from; each [K]."""

    up: Array
    down: Array
    share_below: Array


def init(config: DualConfig, n_constraints: int) -> DualState:
    """λ_0, and no estimate yet."""
    empty = quantile.window_init(config.quantile_window)
    recent = jax.tree.map(lambda x: jnp.broadcast_to(x, (n_constraints, *x.shape)), empty)
    return DualState(jnp.full(n_constraints, config.initial_multiplier, float), jnp.zeros(n_constraints), recent)


def check(config: DualConfig) -> None:
    """Raises for numbers that cannot work."""
    scale = config.cost_scale
    require(scale is None or scale > 0, f"cost_scale = {scale}: positive, or null to follow the limits")
    require(config.max_multiplier > 0, f"max_multiplier = {config.max_multiplier}: positive, or λ is always 0")
    require(0 < config.alpha <= 1, f"alpha = {config.alpha}: in (0, 1]")
    require(config.delta > 0, f"delta = {config.delta}: positive")
    require(config.initial_multiplier >= 0, f"initial_multiplier = {config.initial_multiplier}: not negative")
    require(config.quantile_window >= 1, f"quantile_window = {config.quantile_window}: at least 1")
    require(config.tilt in list(Tilt), f"tilt = {config.tilt}: one of {[f'{t.name}={t:d}' for t in Tilt]}")


def cost_scales(config: DualConfig, constraints: tuple[Constraint, ...]) -> Array | float:
    """What costs are divided by: `cost_scale`, or the units [K] of the limits, so that other units change nothing."""
    return episodes.units(episodes.limits(constraints)) if config.cost_scale is None else config.cost_scale


def scaled_costs(cost: Array, constraints: tuple[Constraint, ...], config: DualConfig) -> Array:
    """[..., channels] → [..., K]: the costs that the constraints bound, each divided by its scale."""
    return cost[..., episodes.channels(constraints)] / cost_scales(config, constraints)


def track_quantile(q: Array | float, q_hat: Array | float, alpha: Array | float) -> Array:
    """q_{k+1} = q_k + α·(q̂ − q_k) (Eq. 9); α = 1 is the released code's hard update."""
    return jnp.asarray(q + alpha * (q_hat - q))


def track(q: Array, q_hat: Array, config: DualConfig, iteration: Array, seen: Array) -> Array:
    """q_{k+1} with α_k (Eq. 17a), except that the first estimate ever (`seen` false) is taken whole."""
    alpha = schedule.power(iteration, config.alpha, config.decay_offset, config.alpha_exponent)
    return track_quantile(q, q_hat, jnp.where(seen, alpha, 1.0))


def multiplier_step(
    multiplier: Array | float,
    quantile: Array | float,
    limit: Array | float,
    eta_plus: Array | float,
    eta_minus: Array | float,
    gain: Array | float,
    cost_scale: Array | float,
    max_step: Array | float = 10.0,
    max_multiplier: Array | float = jnp.inf,
) -> Array:
    """λ ← clip(λ + η·K·min((q − d)/c, max_step), 0, λ_max), η = η₊ if q ≥ d else η₋ (Eq. 13).

    Gain K, cost scale c and the bound on the step are the released code's. `quantile` is whatever the constraint bounds:
    PPO-Lagrangian puts the mean episode cost here. All arguments broadcast, one entry per constraint.
    """
    excess = jnp.asarray(quantile - limit)
    eta = jnp.where(excess >= 0, eta_plus, eta_minus)
    move = eta * jnp.minimum(excess / cost_scale, max_step)
    return jnp.clip(multiplier + gain * move, 0.0, max_multiplier)


def untilted(recent: quantile.Window, constraints: tuple[Constraint, ...], config: DualConfig) -> Rates:
    """η₊ = η₋ = 1: Eq. 13 as it stands."""
    one = jnp.ones(len(constraints))
    return Rates(one, one, jnp.zeros(len(constraints)))


def step(
    state: DualState,
    estimates: episodes.Estimates,
    constraints: tuple[Constraint, ...],
    config: DualConfig,
    iteration: Array,
    rates: Callable[[quantile.Window, tuple[Constraint, ...], DualConfig], Rates] = untilted,
) -> tuple[DualState, dict[str, Array]]:
    """λ_{k+1} (Eqs. 13, 17c). While no episode has finished, or an estimate is not finite, nothing moves."""
    limit = episodes.limits(constraints)
    tracked = track(state.tracked, estimates.bounded, config, iteration, state.recent.count > 0)
    usable = (estimates.n_episodes > 0) & jnp.isfinite(tracked)  # [K]
    recent = jax.vmap(quantile.window_push)(state.recent, tracked[:, None], usable[:, None])
    eta = rates(recent, constraints, config)
    moved = multiplier_step(
        state.multiplier,
        tracked,
        limit,
        eta.up,
        eta.down,
        schedule.power(iteration, config.gain, config.decay_offset, config.gain_exponent),
        cost_scales(config, constraints),
        config.max_step,
        config.max_multiplier,
    )
    new = DualState(jnp.where(usable, moved, state.multiplier), jnp.where(usable, tracked, state.tracked), recent)
    return new, {
        "multiplier": new.multiplier,
        "tilt_up": eta.up,
        "tilt_down": eta.down,
        "share_below": eta.share_below,
    }
