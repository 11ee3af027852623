"""The multipliers λ of several constraints: what each bounds is tracked, its step tilted, λ kept in [0, λ_max].

| paper | here | |
|---|---|---|
| λ | `multiplier` | [K], one per constraint |
| q_k (Eq. 17a) | `tracked` | [K] episode-cost quantile, or mean for a mean constraint |
| F_q(d) | `share_below` | [K] over the last `quantile_window` values of `tracked` |
| η₊, η₋ (Eq. 14) | `tilt_up`, `tilt_down` | [K]; 1, 1 for a mean constraint |
| α_k, η_k (Eq. 17) | `alpha`, `gain`, with their exponents | |
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tqpo.algorithms import episodes
from tqpo.algorithms.settings import Constraint, require, settings, static
from tqpo.maths import multiplier, quantile, schedule
from tqpo.maths.multiplier import Tilt
from tqpo.types import Array


@settings
class DualConfig:
    """How λ moves. An exponent of 0 keeps a step size constant; `presets.scheduled` sets Assumption 3's."""

    initial_multiplier: float = 0.5  # λ_0
    max_multiplier: float = float("inf")  # λ_max
    gain: float = 0.1  # K_i: λ's step is η·K_i·min((q − d)/cost_scale, max_step)
    log_gain: float = 0.0  # K_log: log λ moves by η·K_log·min((q − d)/cost_scale, max_step)
    max_step: float = 10.0
    cost_scale: float = 10.0  # costs are divided by it, here and in the cost returns
    tilt: int = Tilt.ADAPTIVE  # a `multiplier.Tilt`
    delta: float = 0.1  # δ
    fixed_up: float = 0.2  # η₊ of the fixed tilt
    fixed_down: float = 0.8  # η₋ of the fixed tilt
    alpha: float = 1.0  # α: 1 replaces q_k by the new estimate
    alpha_exponent: float = 0.0
    gain_exponent: float = 0.0
    decay_offset: float = 100.0  # iterations before exponents bite
    quantile_window: int = static(default=100)  # past values that F_q(d) is taken over


class DualState(NamedTuple):
    multiplier: Array  # [K]
    tracked: Array  # [K]
    recent: quantile.Window  # [K, N]


def init(config: DualConfig, n_constraints: int) -> DualState:
    """λ_0, and no estimate yet."""
    empty = quantile.window_init(config.quantile_window)
    recent = jax.tree.map(lambda x: jnp.broadcast_to(x, (n_constraints, *x.shape)), empty)
    return DualState(jnp.full(n_constraints, config.initial_multiplier, float), jnp.zeros(n_constraints), recent)


def check(config: DualConfig) -> None:
    """Raises for numbers that cannot work."""
    require(config.cost_scale > 0, f"cost_scale = {config.cost_scale}: positive")
    require(0 < config.alpha <= 1, f"alpha = {config.alpha}: in (0, 1]")
    require(config.delta > 0, f"delta = {config.delta}: positive")
    require(config.initial_multiplier >= 0, f"initial_multiplier = {config.initial_multiplier}: not negative")
    require(config.quantile_window >= 1, f"quantile_window = {config.quantile_window}: at least 1")
    require(config.tilt in list(Tilt), f"tilt = {config.tilt}: one of {[f'{t.name}={t:d}' for t in Tilt]}")


def alpha(config: DualConfig, iteration: Array) -> Array:
    """α_k."""
    return schedule.power(iteration, config.alpha, config.decay_offset, config.alpha_exponent)


def track(q: Array, q_hat: Array, config: DualConfig, iteration: Array, seen: Array) -> Array:
    """q_{k+1} = q_k + α_k(q̂ − q_k) (Eq. 17a), except that the first estimate ever (`seen` false) is taken whole."""
    return quantile.track_quantile(q, q_hat, jnp.where(seen, alpha(config, iteration), 1.0))


def step(
    state: DualState,
    found: episodes.Estimates,
    constraints: tuple[Constraint, ...],
    config: DualConfig,
    iteration: Array,
) -> tuple[DualState, dict[str, Array]]:
    """λ_{k+1} (Eqs. 13–14, 17c). While no episode has finished, or an estimate is not finite, nothing moves."""
    limit = episodes.limits(constraints)
    tracked = track(state.tracked, found.bounded, config, iteration, state.recent.count > 0)
    usable = (found.n_episodes > 0) & jnp.isfinite(tracked)  # [K]
    push = jax.vmap(quantile.window_push)
    recent = push(state.recent, tracked[:, None], usable[:, None])
    below = multiplier.share_below(recent, limit)
    kind = jnp.where(episodes.bounds_quantile(constraints), config.tilt, Tilt.NONE)
    up, down = multiplier.tilt_rates(kind, below, config.delta, config.fixed_up, config.fixed_down)
    moved = multiplier.multiplier_step(
        state.multiplier,
        tracked,
        limit,
        up,
        down,
        schedule.power(iteration, config.gain, config.decay_offset, config.gain_exponent),
        config.cost_scale,
        config.max_step,
        config.max_multiplier,
        config.log_gain,
    )
    new = DualState(jnp.where(usable, moved, state.multiplier), jnp.where(usable, tracked, state.tracked), recent)
    return new, {"multiplier": new.multiplier, "tilt_up": up, "tilt_down": down, "share_below": below}
