"""PPO-Lagrangian: PPO under mean constraints E[C] ≤ d (Ray et al. 2019; Stooke et al. 2020, integral term only).

| paper | here | |
|---|---|---|
| λ | `dual.multiplier` | [K] |
| J_C | `dual.tracked` | [K] mean cost of the last `episode_window` episodes |
| V_C | head `cost_value` | [K], in units of cost/cost_scale |
| A_C | `Targets.cost_advantage` | [T, B, K], the sign that descends cost: −GAE |
| K_I | `dual.gain` | |

`safety` of a constraint is the level at which its quantile is reported; nothing here acts on it.

Departures from Stooke et al.: no proportional and no derivative term.
Departures from the released code (rlpyt `cppo_pid`): J_C is the mean over a window of episodes, not over the last batch,
so that batches which finish few episodes or none are no special case.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp

from tqpo.algorithms import dual, episodes, learner, ppo
from tqpo.algorithms.dual import DualConfig, DualState
from tqpo.algorithms.learner import Experience, LearnerConfig, LearnerState
from tqpo.algorithms.settings import Constraint, check_constraints, settings
from tqpo.maths.multiplier import Tilt
from tqpo.networks import Head
from tqpo.types import Array, Key, Spec


@settings
class Config:
    learner: LearnerConfig = LearnerConfig()
    constraints: tuple[Constraint, ...] = (Constraint(kind="mean"),)
    dual: DualConfig = DualConfig(initial_multiplier=0.0, tilt=Tilt.NONE)


class State(NamedTuple):
    learner: LearnerState
    dual: DualState


class Targets(NamedTuple):
    advantage: Array  # [...]
    value: Array  # [...]
    cost_advantage: Array  # [..., K] ascends safety
    cost_value: Array  # [..., K]


def loss(outputs, log_prob, sample, targets: Targets, lam: Array, config: Config) -> tuple[Array, dict]:
    """−penalised surrogate + value losses."""
    ratio = jnp.exp(log_prob - sample.log_prob)
    objective, parts = ppo.penalised_surrogate(
        ratio, targets.advantage, targets.cost_advantage, lam, config.learner.clip
    )
    rest, value_parts = ppo.reward_loss(outputs, targets.value, config.learner)
    cost_value = ppo.cost_value_loss(outputs.heads["cost_value"], targets.cost_value)
    total = rest + config.learner.cost_value_coef * cost_value - objective
    return total, parts | value_parts | {"cost_value_loss": cost_value}


def check(config: Config, env: Spec) -> None:
    learner.check(config.learner)
    dual.check(config.dual)
    check_constraints(config.constraints, ("mean",), env.cost_names)


def init(key: Key, env: Spec, config: Config) -> State:
    k = len(config.constraints)
    heads = {"value": Head(), "cost_value": Head((k,))}
    return State(learner.init(key, env, config.learner, heads), dual.init(config.dual, k))


def learn(state: State, experience: Experience, config: Config) -> tuple[State, dict[str, Array]]:
    """One iteration: a batch, λ by its mean episode cost, epochs of the penalised surrogate."""
    constraints = config.constraints
    core = state.learner
    advantage, value = learner.reward_targets(experience, config.learner)
    cost = experience.rollout.batch.cost[..., episodes.channels(constraints)] / config.dual.cost_scale
    cost_advantage, cost_value = learner.cost_targets(
        experience,
        cost,
        experience.values["cost_value"],
        experience.next_values["cost_value"],
        config.learner,
    )

    found = episodes.estimate(core.episodes, constraints)
    duals, dual_metrics = dual.step(state.dual, found, constraints, config.dual, core.iteration)

    targets = Targets(advantage, value, -cost_advantage, cost_value)
    metrics = episodes.metrics(core.episodes, experience.finished, constraints, found) | dual_metrics
    lagrangian = functools.partial(loss, lam=duals.multiplier, config=config)
    core, fitted = learner.fit(core, config.learner, lagrangian, experience, targets)
    return State(core, duals), metrics | fitted
