"""A courier on twenty legs of a trip: a pure JAX environment with two costs, and a template for your own.

    tqpo check-env courier:Courier
    tqpo train courier:Courier --constraint damage:limit=10,safety=0.9 --constraint energy:mean=10

On each leg the courier chooses how hard to drive and how much of the shortcut to take. Both pay, and both cost:

| | range | reward | cost |
|---|---|---|---|
| power | 0 … 1 | power·(1 + shortcut) | energy: 2·power² |
| shortcut | 0 … 1 | | damage: 10 with probability 0.3·shortcut·traffic |

| observation | meaning | range |
|---|---|---|
| 0 | legs behind, as a share | 0 … 1 |
| 1 | traffic on this leg | 0 … 1 |
| 2 | accidents so far, a tenth of the damage | 0 … 20 |

The best courier drives flat out through every shortcut: energy 40, damage about 30. A bound on damage alone leaves
energy at 40; a bound on mean energy alone leaves damage at 30. It takes both.

An environment is a frozen dataclass (it must be hashable) with the members of `tqpo.types.Env`. `reset` and `step` are
pure functions of one copy: batches come from `vmap`, randomness from a key inside the state, and nobody resets in
`step`.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tqpo.types import Array, Key, Step


class State(NamedTuple):
    """All that a step needs; every field a JAX array."""

    key: Key
    leg: Array  # [] int
    traffic: Array  # [] of the leg ahead
    accidents: Array  # [] so far


@dataclasses.dataclass(frozen=True)
class Courier:
    legs: int = 20
    hazard: float = 0.3  # probability of an accident on a full shortcut in full traffic

    obs_size: int = 3
    action_size: int = 2  # each in [-1, 1]
    discrete: bool = False
    cost_names: tuple[str, ...] = ("cost", "damage", "energy")  # the first is always "cost": here the damage too

    @property
    def max_steps(self) -> int:
        return self.legs

    @property
    def min_steps(self) -> int:
        """No episode is shorter."""
        return self.legs

    def reset(self, key: Key) -> tuple[State, Array]:
        key, traffic_key = jax.random.split(key)
        state = State(key, jnp.zeros((), int), jax.random.uniform(traffic_key), jnp.zeros(()))
        return state, self.observe(state)

    def observe(self, state: State) -> Array:
        return jnp.stack([state.leg / self.legs, state.traffic, state.accidents])

    def step(self, state: State, action: Array) -> tuple[State, Step]:
        key, traffic_key, damage_key = jax.random.split(state.key, 3)
        power, shortcut = (action + 1) / 2
        accident = (jax.random.uniform(damage_key) < self.hazard * shortcut * state.traffic).astype(float)
        damage, energy = 10.0 * accident, 2.0 * power**2
        state = State(key, state.leg + 1, jax.random.uniform(traffic_key), state.accidents + accident)
        return state, Step(
            obs=self.observe(state),
            reward=power * (1 + shortcut),
            cost=jnp.stack([damage, damage, energy]),
            terminated=state.leg >= self.legs,
            truncated=jnp.array(False),
        )
