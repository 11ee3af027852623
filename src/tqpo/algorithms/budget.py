"""Budget-aware chance-constrained PPO: max V s.t. Pr[C ≤ d] ≥ 1 − ε, by a policy that sees what is left of d.

Let C_t be the episode's cost before step t and e_t = I(C_t ≤ d < C_{t+1}) the event that step t crosses the limit.
Costs are not negative, so this happens at most once: Σ_t e_t = I(C > d), and the outage probability is an expected
return like any other, undiscounted, with the event as the reward:

    Pr[C > d] = E[Σ_t e_t],    p(s) = Pr[C > d | s] = E[Σ_{u ≥ t} e_u | s_t = s]  while C_t ≤ d.

If the state holds C_t, and the time where episodes have a length, p is a function of the state (Chow et al. 2018). So it
can have a critic, TD errors and GAE. With its advantage A_out,

    ∇Pr[C > d] = E[Σ_t A_out(s_t, a_t)·∇log π(a_t|s_t)].

This is TQPO's gradient, ∇q = −∇F(q)/f(q) with ∇F(q) = E[I(C ≤ q)·Σ_t ∇log π] (Eqs. 7–8), at the level where the quantile
*is* the limit, with the indicator replaced by its conditional expectation step by step.

| symbol | here | |
|---|---|---|
| C_t, C_{t+1} | `Experience.episode_cost_before`, `.episode_cost` | [T, B, C] |
| lost_t = I(C_t > d), e_t | `lost`, `event` | [T, B, K] |
| p(s) | sigmoid of the head `outage`, a trunk of its own, times 1 − lost | [T, B, K] |
| A_out | `outage_advantage` | [T, B, K] GAE(1, `outage_gae_lambda`) of e; 0 once lost |
| A_cost | `cost_advantage` | [T, B, K] GAE of the discounted cost, in units of d/1.5 |
| A_c | `Targets.constraint_advantage` | −w_out·A_out − (w_dense + w_after·lost)·A_cost |
| κ | `aimed_outage` | [K] the outage probability that λ aims at |
| λ | `multiplier` | [K] |

Sources: the augmented state is that of Chow et al. (2018, arXiv 1512.01629). λ is under proportional-integral control as in
Stooke et al. (2020), here of the probability and in log λ. Ours are the event's GAE as the constraint's advantage, and:
- `PATH`: κ falls from 0.4 to ε·(1 − margin) over the first half of training and more. A policy that is held to its level
  before it can do anything learns nothing more; one that is not held at all learns to ignore the cost and does not come back.
- `dense_weight`: one event an episode teaches slowly, the plain cost at once.
- `after_weight`: a lost episode has nothing left to lose. The plain cost is why the policy does not run wild in it.
- `saturation_weight`: a mean far out on its tanh has no gradient, and a policy that drives at full throttle in every state
  does not come back, however large λ is. What lies beyond |raw| = 2 is therefore penalised.
- a learning rate that falls: events are rare, and the noise of their gradient is what keeps a policy from its best.
- `restart_share`: where a limit is crossed, it is often soon after the start, and in an episode of 1000 steps there is one
  start. So some environments begin anew every `restart_steps` steps. What is cut off there is bootstrapped by the critics, p
  too, and does not count as an episode.

With `dial` one run passes every level: κ follows `DIAL_PATH` to its end, and the policies on it, from bold to careful, are
kept (`training.choose`). It goes on faster where λ is small (`dial_haste`), since there a level costs little and the next can
be learned while the policy still tries things out. Where the task takes long to learn it begins slowly instead
(`dial_exponent` > 1): a level that is passed later earns more.

A time-out ends the episode's cost: p after an end is 0, whatever `bootstrap_timeouts` says of the reward. Mean
constraints are treated as in PPO-Lagrangian, their λ by the same law of (E[C] − d)/d.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from tqpo.algorithms import episodes, learner, ppo
from tqpo.algorithms.learner import Experience, LearnerConfig, LearnerState
from tqpo.algorithms.settings import Constraint, check_constraints, require, settings, static
from tqpo.maths import returns
from tqpo.networks import Head
from tqpo.types import Array, Key, Spec

LOG_START, LOG_LOWEST, LOG_HIGHEST = -1.0, -6.0, 4.0  # of log λ
DIAL_HIGHEST = 5.0  # the last of these with a dial
MAX_ERROR = 1.5  # of the control
SATURATED = 2.0  # of a mean before its tanh
PATH = ((0.0, 0.4), (0.15, 0.2), (0.45, 0.1), (0.6, 0.05), (0.75, 0.01), (0.85, 0.002))  # (share of training, κ)
DIAL_PATH = (*PATH[:4], (0.7, 0.02), (0.78, 0.008), (0.88, 0.003))
NOISE_HIGHEST, NOISE_FALLS = 0.25, (0.2, 0.8)  # of log std, and between which shares of the time this falls


@settings
class Config:
    learner: LearnerConfig = LearnerConfig(observe_budget=True)
    constraints: tuple[Constraint, ...] = (Constraint(),)
    iterations: int = 0  # of this training, which `PATH` has shares of; 0: unknown, κ is at its end
    outage_weight: float = 10.0  # w_out: of the advantage of crossing the limit
    outage_gae_lambda: float = 0.99  # of that advantage
    dense_weight: float = 2.0  # w_dense: of the plain cost
    after_weight: float = 0.5  # w_after: of the plain cost once the limit is crossed
    start_outage: float = 0.4  # κ, the outage that λ aims at, is at most this; 0: its level from the start
    dial: bool = static(default=False)  # κ passes every level on its way, and the policies of that path are kept
    dial_haste: float = 0.6  # how much faster a dial goes along its path where λ is small
    dial_exponent: float = 1.0  # of a dial's time in the share of its path: above 1, it is slow at first
    saturation_weight: float = 0.03  # of means far out on their tanh
    noise_fall: float = 0.0  # by how much the largest log std falls while κ does; 0: it is free
    proportional_gain: float = 1.0  # of the control of log λ
    integral_gain: float = 0.02  # of that control, per iteration


class State(NamedTuple):
    learner: LearnerState
    integral: Array  # [K] of the control
    passed: Array | None = None  # [] the share of a dial's time that has passed; None without


class Targets(NamedTuple):
    advantage: Array  # [...]
    value: Array  # [...]
    constraint_advantage: Array  # [..., K] ascends safety
    cost_value: Array  # [..., K]
    outage: Array  # [..., K] what p should be, in [0, 1]
    open: Array  # [..., K] 1 where p is trained: a constraint on a probability, not yet lost


def aimed_outage(share: Array, config: Config) -> Array:
    """κ [K] after this share of the time. Log κ joins the points of a path by lines: to ε·(1 − margin), with a dial to its end."""
    share = share**config.dial_exponent if config.dial else share
    shares, aims = (jnp.array(x) for x in zip(*(DIAL_PATH if config.dial else PATH), strict=True))
    aim = jnp.minimum(jnp.exp(jnp.interp(share, shares, jnp.log(aims))), config.start_outage)
    least = 1.0 - episodes.levels(config.constraints)
    return jnp.full_like(least, aim) if config.dial else jnp.maximum(aim, least)


def passed_share(state: State, config: Config) -> Array:
    """The share of the time that lies behind: that of training, or with a dial what of its own has passed."""
    by_time = jnp.where(config.iterations > 0, state.learner.iteration / jnp.maximum(config.iterations, 1), 1.0)
    return by_time if state.passed is None else jnp.where(config.iterations > 0, state.passed, 1.0)


def pass_on(passed: Array, multiplier: Array, config: Config) -> Array:
    """A dial's time, one iteration further."""
    return passed + (1.0 + config.dial_haste * jnp.exp(-multiplier.sum())) / jnp.maximum(config.iterations, 1)


def control_error(
    estimates: episodes.Estimates, aim: Array, constraints: tuple[Constraint, ...], dial: bool = False
) -> Array:
    """[K] how far each constraint is missed, relative to what is allowed, with a dial to what is aimed at, and bounded; 0 while no
    episode has finished."""
    limit = episodes.limits(constraints)
    allowed = jnp.stack([jnp.asarray(1.0 - c.safety, float) for c in constraints])  # ε
    by_outage = (1.0 - estimates.safety_prob - aim) / (aim if dial else jnp.maximum(allowed, aim))
    by_mean = (estimates.mean - limit) / jnp.where(limit > 0, limit, 1.0)
    error = jnp.where(episodes.bounds_quantile(constraints), by_outage, by_mean)
    usable = (estimates.n_episodes > 0) & jnp.isfinite(error)
    return jnp.where(usable, jnp.clip(error, -MAX_ERROR, MAX_ERROR), 0.0)


def log_highest(config: Config) -> float:
    """The largest log λ."""
    return DIAL_HIGHEST if config.dial else LOG_HIGHEST


def control(integral: Array, error: Array, config: Config) -> tuple[Array, Array]:
    """log λ = I + K_p·e with I ← I + K_i·e, both bounded: an integral that cannot leave the range of λ cannot wind up."""
    highest = log_highest(config)
    integral = jnp.clip(integral + config.integral_gain * error, LOG_LOWEST, highest)
    return integral, jnp.exp(jnp.clip(integral + config.proportional_gain * error, LOG_LOWEST, highest))


def outage_targets(
    lost: Array, lost_after: Array, logit: Array, next_logit: Array, ended: Array, cut: Array, gae_lambda: Array | float
) -> tuple[Array, Array]:
    """A_out, and what p should be: GAE of the event that the limit is crossed, undiscounted and cut at an episode's end."""
    event = lost_after * (1.0 - lost)
    p, next_p = jax.nn.sigmoid(logit) * (1.0 - lost), jax.nn.sigmoid(next_logit) * (1.0 - lost_after)
    advantage = returns.gae(event, p, next_p, ended, cut, 1.0, gae_lambda)
    return advantage, jnp.clip(advantage + p, 0.0, 1.0)


def constraint_advantage(outage_advantage: Array, cost_advantage: Array, lost: Array, config: Config) -> Array:
    """A_c, what λ multiplies: minus the outage's advantage and the plain cost's."""
    weight = config.dense_weight + config.after_weight * lost
    by_outage = -config.outage_weight * outage_advantage - weight * cost_advantage
    return jnp.where(episodes.bounds_quantile(config.constraints), by_outage, -cost_advantage)


def loss(outputs, log_prob, sample, targets: Targets, multiplier: Array, config: Config) -> tuple[Array, dict]:
    """−penalised surrogate + value losses + the cross-entropy of p."""
    cost_value = outputs.heads["cost_value"]
    total, parts = ppo.lagrangian_loss(outputs, log_prob, sample, targets, cost_value, multiplier, config.learner)
    entropy = optax.sigmoid_binary_cross_entropy(outputs.heads["outage"], targets.outage)
    outage = jnp.mean(jnp.sum(targets.open * entropy, -1))
    squashed = isinstance(outputs.log_std, jax.Array)  # else `raw` are the logits of a choice
    saturation = jnp.mean(jnp.sum(jax.nn.relu(jnp.abs(outputs.raw) - SATURATED) ** 2, -1)) if squashed else 0.0
    parts |= {"outage_loss": outage, "saturation": jnp.asarray(saturation)}
    return total + outage + config.saturation_weight * saturation, parts


def quietened(core: LearnerState, share: Array, config: Config) -> LearnerState:
    """The log std held below a bound that falls by `noise_fall` between two shares of the time."""
    actor = core.network.actor
    if not isinstance(actor.log_std, jax.Array):
        return core
    (begin, end), fall = NOISE_FALLS, config.noise_fall
    highest = NOISE_HIGHEST - fall * jnp.clip((share - begin) / (end - begin), 0.0, 1.0)
    log_std = jnp.where(fall > 0, jnp.minimum(actor.log_std, highest), actor.log_std)
    return core._replace(network=eqx.tree_at(lambda n: n.actor.log_std, core.network, log_std))


def check(config: Config, env: Spec) -> None:
    learner.check(config.learner)
    check_constraints(config.constraints, ("quantile", "mean"), env.cost_names)
    weights = ("outage_weight", "dense_weight", "after_weight", "saturation_weight", "noise_fall")
    gains = ("proportional_gain", "integral_gain")
    for name in (*weights, *gains, "dial_haste", "iterations"):
        require(getattr(config, name) >= 0, f"{name} = {getattr(config, name)}: not negative")
    require(config.dial_exponent > 0, f"dial_exponent = {config.dial_exponent}: positive")
    one = len(config.constraints) == 1 and config.constraints[0].kind == "quantile" and config.learner.observe_budget
    require(one or not config.dial, "dial = True: with one constraint, on a probability, and observe_budget = True")
    for name in ("outage_gae_lambda", "start_outage"):
        require(0 <= getattr(config, name) <= 1, f"{name} = {getattr(config, name)}: in [0, 1]")


def init(key: Key, env: Spec, config: Config) -> State:
    k = len(config.constraints)
    heads = {"value": Head(), "cost_value": Head((k,)), "outage": Head((k,), trunk="own")}
    core = learner.init(key, env, config.learner, heads)
    return State(core, jnp.full(k, LOG_START, float), jnp.zeros(()) if config.dial else None)


def learn(state: State, experience: Experience, config: Config) -> tuple[State, dict[str, Array]]:
    """One iteration: a batch, its advantages, λ by the outage of recent episodes, epochs of the penalised surrogate."""
    constraints, core = config.constraints, state.learner
    channels, limit = episodes.channels(constraints), episodes.limits(constraints)
    values, next_values = experience.values, experience.next_values

    # A, A_cost and A_out
    advantage, value = learner.reward_targets(experience, config.learner)
    unit = episodes.units(limit)
    cost = experience.rollout.batch.cost[..., channels] / unit
    cost_advantage, cost_value = learner.cost_targets(
        experience, cost, values["cost_value"], next_values["cost_value"], config.learner
    )
    if config.learner.normalize_advantage:  # costs of any size beside rewards of any size
        cost_advantage = cost_advantage / (cost_advantage.std((0, 1)) + 1e-8)
    lost = (experience.episode_cost_before[..., channels] > limit).astype(float)
    lost_after = (experience.episode_cost[..., channels] > limit).astype(float)
    outage_advantage, outage = outage_targets(
        lost,
        lost_after,
        values["outage"],
        next_values["outage"],
        experience.whole,
        experience.cut,
        config.outage_gae_lambda,
    )

    # λ
    estimates = episodes.estimate(core.episodes, constraints)
    aim = aimed_outage(passed_share(state, config), config)
    integral, multiplier = control(state.integral, control_error(estimates, aim, constraints, config.dial), config)
    by_constraint = constraint_advantage(outage_advantage, cost_advantage, lost, config)

    # θ and the critics
    targets = Targets(
        advantage,
        value,
        by_constraint,
        cost_value,
        outage,
        (1.0 - lost) * episodes.bounds_quantile(constraints),
    )
    metrics = episodes.metrics(core.episodes, experience.finished, constraints, estimates)
    lagrangian = functools.partial(loss, multiplier=multiplier, config=config)
    core, fitted = learner.fit(core, config.learner, lagrangian, experience, targets)
    core = quietened(core, passed_share(state, config), config)
    passed = None if state.passed is None else pass_on(state.passed, multiplier, config)
    return State(core, integral, passed), metrics | fitted | {"multiplier": multiplier, "aimed_outage": aim}
