"""QCPO: Quantile-Constrained Policy Optimization (Jung, Cho, Park, Sung, NeurIPS 2022).

The distribution of the cost to go is learned: 25 quantiles by quantile-Huber regression and, for its upper tail, a Weibull
fitted to the quantiles above 0.7. The policy descends the quantile at the target level by its GAE, each step weighted
by how the tail's density changes from one state to the next.

| paper | here | |
|---|---|---|
| q_τ(s), τ_i = (i + ½)/25 | head `quantiles` | [K, 25], in cost/cost_scale, exp(linear) |
| α, β (Weibull shape, scale) | heads `shape`, `scale` | [K], 4·sigmoid and exp |
| target level 1 − ε | `level_index` | [K] index ⌊25(1−ε) − ½⌋ into the sorted quantiles |
| Ã_{1−ε} | `Targets.constraint_advantage` | [T, B, K], ascends safety |
| λ | `dual.multiplier` | [K], by the episode-cost quantile; λ_0 = 0 |

A mean constraint uses the GAE of the mean of the quantiles instead. With `dual.tilt` it is TQPO's ablation "QCPO (tilt)".

Departures from the paper: those of its authors' code (github.com/wyjung0625/QCPO) — the density ratio is normalised by 5
standard deviations over the batch, clipped to ±½ and used as 1 + log ratio; the quantile GAE uses only the target
level. Departures from that code: one quantile convention for the episode cost; GAE runs to the end of the episode or
batch (see `ppo`).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tqpo.algorithms import dual, episodes, learner, ppo, tqpo
from tqpo.algorithms.dual import DualConfig, DualState, Tilt
from tqpo.algorithms.learner import Experience, LearnerConfig, LearnerState
from tqpo.algorithms.settings import Constraint, check_constraints, settings
from tqpo.maths import quantile, weibull
from tqpo.networks import Head
from tqpo.types import Array, Key, Spec

N_QUANTILES = 25
TAIL_FROM = 0.7  # the Weibull is fitted to the quantiles from this level on


@settings
class Config:
    learner: LearnerConfig = LearnerConfig()
    constraints: tuple[Constraint, ...] = (Constraint(),)
    dual: DualConfig = DualConfig(initial_multiplier=0.0, tilt=Tilt.NONE, max_step=float("inf"))


class State(NamedTuple):
    learner: LearnerState
    dual: DualState


class Targets(NamedTuple):
    advantage: Array  # [...]
    value: Array  # [...]
    constraint_advantage: Array  # [..., K]
    cost_value: Array  # [..., K] return, for the mean of the quantiles
    quantiles: Array  # [..., K, N] one-step targets c + γ·q_τ(s')


def quantile_levels(n: int = N_QUANTILES) -> Array:
    """τ_i = (i + ½)/n."""
    return (jnp.arange(n) + 0.5) / n


def level_index(safety: Array, n: int = N_QUANTILES) -> Array:
    """The quantile that stands for level 1 − ε: ⌊n(1−ε) − ½⌋, kept inside; 0.9 counts as 0.9 in float32 too."""
    return jnp.clip(jnp.floor(n * safety - 0.5 + 1e-4), 0, n - 1).astype(int)


def at_level(quantiles: Array, index: Array) -> Array:
    """The quantile [..., K] at each constraint's level, of the sorted quantiles [..., K, N]."""
    ordered = jnp.sort(quantiles, -1)
    index = jnp.broadcast_to(index[:, None], (*ordered.shape[:-1], 1))
    return jnp.take_along_axis(ordered, index, -1)[..., 0]


def quantile_advantage(experience: learner.Experience, cost: Array, config: Config) -> Array:
    """Ã = w·GAE of the quantile at level 1 − ε, w = 1 + normalised log ratio of the tail densities, [T, B, K]."""
    values, next_values = experience.values, experience.next_values
    index = level_index(episodes.levels(config.constraints))
    now, later = (at_level(v["quantiles"], index) for v in (values, next_values))
    advantage, _ = learner.cost_targets(experience, cost, now, later, config.learner)
    log_ratio = weibull.log_density_ratio(
        now,
        cost,
        (values["scale"], values["shape"]),
        (next_values["scale"], next_values["shape"]),
        config.learner.cost_discount,
    )
    weigh = jax.vmap(weibull.density_ratio_weight, in_axes=(-1, None), out_axes=-1)
    return weigh(log_ratio, experience.ended) * advantage


def quantile_targets(experience: learner.Experience, cost: Array, config: Config) -> Array:
    """y = c + γ·q_τ(s'), and c alone where nothing follows, [T, B, K, N]."""
    follows = ~experience.ended[..., None, None]
    return cost[..., None] + config.learner.cost_discount * follows * experience.next_values["quantiles"]


def loss(outputs, log_prob, sample, targets: Targets, multiplier: Array, config: Config) -> tuple[Array, dict]:
    """−penalised surrogate + value losses + quantile-Huber loss + the Weibull tail's loss."""
    heads, taus = outputs.heads, quantile_levels()
    cost_value = heads["quantiles"].mean(-1)
    total, parts = ppo.lagrangian_loss(outputs, log_prob, sample, targets, cost_value, multiplier, config.learner)
    huber = quantile.quantile_huber_loss(heads["quantiles"], targets.quantiles, taus)
    tail = weibull.tail_loss(heads["scale"], heads["shape"], heads["quantiles"], taus, TAIL_FROM)
    return total + huber + tail, parts | {"quantile_loss": huber, "tail_loss": tail}


def check(config: Config, env: Spec) -> None:
    learner.check(config.learner)
    dual.check(config.dual)
    check_constraints(config.constraints, ("quantile", "mean"), env.cost_names)


def init(key: Key, env: Spec, config: Config) -> State:
    k = len(config.constraints)
    heads = {
        "value": Head(),
        "quantiles": Head((k, N_QUANTILES), "exp"),
        "shape": Head((k,), "4sigmoid"),
        "scale": Head((k,), "exp"),
    }
    return State(learner.init(key, env, config.learner, heads), dual.init(config.dual, k))


def learn(state: State, experience: Experience, config: Config) -> tuple[State, dict[str, Array]]:
    """One iteration: a batch, λ by the episode-cost quantile, epochs of policy, quantiles and tail."""
    constraints = config.constraints
    core = state.learner
    advantage, value = learner.reward_targets(experience, config.learner)
    cost = dual.scaled_costs(experience.rollout.batch.cost, constraints, config.dual)
    mean, next_mean = (v["quantiles"].mean(-1) for v in (experience.values, experience.next_values))
    mean_advantage, cost_return = learner.cost_targets(experience, cost, mean, next_mean, config.learner)
    tail_advantage = quantile_advantage(experience, cost, config)
    targets = Targets(
        advantage,
        value,
        -jnp.where(episodes.bounds_quantile(constraints), tail_advantage, mean_advantage),
        cost_return,
        quantile_targets(experience, cost, config),
    )

    estimates = episodes.estimate(core.episodes, constraints)
    duals, dual_metrics = dual.step(state.dual, estimates, constraints, config.dual, core.iteration, tqpo.tilt)

    metrics = episodes.metrics(core.episodes, experience.finished, constraints, estimates) | dual_metrics
    lagrangian = functools.partial(loss, multiplier=duals.multiplier, config=config)
    core, fitted = learner.fit(core, config.learner, lagrangian, experience, targets)
    return State(core, duals), metrics | fitted
