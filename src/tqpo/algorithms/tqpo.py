"""TQPO: Tilted Quantile Policy Optimization (Li, Ruan, Geng, AAAI 2025), max V s.t. the (1−ε)-quantile of C is ≤ d.

| Eq. | paper | here | |
|---|---|---|---|
| 7–8 | ∇q by the likelihood ratio | `quantile_advantage` | [T, B, K] |
| 8 | C(s_i, π) | `cost_return` | [T, B, K] discounted cost to go, GAE estimate, in cost/cost_scale |
| 3, 9, 17a | q̂, q_k | `q_hat`, `State.q`, `dual.track` | [K] quantile of `cost_return` over the last `step_window` steps |
| 10–11 | V − λ(q − d) | `ppo.penalised_surrogate` | divided by 1 + λ |
| 12–13, 17c | λ ← max(λ + η(q − d), 0) | `dual.step` | [K], by the quantile of the undiscounted *episode cost* |
| 14 | F_q(d), η₊, η₋ | `share_below`, `tilt_rates`, `tilt` | [K] over the last `quantile_window` quantiles |
| 15–16, 17b | L_θ, A | `loss`, `Targets` | −λ·I(C ≥ q_k)·scale/ε: the sign corrected |
| 17 | α_k, β_k, η_k | `dual.alpha`, `learner.learning_rate`, `dual.gain` | with exponents (Assumption 3) |
| | θ, φ; 1−ε, d, δ | `learner.network`; `constraints[k].safety`, `.limit`; `dual.delta` | |

Departures from the paper, as released:
- The indicator's sign: Eqs. 8–16 as printed punish the safe trajectories (`quantile_advantage` has the derivation).
- The limit d and λ's step use the undiscounted episode cost; the gradient's indicator uses the discounted cost to go from
  each step, against the quantile of that same quantity. Both are logged: `episode_cost_quantile`, `cost_return_quantile`.
- The density f(q) is dropped and the indicator scaled by `indicator_scale`/ε; the objective is divided by 1 + λ; reward and
  constraint terms are clipped apart; λ's step is scaled by a gain and bounded.

Ours: several constraints at once, mean constraints among them (as in PPO-Lagrangian, never tilted); a learned baseline p(s)
of the indicator (`baseline`, the head `exceeds`), which leaves the gradient's mean alone.

Departures from the released code: the tilt adapts (`Tilt.RELEASED` is what its code does: F_q(d) stays 0); one quantile
convention; GAE runs to the end of the episode or batch (see `ppo`).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from tqpo.algorithms import dual, episodes, learner, ppo
from tqpo.algorithms.dual import DualConfig, DualState, Rates, Tilt
from tqpo.algorithms.learner import Experience, LearnerConfig, LearnerState
from tqpo.algorithms.settings import Constraint, check_constraints, require, settings, static
from tqpo.maths import quantile
from tqpo.networks import Head
from tqpo.types import Array, Key, Spec


@settings
class Config:
    learner: LearnerConfig = LearnerConfig()
    constraints: tuple[Constraint, ...] = (Constraint(),)
    dual: DualConfig = DualConfig()
    indicator_scale: float = 0.1  # the indicator counts scale/ε
    baseline: str = static(default="none")  # ours: subtract a learned p(s) ≈ Pr[C ≥ q | s] ("separate", its own trunk)
    step_window: int = static(default=100_000)  # steps that q̂ is taken over; those of one batch: no memory
    step_stride: int = static(default=1)  # of these steps, one in so many enters that window


class State(NamedTuple):
    learner: LearnerState
    dual: DualState
    q: Array  # [K]
    steps: quantile.Window  # [K, step_window] recent cost returns


class Targets(NamedTuple):
    advantage: Array  # [...]
    value: Array  # [...]
    constraint_advantage: Array  # [..., K]
    cost_value: Array  # [..., K]
    exceeds: Array  # [..., K] 0 or 1


def exceedance(cost: Array | float, q: Array | float) -> Array:
    """I(C ≥ q), as 0.0 or 1.0. Ties count as unsafe, as in the released code; a continuous cost has none."""
    return jnp.asarray(cost >= q, float)


def quantile_advantage(
    cost_return: Array,
    q: Array | float,
    outage_prob: Array | float,
    scale: Array | float = 0.1,
    baseline: Array | None = None,
) -> Array:
    """A_C = −(scale/ε)·(I(C ≥ q) − p): what λ multiplies in the advantage (Eqs. 7, 8, 16, sign corrected).

    The policy ascends V − λ·q(θ). From F(q(θ); θ) = 1 − ε follows ∇q = −∇F(q)/f(q) (Eq. 7), and by the likelihood ratio
    ∇F(q) = ∇E[I(C ≤ q)] = E[I(C ≤ q)·∇log π]. So

        −λ∇q = +(λ/f)·E[I(C ≤ q)·∇log π] = −(λ/f)·E[I(C > q)·∇log π],

    the last step because a score has mean zero. Eqs. 8, 11 and 16 print −λ·I(C ≤ q), which is the opposite of this: Eq. 8
    writes F as E[I(C ≥ q)]. The density f is dropped (it is positive), and 1/ε, the inverse of the indicator's mean, keeps
    the size of the term the same at every level.

    `baseline` p(s) ≈ Pr[C ≥ q | s] leaves the gradient's mean alone, again because a score has mean zero.
    """
    excess = exceedance(cost_return, q) - (0.0 if baseline is None else baseline)
    return -scale / outage_prob * excess


def constraint_advantage(cost_return: Array, cost_advantage: Array, q: Array, p: Array | None, config: Config) -> Array:
    """What λ multiplies in A (Eq. 16) [T, B, K]; for a mean constraint minus the cost advantage."""
    outage = 1.0 - episodes.levels(config.constraints)  # ε, [K]
    by_quantile = quantile_advantage(cost_return, q, outage, config.indicator_scale, p)
    return jnp.where(episodes.bounds_quantile(config.constraints), by_quantile, -cost_advantage)


def share_below(window: quantile.Window, limit: Array | float, count_from: int = 1) -> Array:
    """F_q(d): the share of recent quantiles below the limit (Eq. 14); 0 while the window is empty.

    Windows [..., N] and limits [...] go together, one per constraint. The share counts from the `count_from`-th quantile on: the
    released code waits for a 101st in a window of 100.
    """
    below = quantile.window_mask(window) & (window.values < jnp.asarray(limit)[..., None])
    share = below.sum(-1) / jnp.maximum(window.count, 1)
    return share if count_from == 1 else jnp.where(window.count >= count_from, share, 0.0)


def tilt_rates(
    kind: Array | float,
    share_below: Array | float,
    delta: Array | float,
    fixed_up: Array | float = 0.2,
    fixed_down: Array | float = 0.8,
) -> tuple[Array, Array]:
    """η₊ = (F_q(d) + δ)/(1 + δ) and η₋ = (1 − F_q(d) + δ)/(1 + δ) (Eq. 14), or a variant of them.

    `kind` is a `Tilt` and may be traced. The released pair is Eq. 14 at F_q(d) = 0: (δ/(1 + δ), 1).
    """
    share = jnp.where(kind == Tilt.RELEASED, 0.0, share_below)
    up, down = (share + delta) / (1 + delta), (1 - share + delta) / (1 + delta)
    none, fixed = jnp.equal(kind, Tilt.NONE), jnp.equal(kind, Tilt.FIXED)
    return (
        jnp.where(none, 1.0, jnp.where(fixed, fixed_up, up)),
        jnp.where(none, 1.0, jnp.where(fixed, fixed_down, down)),
    )


def tilt(recent: quantile.Window, constraints: tuple[Constraint, ...], config: DualConfig) -> Rates:
    """η₊ and η₋ of each constraint, by its recent quantiles; a mean constraint has no tilt."""
    below = share_below(recent, episodes.limits(constraints), config.count_from)
    kind = jnp.where(episodes.bounds_quantile(constraints), config.tilt, Tilt.NONE)
    return Rates(*tilt_rates(kind, below, config.delta, config.fixed_up, config.fixed_down), below)


def loss(outputs, log_prob, sample, targets: Targets, multiplier: Array, config: Config) -> tuple[Array, dict]:
    """L_θ (Eqs. 15–16) and the value losses of φ; with the baseline also its cross-entropy."""
    cost_value = outputs.heads["cost_value"]
    total, parts = ppo.lagrangian_loss(outputs, log_prob, sample, targets, cost_value, multiplier, config.learner)
    if config.baseline != "none":
        entropy = optax.sigmoid_binary_cross_entropy(outputs.heads["exceeds"], targets.exceeds)
        parts["baseline_loss"] = entropy.mean()
        total += parts["baseline_loss"]
    return total, parts


def push_steps(steps: quantile.Window, cost_return: Array, stride: int) -> quantile.Window:
    """Appends every `stride`-th step of a batch [T, B, K] to the windows [K, N]; one that is not finite is refused."""
    n = steps.values.shape[-1]
    new = cost_return[::stride].reshape(-1, cost_return.shape[-1]).T  # [K, ⌈T/stride⌉·B]
    values = jnp.concatenate([steps.values, new], -1)[:, -n:]
    count = jnp.minimum(steps.count + new.shape[-1], n)
    ok = jnp.isfinite(new).all(-1)  # [K]
    return quantile.Window(jnp.where(ok[:, None], values, steps.values), jnp.where(ok, count, steps.count))


def check(config: Config, env: Spec) -> None:
    learner.check(config.learner)
    dual.check(config.dual)
    check_constraints(config.constraints, ("quantile", "mean"), env.cost_names)
    require(config.baseline in ("none", "separate"), f"baseline = {config.baseline!r}: none or separate")
    require(config.step_window >= 1, f"step_window = {config.step_window}: at least 1")
    require(
        1 <= config.step_stride <= config.learner.n_steps,
        f"step_stride = {config.step_stride}: from 1 to n_steps = {config.learner.n_steps}",
    )


def init(key: Key, env: Spec, config: Config) -> State:
    k = len(config.constraints)
    heads = {"value": Head(), "cost_value": Head((k,))}
    if config.baseline != "none":
        heads["exceeds"] = Head((k,), trunk="own")  # a logit
    empty = quantile.window_init(config.step_window)
    return State(
        learner.init(key, env, config.learner, heads),
        dual.init(config.dual, k),
        jnp.zeros(k),
        jax.tree.map(lambda x: jnp.broadcast_to(x, (k, *x.shape)), empty),
    )


def learn(state: State, experience: Experience, config: Config) -> tuple[State, dict[str, Array]]:
    """One iteration of the paper's training process, in the released code's order: q, λ, then θ and φ."""
    constraints = config.constraints

    # Given a batch of samples s_0, …, s_N ~ π_θ: V_φ's advantages and the costs to go C(s_i, π_θ).
    core = state.learner
    values, next_values = experience.values, experience.next_values
    advantage, value = learner.reward_targets(experience, config.learner)
    cost = dual.scaled_costs(experience.rollout.batch.cost, constraints, config.dual)
    cost_advantage, cost_return = learner.cost_targets(
        experience, cost, values["cost_value"], next_values["cost_value"], config.learner
    )

    # q_{k+1} = q_k + α_k(q̂ − q_k)   (17a)
    steps = push_steps(state.steps, cost_return, config.step_stride)
    mask = quantile.window_mask(steps)
    estimates = episodes.estimate(core.episodes, constraints)
    q_hat = jax.vmap(quantile.empirical_quantile)(steps.values, episodes.levels(constraints), mask)
    q = dual.track(state.q, q_hat, config.dual, core.iteration, state.steps.count > 0)

    # λ_{k+1} = max(λ_k + η_k(q − d), 0), η_k tilted by F_q(d)   (13, 14, 17c)
    duals, dual_metrics = dual.step(state.dual, estimates, constraints, config.dual, core.iteration, tilt)

    # θ_{k+1}, φ_{k+1}: epochs of L_θ and of the value losses   (15, 16, 17b)
    p = jax.nn.sigmoid(values["exceeds"]) if config.baseline != "none" else None
    targets = Targets(
        advantage,
        value,
        constraint_advantage(cost_return, cost_advantage, q, p, config),
        cost_return,
        exceedance(cost_return, q),
    )

    metrics = episodes.metrics(core.episodes, experience.finished, constraints, estimates) | dual_metrics
    lagrangian = functools.partial(loss, multiplier=duals.multiplier, config=config)
    core, fitted = learner.fit(core, config.learner, lagrangian, experience, targets)
    metrics |= {"cost_return_quantile": q, "exceed_share": targets.exceeds.mean((0, 1))}
    return State(core, duals, q, steps), metrics | fitted
