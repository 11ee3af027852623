"""PPO-Lagrangian: PPO under mean constraints E[C] ≤ d (Ray et al. 2019; Stooke et al. 2020, integral term only).

| paper | here | |
|---|---|---|
| λ | `dual.multiplier` | [K] |
| J_C | `dual.tracked` | [K] mean cost of the last `episode_window` episodes |
| V_C | head `cost_value` | [K], in units of cost/cost_scale |
| A_C | `Targets.constraint_advantage` | [T, B, K], the sign that descends cost: −GAE |
| K_I | `dual.gain` | |

`safety` of a constraint is the level at which its quantile is reported; nothing here acts on it.

Departures from Stooke et al.: no proportional and no derivative term.
Departures from the released code (rlpyt `cppo_pid`): J_C is the mean over a window of episodes, not over the last batch,
so that batches which finish few episodes or none are no special case.
"""

import functools
from typing import NamedTuple

from tqpo.algorithms import dual, episodes, learner, ppo
from tqpo.algorithms.dual import DualConfig, DualState, Tilt
from tqpo.algorithms.learner import Experience, LearnerConfig, LearnerState
from tqpo.algorithms.settings import Constraint, check_constraints, settings
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
    constraint_advantage: Array  # [..., K] ascends safety
    cost_value: Array  # [..., K]


def loss(outputs, log_prob, sample, targets: Targets, multiplier: Array, config: Config) -> tuple[Array, dict]:
    """−penalised surrogate + value losses."""
    cost_value = outputs.heads["cost_value"]
    return ppo.lagrangian_loss(outputs, log_prob, sample, targets, cost_value, multiplier, config.learner)


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
    cost = dual.scaled_costs(experience.rollout.batch.cost, constraints, config.dual)
    cost_advantage, cost_value = learner.cost_targets(
        experience,
        cost,
        experience.values["cost_value"],
        experience.next_values["cost_value"],
        config.learner,
    )

    estimates = episodes.estimate(core.episodes, constraints)
    duals, dual_metrics = dual.step(state.dual, estimates, constraints, config.dual, core.iteration)

    targets = Targets(advantage, value, -cost_advantage, cost_value)
    metrics = episodes.metrics(core.episodes, experience.finished, constraints, estimates) | dual_metrics
    lagrangian = functools.partial(loss, multiplier=duals.multiplier, config=config)
    core, fitted = learner.fit(core, config.learner, lagrangian, experience, targets)
    return State(core, duals), metrics | fitted
