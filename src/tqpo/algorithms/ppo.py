"""PPO (Schulman et al. 2017), without a constraint: the reference that shows what safety costs.

| paper | here | |
|---|---|---|
| θ, φ | `learner.network` | policy and value weights |
| A | `Targets.advantage` | [T, B] GAE(γ, λ_GAE) |
| V_φ | head `value` | |
| r_clip | `learner.clip` | |

Constraints are only reported: episode-cost quantile, mean, safety probability.

The clipped surrogate and the value loss here are the ones that every other algorithm of this package uses.

Departures from the paper (Schulman et al.): no entropy bonus and no advantage normalisation by default, as in the
released code of TQPO.
Departures from the released code: rlpyt cuts GAE at every 100-step segment and bootstraps there; here the sum runs to the
episode's or the batch's end ((γλ)¹⁰⁰ ≈ 0.017 of a step's error is what that changes).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from tqpo.algorithms import episodes, learner
from tqpo.algorithms.learner import Experience, LearnerConfig, LearnerState
from tqpo.algorithms.settings import Constraint, check_constraints, settings
from tqpo.maths import distribution
from tqpo.networks import Head, Outputs
from tqpo.types import Array, Key, Spec


@settings
class Config:
    learner: LearnerConfig = LearnerConfig()
    constraints: tuple[Constraint, ...] = (Constraint(),)  # reported, not enforced


class State(NamedTuple):
    learner: LearnerState


class Targets(NamedTuple):
    advantage: Array  # [...]
    value: Array  # [...]


def surrogate(ratio: Array, advantage: Array, clip: ArrayLike) -> Array:
    """E[min(ρA, clip(ρ, 1 ± r_clip)A)], to be maximised (TQPO Eq. 15 without its minus)."""
    return jnp.mean(jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage))


def penalised(reward: Array, constraints: Array, multiplier: Array) -> Array:
    """(A + Σ_k λ_k·A_k)/(1 + Σ_k λ_k) of [...] and [..., K], with A_k ascending safety.

    This is TQPO's V − λq (Eq. 10) divided by 1 + λ as in the released code, so that a large λ turns the gradient rather than
    lengthening it.
    """
    return (reward + (constraints * multiplier).sum(-1)) / (1 + multiplier.sum())


def penalised_surrogate(
    ratio: Array, advantage: Array, constraint_advantage: Array, multiplier: Array, clip: ArrayLike
) -> tuple[Array, dict]:
    """S + Σ_k λ_k·S_k over 1 + Σ_k λ_k, with S the clipped surrogate of each advantage, to be maximised (TQPO Eqs. 10, 15).

    `constraint_advantage` [..., K] ascends safety. As released, each term is clipped by itself: a ratio that the reward
    has pushed out of the clip range is still pushed back by a constraint. The paper's Eqs. 15–16 clip the sum.
    """
    reward = surrogate(ratio, advantage, clip)
    constraints = jax.vmap(surrogate, in_axes=(None, -1, None))(ratio, constraint_advantage, clip)  # [K]
    parts = {"policy_loss": -reward, "constraint_loss": -constraints}
    return penalised(reward, constraints, multiplier), parts


def value_loss(value: Array, target: Array) -> Array:
    """½·E[(V − target)²]."""
    return 0.5 * jnp.mean((value - target) ** 2)


def cost_value_loss(value: Array, target: Array) -> Array:
    """½·E[Σ_k (V_k − target_k)²] of values [..., K]."""
    return 0.5 * jnp.mean(jnp.sum((value - target) ** 2, -1))


def reward_loss(outputs: Outputs, value_target: Array, config: LearnerConfig) -> tuple[Array, dict]:
    """Value loss of the reward, less the entropy bonus: the part of the loss that no constraint changes."""
    value = value_loss(outputs.heads["value"], value_target)
    entropy = jnp.mean(distribution.entropy(outputs.mean, outputs.log_std))
    return config.value_coef * value - config.entropy_coef * entropy, {"value_loss": value, "entropy": entropy}


def lagrangian_loss(outputs, log_prob, sample, targets, cost_value, multiplier, config: LearnerConfig):
    """−penalised surrogate + value losses of reward and cost: what every algorithm with a multiplier minimises.

    `targets` has `advantage`, `value`, `constraint_advantage` and `cost_value`; `cost_value` [..., K] is what the network says.
    """
    ratio = jnp.exp(log_prob - sample.log_prob)
    objective, parts = penalised_surrogate(
        ratio, targets.advantage, targets.constraint_advantage, multiplier, config.clip
    )
    rest, value_parts = reward_loss(outputs, targets.value, config)
    cost_loss = cost_value_loss(cost_value, targets.cost_value)
    return rest + config.cost_value_coef * cost_loss - objective, parts | value_parts | {"cost_value_loss": cost_loss}


def loss(outputs, log_prob, sample, targets: Targets, config: LearnerConfig) -> tuple[Array, dict]:
    """−surrogate + value loss."""
    ratio = jnp.exp(log_prob - sample.log_prob)
    objective = surrogate(ratio, targets.advantage, config.clip)
    rest, parts = reward_loss(outputs, targets.value, config)
    return rest - objective, parts | {"policy_loss": -objective}


def check(config: Config, env: Spec) -> None:
    learner.check(config.learner)
    check_constraints(config.constraints, ("mean", "quantile"), env.cost_names)


def init(key: Key, env: Spec, config: Config) -> State:
    return State(learner.init(key, env, config.learner, {"value": Head()}))


def learn(state: State, experience: Experience, config: Config) -> tuple[State, dict[str, Array]]:
    """One iteration: a batch, its advantages, epochs of the clipped surrogate."""
    core = state.learner
    targets = Targets(*learner.reward_targets(experience, config.learner))
    estimates = episodes.estimate(core.episodes, config.constraints)
    metrics = episodes.metrics(core.episodes, experience.finished, config.constraints, estimates)

    unconstrained = functools.partial(loss, config=config.learner)
    core, fitted = learner.fit(core, config.learner, unconstrained, experience, targets)
    return State(core), metrics | fitted
