"""The budget as part of what a policy sees: how much of each cost limit is left, and how much time.

The best action under Pr[C ≤ d] ≥ 1 − ε depends on the episode's cost so far and the time left, so both belong to the
state. Per constraint with limit d and cost so far C:

| feature | value | range |
|---|---|---|
| remaining | (d − C)/d; 0 or −1 where d = 0 | −1…1 |
| lost | 1 where C > d | 0, 1 |
| nearness | 1 − 4·remaining: the last quarter of the budget, magnified | 0…1 |

and once, where the episode's length T is known, `time_left` = 1 − t/T. Costs and limit in other units give the same
features.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tqpo.types import Array, Env, Key, PyTree, Spec, Step, choices, may_end, obs_shape

FEATURES = ("remaining", "lost", "nearness")  # of each constraint
NEAR = 0.25  # share of the budget over which nearness rises


@dataclass(frozen=True)
class Budget:
    """The cost channel and limit of each constraint on a probability, and the episode's length if it is known."""

    channels: tuple[int, ...]  # [K]
    limits: tuple[float, ...]  # [K] d
    horizon: int | None = None  # T, steps

    @staticmethod
    def of(description: Mapping[str, Any]) -> "Budget":
        """From plain data, as `policy.json` keeps it."""
        return Budget(tuple(description["channels"]), tuple(description["limits"]), description["horizon"])

    @property
    def size(self) -> int:
        return len(FEATURES) * len(self.limits) + (self.horizon is not None)

    def names(self, cost_names: tuple[str, ...]) -> tuple[str, ...]:
        """The name of each feature, in order."""
        own = tuple(f"{cost_names[channel]}_{feature}" for channel in self.channels for feature in FEATURES)
        return own + ("time_left",) * (self.horizon is not None)

    def features(self, spent: Any, t: Any) -> Any:
        """[..., size] of the cost so far `spent` [..., K] after t [...] steps, in NumPy or in JAX as `spent` is."""
        xp: Any = jnp if isinstance(spent, jax.Array) else np
        limits = xp.asarray(self.limits, spent.dtype)
        lost = (spent > limits).astype(spent.dtype)
        share = (limits - spent) / xp.where(limits > 0, limits, 1)
        remaining = xp.clip(xp.where(limits > 0, share, -lost), -1, 1)
        nearness = xp.clip(1 - remaining / NEAR, 0, 1)
        parts = [xp.stack([remaining, lost, nearness], -1).reshape(*spent.shape[:-1], -1)]  # [..., K·3]
        if self.horizon is not None:
            left = 1 - xp.asarray(t, spent.dtype) / self.horizon
            parts.append(xp.broadcast_to(left[..., None], (*spent.shape[:-1], 1)))
        return xp.concatenate(parts, -1)


class BudgetState(NamedTuple):
    """An environment's state with what its episode has cost so far."""

    inner: PyTree
    spent: Array  # [K]
    t: Array  # [] int


@dataclass(frozen=True)
class Budgeted:
    """A JAX environment that shows its budget: its observation with the features appended, all else unchanged.

    With `ends` an episode also ends as soon as a limit is reached: for costs of at most 1 a step, which then never exceed it.
    """

    unwrapped: Env
    budget: Budget
    ends: bool = False

    @property
    def obs_size(self) -> int:
        return self.unwrapped.obs_size + self.budget.size

    @property
    def action_size(self) -> int:
        return self.unwrapped.action_size

    @property
    def discrete(self) -> bool:
        return self.unwrapped.discrete

    @property
    def obs_shape(self) -> tuple[int, ...]:
        return obs_shape(self.unwrapped)

    @property
    def choices(self) -> tuple[int, ...]:
        return choices(self.unwrapped)

    @property
    def cost_names(self) -> tuple[str, ...]:
        return self.unwrapped.cost_names

    @property
    def max_steps(self) -> int:
        return self.unwrapped.max_steps

    @property
    def min_steps(self) -> int:
        soonest = max(1, math.ceil(min(self.budget.limits))) if self.ends else self.unwrapped.min_steps
        return min(soonest, self.unwrapped.min_steps)

    def may_end(self, state: BudgetState, steps: int) -> Array | None:
        return None if self.ends else may_end(self.unwrapped, state.inner, steps)

    def reset(self, key: Key) -> tuple[BudgetState, Array]:
        inner, obs = self.unwrapped.reset(key)
        state = BudgetState(inner, jnp.zeros(len(self.budget.limits)), jnp.zeros((), int))
        return state, self._observe(state, obs)

    def step(self, state: BudgetState, action: Array) -> tuple[BudgetState, Step]:
        inner, result = self.unwrapped.step(state.inner, action)
        cost = result.cost[jnp.array(self.budget.channels, int)]
        state = BudgetState(inner, state.spent + cost, state.t + 1)
        reached = self.ends & jnp.any(state.spent >= jnp.array(self.budget.limits))
        return state, result._replace(obs=self._observe(state, result.obs), terminated=result.terminated | reached)

    def _observe(self, state: BudgetState, obs: Array) -> Array:
        return jnp.concatenate([obs, self.budget.features(state.spent, state.t)])


class BudgetedTwin:
    """The same for an environment in Python, `reset(key)` and `step(action)`, such as the MuJoCo twin."""

    def __init__(self, make_env: Callable[[], Any], budget: Budget) -> None:
        self.env, self.budget = make_env(), budget

    def reset(self, key: Key) -> np.ndarray:
        self.spent, self.t = np.zeros(len(self.budget.limits)), 0
        return self._observe(self.env.reset(key))

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, Any, Any, Any]:
        obs, reward, cost, terminated, truncated = self.env.step(action)
        self.spent, self.t = self.spent + np.asarray(cost)[np.array(self.budget.channels, int)], self.t + 1
        return self._observe(obs), reward, cost, terminated, truncated

    def _observe(self, obs: np.ndarray) -> np.ndarray:
        return np.concatenate([obs, self.budget.features(self.spent, self.t)])


def unwrapped(env: Spec) -> Spec:
    """The environment itself, without its budget."""
    return env.unwrapped if isinstance(env, Budgeted) else env
