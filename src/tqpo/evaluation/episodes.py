"""A frozen policy in fresh episodes of a JAX environment.

Episode i draws its start and its noise from the same keys whatever the batch size. Every episode that is begun is
counted, so that long ones are not left out.
"""

import collections
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tqpo import networks
from tqpo.envs.budget import Budgeted
from tqpo.errors import ConfigError
from tqpo.maths import distribution, normalize
from tqpo.types import Array, Env, Key, PyTree, Step

Progress = Callable[[int, int], Any]  # episodes done, episodes in all


class Policy(Protocol):
    """Acts in one environment. One that reads the previous reward also has `feedback(carry, reward) -> carry`."""

    def init(self) -> PyTree:
        """What it remembers at the start of an episode."""
        ...

    def act(self, obs: Array, carry: PyTree, key: Key, deterministic: bool) -> tuple[Array, PyTree]:
        """An action, which the caller clips to [-1, 1], and what it remembers after it."""
        ...


class ActorPolicy(eqx.Module):
    """A network's actor with its frozen normaliser."""

    actor: networks.Actor
    moments: normalize.Moments

    def init(self) -> PyTree:
        return networks.initial_memory(self.actor, ()), jnp.zeros_like(self.actor.mean.bias), jnp.zeros(())

    def act(self, obs: Array, carry: PyTree, key: Key, deterministic: bool) -> tuple[Array, PyTree]:
        memory, prev_action, prev_reward = carry
        x = normalize.normalize(self.moments, obs)
        mean, log_std, memory, _ = networks.act(self.actor, x, memory, prev_action, prev_reward)
        noise = jnp.zeros_like(mean) if deterministic else jax.random.normal(key, mean.shape, mean.dtype)
        action = distribution.sample(mean, log_std, noise)
        return action, (memory, action, prev_reward)

    def feedback(self, carry: PyTree, reward: Array) -> PyTree:
        return *carry[:2], reward


class Dial(eqx.Module):
    """The policies of one training on its way from bold to safe: each is a position, from 0 on."""

    policies: ActorPolicy  # [N, …]

    @property
    def size(self) -> int:
        return self.policies.moments.mean.shape[0]

    def at(self, position: Array | int) -> ActorPolicy:
        return jax.tree.map(lambda x: x[position], self.policies)


class Totals(NamedTuple):
    """Episodes, each summed up."""

    returns: np.ndarray  # [N]
    costs: np.ndarray  # [N, C] episode_cost per channel
    lengths: np.ndarray  # [N] int, steps

    @classmethod
    def join(cls, parts: Iterable["Totals"]) -> "Totals":
        return cls(*(np.concatenate(x) for x in zip(*parts, strict=True)))


class Running(NamedTuple):
    """An episode under way."""

    env_state: PyTree
    obs: Array  # [O]
    carry: PyTree
    key: Key  # of the noise; step t folds in t
    alive: Array  # [] bool
    totals: tuple[Array, Array, Array]  # return [], costs [C], length []


def episode_keys(key: Key, index: Array | int) -> tuple[Key, Key]:
    """Keys of an episode's start and of its noise."""
    start, noise = jax.random.split(jax.random.fold_in(key, index))
    return start, noise


def act(policy: Policy, obs: Array, carry: PyTree, key: Key, deterministic: bool) -> tuple[Array, PyTree]:
    """The policy's action, clipped."""
    action, carry = policy.act(obs, carry, key, deterministic)
    return jnp.clip(action, -1.0, 1.0), carry


def feedback(policy: Policy, carry: PyTree, reward: Any) -> PyTree:
    """Tells the reward to a policy that wants it."""
    tell = getattr(policy, "feedback", None)
    return carry if tell is None else tell(carry, jnp.asarray(reward, float))


def begin(env: Env, policy: Policy, key: Key, index: Array | int) -> Running:
    start, noise = episode_keys(key, index)
    env_state, obs = env.reset(start)
    totals = jnp.zeros(()), jnp.zeros(len(env.cost_names)), jnp.zeros((), int)
    return Running(env_state, obs, policy.init(), noise, jnp.array(True), totals)


def advance(env: Env, policy: Policy, deterministic: bool, now: Running) -> tuple[Running, Step]:
    """One step; what comes after an episode's end does not count. Also the step itself."""
    total, costs, length = now.totals
    action, carry = act(policy, now.obs, now.carry, jax.random.fold_in(now.key, length), deterministic)
    env_state, step = env.step(now.env_state, action)
    totals = (
        total + jnp.where(now.alive, step.reward, 0.0),
        costs + jnp.where(now.alive, step.cost, 0.0),
        length + now.alive,
    )
    alive = now.alive & ~(step.terminated | step.truncated)
    return Running(env_state, step.obs, feedback(policy, carry, step.reward), now.key, alive, totals), step


def _until_over(env: Env, step: Callable[[Running], Running], running: Running):
    """The totals of episodes that step together, until the last of them has ended."""
    if env.min_steps == env.max_steps:  # a loop that asks nothing is faster on a GPU
        return jax.lax.fori_loop(0, env.max_steps, lambda _, now: step(now), running).totals

    def unfinished(state):
        t, running = state
        return (t < env.max_steps) & running.alive.any()

    return jax.lax.while_loop(unfinished, lambda state: (state[0] + 1, step(state[1])), (0, running))[1].totals


@eqx.filter_jit
def _run_batch(env: Env, policy: Policy, key: Key, first: Array, size: int, deterministic: bool):
    """Episodes first … first + size − 1."""
    running = jax.vmap(functools.partial(begin, env, policy, key))(first + jnp.arange(size))
    return _until_over(env, jax.vmap(lambda now: advance(env, policy, deterministic, now)[0]), running)


@eqx.filter_jit
def _run_batch_of_each(env: Env, policies: PyTree, keys: Key, first: Array, size: int, deterministic: bool):
    """The same episodes of each policy [P, …] with its key [P], in one loop."""

    def begin_all(policy, key):
        return jax.vmap(functools.partial(begin, env, policy, key))(first + jnp.arange(size))

    def step_all(policy, running):
        return jax.vmap(lambda now: advance(env, policy, deterministic, now)[0])(running)

    running = jax.vmap(begin_all)(policies, keys)
    return _until_over(env, lambda now: jax.vmap(step_all)(policies, now), running)


def usual_batch(policies: int = 1) -> int:
    """Episodes at a time that the device is good at, of all policies together."""
    if jax.default_backend() == "cpu":
        return 256
    return 4096 if policies == 1 else 65_536


def side_by_side(run: Callable[[int], Any], starts: Iterable[int]) -> Iterator[Any]:
    """`run` of each start, in order. On a CPU as many at a time as there are cores: a loop of small steps keeps only one of
    them busy. The first is alone, so that nothing is compiled twice."""
    cores = (os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1
    rest, begun, x64 = iter(starts), collections.deque(), jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]

    def in_thread(start: int) -> Any:
        with jax.enable_x64(x64):  # a thread does not inherit it
            return run(start)

    yield from map(run, itertools.islice(rest, 1))
    with futures.ThreadPoolExecutor(cores) as pool:
        for start in rest:
            begun.append(pool.submit(in_thread, start))
            if len(begun) >= cores:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


def stream(
    env: Env, policy: Policy, key: Key, episodes: int, batch: int, deterministic: bool = False
) -> Iterator[Totals]:
    """At most so many fresh episodes, `batch` of them at a time, for as long as one asks."""

    def part(first: int) -> Totals:
        totals = _run_batch(env, policy, key, jnp.asarray(first), batch, deterministic)
        return Totals(*(np.asarray(x)[: episodes - first] for x in totals))

    return side_by_side(part, range(0, episodes, batch))


def gather(parts: Iterable[Totals], episodes: int, progress: Progress | None = None) -> Totals:
    """All parts of so many episodes."""
    kept = []
    for part in parts:
        kept.append(part)
        if progress is not None:
            progress(sum(len(part.returns) for part in kept), episodes)
    return Totals.join(kept)


def run_episodes(
    env: Env,
    policy: Policy,
    key: Key,
    episodes: int,
    *,
    batch: int | None = None,
    deterministic: bool = False,
    progress: Progress | None = None,
) -> Totals:
    """So many fresh episodes, `batch` of them at a time; by default as many as the device is good at."""
    check_count("episodes", episodes)
    batch = min(check_count("batch", batch or usual_batch()), episodes)
    return gather(stream(env, policy, key, episodes, batch, deterministic), episodes, progress)


def run_policies(
    env: Env,
    policies: Mapping[Any, Policy],
    keys: Mapping[Any, Key],
    episodes: int,
    *,
    deterministic: bool = False,
    progress: Progress | None = None,
) -> dict[Any, Totals]:
    """So many fresh episodes of each policy with its key, those of all policies in one loop. They agree in structure."""
    check_count("episodes", episodes)
    count = len(policies)
    rounds = -(-episodes * count // usual_batch(count))
    size = -(-episodes // rounds)  # equal parts: none is mostly made of episodes that nobody asked for
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *policies.values())
    ordered = jnp.stack([keys[name] for name in policies])

    def part(first: int) -> list[np.ndarray]:
        totals = _run_batch_of_each(env, stacked, ordered, jnp.asarray(first), size, deterministic)
        return [np.asarray(x)[:, : episodes - first] for x in totals]

    kept = []
    for done in side_by_side(part, range(0, episodes, size)):
        kept.append(done)
        if progress is not None:
            progress(min(len(kept) * size, episodes) * count, episodes * count)
    whole = [np.concatenate(x, 1) for x in zip(*kept, strict=True)]
    return {name: Totals(*(x[i] for x in whole)) for i, name in enumerate(policies)}


class Trace(NamedTuple):
    """One episode step by step, as NumPy arrays: T steps, and the T + 1 states before, between and after them."""

    states: PyTree  # [T + 1, …] of the environment without its budget, its keys left out (None)
    obs: np.ndarray  # [T + 1, O]
    rewards: np.ndarray  # [T]
    costs: np.ndarray  # [T, C]


@eqx.filter_jit
def _trace(env: Env, policy: Policy, key: Key, index: Array, deterministic: bool):
    def step(now, _):
        after, result = advance(env, policy, deterministic, now)
        return after, (after.env_state, after.obs, result.reward, result.cost)

    start = begin(env, policy, key, index)
    end, (states, obs, rewards, costs) = jax.lax.scan(step, start, length=env.max_steps)
    states, obs = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), (start.env_state, start.obs), (states, obs))
    states = states.inner if isinstance(env, Budgeted) else states
    keyless = jax.tree.map(lambda x: None if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, states)
    return (keyless, obs, rewards, costs), end.totals[2]


def trace(env: Env, policy: Policy, key: Key, index: int = 0, deterministic: bool = False) -> Trace:
    """Episode `index` of `run_episodes` with this key, in full: to draw or to play back."""
    whole, length = _trace(env, policy, key, jnp.asarray(index), deterministic)
    (states, obs, rewards, costs), t = jax.tree.map(np.asarray, whole), int(length)
    return Trace(jax.tree.map(lambda x: x[: t + 1], states), obs[: t + 1], rewards[:t], costs[:t])


def check_count(name: str, value: int, least: int = 1) -> int:
    if value < least:
        raise ConfigError(f"{name} = {value}: at least {least}")
    return value
