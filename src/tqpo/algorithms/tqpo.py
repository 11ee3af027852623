"""TQPO: Tilted Quantile Policy Optimization (Li, Ruan, Geng, AAAI 2025), max V s.t. the (1−ε)-quantile of C is ≤ d.

| paper | here | |
|---|---|---|
| θ, φ | `learner.network` | policy and value weights |
| C(s_i, π) (Eq. 8) | `cost_return` | [T, B, K] GAE(γ, λ_GAE) estimate of the discounted cost to go, in cost/cost_scale |
| q̂, q_k (Eqs. 9, 17a) | `q_hat`, `State.q` | [K] quantile of `cost_return` over the last `step_window` steps, at `aimed_level` |
| I(C ≥ q_k) | `exceeds` | [T, B, K] |
| −I(C ≥ q_k)·scale/ε (Eq. 16, sign corrected) | `Targets.constraint_advantage` | [T, B, K] |
| A (Eq. 16) | the sum inside `ppo.penalised_surrogate` | |
| L_θ (Eq. 15) | `loss` | |
| q_{1−ε} in λ's step (Eq. 13) | `dual.tracked` | [K] quantile of the undiscounted *episode cost*, last `episode_window` episodes |
| F_q(d), η₊, η₋ (Eq. 14) | `share_below`, `tilt_up`, `tilt_down` | [K] |
| λ | `dual.multiplier` | [K] |
| α_k, β_k, η_k (Eq. 17) | `dual.alpha`, `learner.learning_rate`, `dual.gain`, with exponents | |
| 1−ε, d, δ | `constraints[k].safety`, `.limit`, `dual.delta` | |
| p(s), not in the paper | head `exceeds` | [K] Pr[C(s) ≥ q_k], a baseline for the indicator |

Departures from the paper, all but the last four as released:
- The indicator's sign: Eqs. 8–16 as printed punish the safe trajectories (`quantile.quantile_advantage` has the derivation).
- The limit d and λ's step use the undiscounted episode cost; the gradient's indicator uses the discounted cost to go from each
  step, against the quantile of that same quantity. Both are logged: `episode_cost_quantile`, `cost_return_quantile`.
- The density f(q) is dropped and the indicator scaled by `indicator_scale`/ε; the objective is divided by 1 + λ; reward and
  constraint terms are clipped apart; λ's step is scaled by a gain and bounded.
- `baseline` subtracts a learned p(s) from the indicator: the same gradient on average, with less variance.
- `log_gain` moves log λ (`multiplier.multiplier_step`).
- `lowest_level` lowers the level of q̂ while the policy is unsafe at a large λ, towards what the policy keeps now.
- Several constraints at once, mean constraints among them (treated as in PPO-Lagrangian, never tilted).

Departures from the released code: the tilt adapts (`Tilt.RELEASED` is what its code does: F_q(d) stays 0); one quantile
convention; GAE runs to the end of the episode or batch (see `ppo`).
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from tqpo.algorithms import dual, episodes, learner, ppo
from tqpo.algorithms.dual import DualConfig, DualState
from tqpo.algorithms.learner import Experience, LearnerConfig, LearnerState
from tqpo.algorithms.settings import Constraint, check_constraints, require, settings, static
from tqpo.maths import quantile
from tqpo.networks import Head
from tqpo.types import Array, Key, Spec

BASELINES = {"none": "", "separate": "own", "critic": "critic", "stopped": "stopped"}  # → the head's trunk


@settings
class Config:
    learner: LearnerConfig = LearnerConfig()
    constraints: tuple[Constraint, ...] = (Constraint(),)
    dual: DualConfig = DualConfig()
    indicator_scale: float = 0.1  # the indicator counts scale/ε
    lowest_level: float = 1.0  # at λ_max, q̂'s level follows Pr[C ≤ d] down to this (`aimed_level`); 1: it stays at 1−ε
    baseline: str = static(default="none")  # p(s): "none", on a "separate" trunk, the "critic"'s, or that "stopped"
    baseline_coef: float = 1.0  # weight of p's cross-entropy in the loss
    step_window: int = static(default=100_000)  # steps that q̂ is taken over; those of one batch: no memory
    step_stride: int = static(default=1)  # every how-manieth step enters that window


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


def loss(outputs, log_prob, sample, targets: Targets, lam: Array, config: Config) -> tuple[Array, dict]:
    """L_θ (Eqs. 15–16), the value losses of φ, and the baseline's cross-entropy."""
    ratio = jnp.exp(log_prob - sample.log_prob)
    objective, parts = ppo.penalised_surrogate(
        ratio, targets.advantage, targets.constraint_advantage, lam, config.learner.clip
    )
    rest, value_parts = ppo.reward_loss(outputs, targets.value, config.learner)
    cost_value = ppo.cost_value_loss(outputs.heads["cost_value"], targets.cost_value)
    parts |= value_parts | {"cost_value_loss": cost_value}
    total = rest + config.learner.cost_value_coef * cost_value - objective
    if config.baseline != "none":
        entropy = optax.sigmoid_binary_cross_entropy(outputs.heads["exceeds"], targets.exceeds)
        parts["baseline_loss"] = entropy.mean()
        total += config.baseline_coef * parts["baseline_loss"]
    return total, parts


def push_steps(steps: quantile.Window, cost_return: Array, stride: int) -> quantile.Window:
    """Appends every `stride`-th step of a batch [T, B, K] to the windows [K, N]; one that is not finite is refused."""
    n = steps.values.shape[-1]
    new = cost_return[::stride].reshape(-1, cost_return.shape[-1]).T  # [K, ⌈T/stride⌉·B]
    values = jnp.concatenate([steps.values, new], -1)[:, -n:]
    count = jnp.minimum(steps.count + new.shape[-1], n)
    ok = jnp.isfinite(new).all(-1)  # [K]
    return quantile.Window(jnp.where(ok[:, None], values, steps.values), jnp.where(ok, count, steps.count))


def aimed_level(found: episodes.Estimates, multiplier: Array, config: Config) -> Array:
    """[K] the level whose quantile the indicator is taken at: 1−ε, or Pr[C ≤ d] while that is lower and λ is large.

    Where one episode in ten is safe, the worst 5 % of steps say little about which episodes are not. For episode costs, I(C > q) at
    the level Pr[C ≤ d] marks exactly those above d, and the gradient is that of Pr[C ≤ d]; for costs to go it is the same share.
    How low the level may go falls from 1 at λ = 0 to `lowest_level` at λ_max: a wide indicator hinders a policy that is still
    learning the task, and a large λ says that the narrow one was not enough. The indicator keeps its scale, so one that is
    wider weighs more as well; divided by its share it did worse in trials.
    """
    share_of_max = multiplier / jnp.maximum(config.dual.max_multiplier, 1e-6)  # a bound of 0 keeps λ at 0
    lowest = 1.0 - (1.0 - config.lowest_level) * jnp.minimum(share_of_max, 1.0)
    kept = jnp.where(found.n_episodes > 0, found.safety_prob, 1.0)  # nothing is known yet
    return jnp.minimum(episodes.levels(config.constraints), jnp.maximum(kept, lowest))


def constraint_advantage(cost_return: Array, cost_advantage: Array, q: Array, p: Array | None, config: Config) -> Array:
    """What λ multiplies in A (Eq. 16): −(scale/ε)·(I(C ≥ q) − p), or minus the cost advantage for a mean constraint."""
    outage = 1.0 - episodes.levels(config.constraints)  # ε, [K]
    by_quantile = quantile.quantile_advantage(cost_return, q, outage, config.indicator_scale, p)
    return jnp.where(episodes.bounds_quantile(config.constraints), by_quantile, -cost_advantage)


def check(config: Config, env: Spec) -> None:
    learner.check(config.learner)
    dual.check(config.dual)
    check_constraints(config.constraints, ("quantile", "mean"), env.cost_names)
    require(config.baseline in BASELINES, f"baseline = {config.baseline!r}: one of {', '.join(BASELINES)}")
    require(0 <= config.lowest_level <= 1, f"lowest_level = {config.lowest_level}: from 0 to 1")
    require(
        config.lowest_level == 1 or math.isfinite(config.dual.max_multiplier),
        f"lowest_level = {config.lowest_level} needs a bound on λ: set max_multiplier (20, say), or lowest_level=1",
    )
    require(config.step_window >= 1, f"step_window = {config.step_window}: at least 1")
    require(
        1 <= config.step_stride <= config.learner.n_steps,
        f"step_stride = {config.step_stride}: from 1 to n_steps = {config.learner.n_steps}",
    )


def init(key: Key, env: Spec, config: Config) -> State:
    k = len(config.constraints)
    heads = {"value": Head(), "cost_value": Head((k,))}
    if config.baseline != "none":
        heads["exceeds"] = Head((k,), trunk=BASELINES[config.baseline])  # a logit
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
    cost = experience.rollout.batch.cost[..., episodes.channels(constraints)] / config.dual.cost_scale
    cost_advantage, cost_return = learner.cost_targets(
        experience, cost, values["cost_value"], next_values["cost_value"], config.learner
    )

    # q_{k+1} = q_k + α_k(q̂ − q_k)   (17a)
    steps = push_steps(state.steps, cost_return, config.step_stride)
    mask = quantile.window_mask(steps)
    found = episodes.estimate(core.episodes, constraints)
    level = aimed_level(found, state.dual.multiplier, config)
    q_hat = jax.vmap(quantile.empirical_quantile)(steps.values, level, mask)
    q = dual.track(state.q, q_hat, config.dual, core.iteration, state.steps.count > 0)

    # λ_{k+1} = max(λ_k + η_k(q − d), 0), η_k tilted by F_q(d)   (13, 14, 17c)
    duals, dual_metrics = dual.step(state.dual, found, constraints, config.dual, core.iteration)

    # θ_{k+1}, φ_{k+1}: epochs of L_θ and of the value losses   (15, 16, 17b)
    p = jax.nn.sigmoid(values["exceeds"]) if config.baseline != "none" else None
    targets = Targets(
        advantage,
        value,
        constraint_advantage(cost_return, cost_advantage, q, p, config),
        cost_return,
        quantile.exceedance(cost_return, q),
    )

    metrics = episodes.metrics(core.episodes, experience.finished, constraints, found) | dual_metrics
    lagrangian = functools.partial(loss, lam=duals.multiplier, config=config)
    core, fitted = learner.fit(core, config.learner, lagrangian, experience, targets)
    metrics |= {"cost_return_quantile": q, "indicator_level": level, "exceed_share": targets.exceeds.mean((0, 1))}
    return State(core, duals, q, steps), metrics | fitted
