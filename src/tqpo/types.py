"""The contracts between modules: what a step gives, what an environment offers, what a rollout collects."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

Array = jax.Array
Key = jax.Array  # a typed PRNG key, `jax.random.key(seed)`
PyTree = Any
UNLIMITED = 2**31 - 1  # steps of an episode that nobody limits


class Step(NamedTuple):
    """What one environment step gives. `obs` is the observation before any reset."""

    obs: Array  # [obs_size]
    reward: Array  # []
    cost: Array  # [n_costs]; channel 0 is the indicator that the limit applies to
    terminated: Array  # [] bool: the episode ended by itself
    truncated: Array  # [] bool: the episode ran into max_steps


class Spec(Protocol):
    """What a learner must know of an environment, wherever it runs."""

    @property
    def obs_size(self) -> int: ...

    @property
    def action_size(self) -> int:
        """Actions live in [-1, 1]^action_size; of a discrete environment they are one-hot."""
        ...

    @property
    def discrete(self) -> bool: ...

    @property
    def cost_names(self) -> tuple[str, ...]:
        """Names of the cost channels; the first is "cost", the indicator that the limit applies to."""
        ...

    @property
    def max_steps(self) -> int: ...

    @property
    def min_steps(self) -> int:
        """No episode ends sooner; sizes the pool of fresh starts of a rollout."""
        ...


def obs_shape(env: Spec) -> tuple[int, ...]:
    """The shape of an observation before it was flattened, where an environment says so: of a picture [H, W, C]."""
    return tuple(getattr(env, "obs_shape", (env.obs_size,)))


def choices(env: Spec) -> tuple[int, ...]:
    """How many there are to choose from in each of several discrete actions; empty of all others."""
    return tuple(getattr(env, "choices", ()))


@runtime_checkable
class Env(Spec, Protocol):
    """One copy of an environment as two pure functions; batches come from `vmap`."""

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        """A fresh episode: state and first observation."""
        ...

    def step(self, state: PyTree, action: Array) -> tuple[PyTree, Step]:
        """One step; randomness comes from a key inside `state`."""
        ...


def may_end(env: Env, state: PyTree, steps: int) -> Array | None:
    """Whether an episode may end within so many steps; None where an environment does not say."""
    tell = getattr(env, "may_end", None)
    return None if tell is None else tell(state, steps)


class Batch(NamedTuple):
    """A rollout, time-major `[T, B, …]`."""

    obs: Array  # [T, B, O] what the policy saw (not normalised)
    action: Array  # [T, B, A] what it did
    log_prob: Array  # [T, B] of that action under the acting policy
    reward: Array  # [T, B]
    cost: Array  # [T, B, C]
    terminated: Array  # [T, B] bool
    truncated: Array  # [T, B] bool
    next_obs: Array  # [T, B, O] before any reset
