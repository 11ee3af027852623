"""Environments with known answers. Every one has two cost channels: "cost" and "other"."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tqpo.types import Array, Key, Step

NAMES = ("cost", "other")


def result(obs, reward=0.0, cost=0.0, other=0.0, terminated=False, truncated=False) -> Step:
    return Step(
        jnp.asarray(obs, float),
        jnp.asarray(reward, float),
        jnp.stack([jnp.asarray(cost, float), jnp.asarray(other, float)]),
        jnp.asarray(terminated, bool),
        jnp.asarray(truncated, bool),
    )


class Count(NamedTuple):
    name: Array  # [] float: a random number that tells episodes apart
    t: Array  # [] int


@dataclasses.dataclass(frozen=True)
class Counter:
    """obs (name, t); reward t; cost 1, other 2 a step; an episode of `name` lasts 2, 3 or 4 steps.

    Those of 4 steps are truncated, the others terminate.
    """

    obs_size: int = 2
    action_size: int = 1
    discrete: bool = False
    cost_names: tuple[str, ...] = NAMES
    max_steps: int = 4
    min_steps: int = 2

    def reset(self, key: Key):
        state = Count(jax.random.uniform(key), jnp.zeros((), int))
        return state, self.observe(state)

    def observe(self, state: Count):
        return jnp.stack([state.name, state.t.astype(float)])

    def step(self, state: Count, action: Array):
        length = 2 + (3 * state.name).astype(int)  # 2, 3 or 4
        state = state._replace(t=state.t + 1)
        over = state.t >= length
        return state, result(self.observe(state), state.t - 1, 1.0, 2.0, over & (length < 4), over & (length == 4))


@dataclasses.dataclass(frozen=True)
class Chain:
    """obs t/n (`blind`: 0); reward 1 and cost 1 a step for n steps, then the episode terminates, or is truncated."""

    n: int = 4
    truncates: bool = False
    blind: bool = False
    obs_size: int = 1
    action_size: int = 1
    discrete: bool = False
    cost_names: tuple[str, ...] = NAMES

    @property
    def max_steps(self) -> int:
        return self.n

    @property
    def min_steps(self) -> int:
        return self.n

    def reset(self, key: Key):
        del key
        return jnp.zeros((), int), jnp.zeros(1)

    def step(self, state: Array, action: Array):
        state = state + 1
        over = state >= self.n
        obs = jnp.where(self.blind, 0.0, state[None] / self.n)
        return state, result(obs, 1.0, 1.0, 0.0, over & (not self.truncates), over & self.truncates)


@dataclasses.dataclass(frozen=True)
class Bandit:
    """One step; obs ±1; reward −(a − obs/2)², so the best action is obs/2."""

    obs_size: int = 1
    action_size: int = 1
    discrete: bool = False
    cost_names: tuple[str, ...] = NAMES
    max_steps: int = 1
    min_steps: int = 1

    def reset(self, key: Key):
        obs = jax.random.rademacher(key, (1,), float)
        return obs, obs

    def step(self, state: Array, action: Array):
        return state, result(state, -jnp.sum((action - state / 2) ** 2), terminated=True)


@dataclasses.dataclass(frozen=True)
class Choice:
    """One step; obs one-hot of three; the right choice among three is the one shown, and pays 1."""

    obs_size: int = 3
    action_size: int = 3
    discrete: bool = True
    cost_names: tuple[str, ...] = NAMES
    max_steps: int = 1
    min_steps: int = 1

    def reset(self, key: Key):
        obs = jax.nn.one_hot(jax.random.randint(key, (), 0, 3), 3)
        return obs, obs

    def step(self, state: Array, action: Array):
        paid = jnp.sum(state * action)
        return state, Step(state, paid, jnp.zeros(len(NAMES)), jnp.array(True), jnp.array(False))


class Hint(NamedTuple):
    sign: Array  # [] ±1
    t: Array  # [] int


@dataclasses.dataclass(frozen=True)
class Remember:
    """Three steps: the first observation shows a sign, the last action should have it. Needs a memory."""

    obs_size: int = 2
    action_size: int = 1
    discrete: bool = False
    cost_names: tuple[str, ...] = NAMES
    max_steps: int = 3
    min_steps: int = 3

    def reset(self, key: Key):
        sign = jax.random.rademacher(key, (), float)
        return Hint(sign, jnp.zeros((), int)), jnp.stack([sign, jnp.zeros(())])

    def step(self, state: Hint, action: Array):
        state = state._replace(t=state.t + 1)
        over = state.t >= 3
        obs = jnp.stack([jnp.zeros(()), state.t / 3])
        return state, result(obs, jnp.where(over, state.sign * action[0], 0.0), terminated=over)


@dataclasses.dataclass(frozen=True)
class TwoArms:
    """One step: a positive action takes the risky arm.

    | arm | reward | cost | mean cost | 0.9-quantile |
    |---|---|---|---|---|
    | risky | 1 | 2 with probability 0.4, else 0 | 0.8 | 2 |
    | safe | 0 | 0 | 0 | 0 |

    With the limit 1, E[C] ≤ 1 admits the risky arm; Pr[C ≤ 1] ≥ 0.9 allows it in at most a quarter of the episodes.
    """

    obs_size: int = 1
    action_size: int = 1
    discrete: bool = False
    cost_names: tuple[str, ...] = NAMES
    max_steps: int = 1
    min_steps: int = 1
    limit: float = 1.0
    outage: float = 0.4

    def reset(self, key: Key):
        return key, jnp.ones(1)

    def step(self, state: Key, action: Array):
        risky = action[0] > 0
        unlucky = jax.random.uniform(state) < self.outage
        return state, result(jnp.ones(1), risky, 2.0 * (risky & unlucky), risky, terminated=True)


@dataclasses.dataclass(frozen=True)
class Poison:
    """Reward is not a number from a batch's middle on, in the environment's `bad`-th step and after it."""

    bad: int = 20
    obs_size: int = 1
    action_size: int = 1
    discrete: bool = False
    cost_names: tuple[str, ...] = NAMES
    max_steps: int = 10_000
    min_steps: int = 10_000
    until: int = 10_000

    def reset(self, key: Key):
        del key
        return jnp.zeros((), int), jnp.zeros(1)

    def step(self, state: Array, action: Array):
        bad = (state >= self.bad) & (state < self.until)
        reward = jnp.where(bad, jnp.nan, action[0])
        return state + 1, result(action, reward, 1.0)


@dataclasses.dataclass(frozen=True)
class Gambles:
    """Ten steps: a positive action gambles, for reward 1 and, with probability ½, cost 1. There is nothing to see.

    With the limit 2 at 95 %: who sees the budget gambles until the second cost, for 4 gambles less the few that ten steps
    cut off, and never exceeds 2. Who does not see it can only gamble with a fixed probability p, and Pr[Bin(10, p/2) ≤ 2]
    ≥ 0.95 allows 10·p = 1.75.
    """

    obs_size: int = 1
    action_size: int = 1
    discrete: bool = False
    cost_names: tuple[str, ...] = NAMES
    max_steps: int = 10
    min_steps: int = 10

    def reset(self, key: Key):
        return (key, jnp.zeros((), int)), jnp.ones(1)

    def step(self, state, action: Array):
        key, t = state
        unlucky = jax.random.uniform(jax.random.fold_in(key, t)) < 0.5
        gamble = action[0] > 0
        cost = 1.0 * (gamble & unlucky)
        return (key, t + 1), result(jnp.ones(1), gamble, cost, cost, False, t + 1 >= self.max_steps)
