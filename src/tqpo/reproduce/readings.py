"""Another reading of the paper's R and Pr, which does not say how it evaluated: discounted, as its C = Σγᵗc is."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from tqpo.evaluation.episodes import ActorPolicy, run_episodes
from tqpo.reproduce.cells import Plan
from tqpo.reproduce.paper import Cell
from tqpo.training.evaluations import evaluation_key
from tqpo.types import Array, Env, PyTree, Step


@dataclasses.dataclass(frozen=True)
class Discounted:
    """A task of ours whose costs are γᵗr and γᵗc. What a policy sees is unchanged."""

    task: Env
    discount: float
    cost_names = ("return", "cost")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def step(self, state: Any, action: Array) -> tuple[PyTree, Step]:
        after, step = self.task.step(state, action)
        terms = jnp.stack([step.reward, step.cost[0]])
        return after, step._replace(cost=self.discount**state.steps * terms)


def discounted(plan: Plan, cell: Cell, policies: dict[int, ActorPolicy]) -> dict[str, list[float]]:
    """Discounted return and Pr[discounted cost ≤ d] of each seed's fresh episodes."""
    prepared = plan.prepare(cell)
    env: Any = Discounted(prepared.env, float(prepared.config.learner.discount))  # pyright: ignore[reportArgumentType]
    limit, found = float(prepared.config.constraints[0].limit), {"return": [], "safety_prob": []}
    for seed, policy in policies.items():
        sums = run_episodes(env, policy, evaluation_key(seed), plan.episodes).costs  # [N, 2]
        found["return"].append(float(sums[:, 0].mean()))
        found["safety_prob"].append(float(np.mean(sums[:, 1] <= limit)))
    return found
