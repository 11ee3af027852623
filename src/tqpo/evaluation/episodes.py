"""A frozen policy in fresh episodes: `run_episodes` in JAX, `run_episodes_host` in a Python environment such as the MuJoCo twin.

Episode i draws its start and its noise from the same keys in both, whatever the batch size or the number of workers. Every episode
that is begun is counted, so that long ones are not left out.
"""

import concurrent.futures
import functools
import multiprocessing
from collections.abc import Callable, Sequence
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


class Totals(NamedTuple):
    """Episodes, each summed up."""

    returns: np.ndarray  # [N]
    costs: np.ndarray  # [N, C] episode_cost per channel
    lengths: np.ndarray  # [N] int, steps


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


@eqx.filter_jit
def _run_batch(env: Env, policy: Policy, key: Key, first: Array, size: int, deterministic: bool):
    """Episodes first … first + size − 1, until the last of them has ended."""
    running = jax.vmap(functools.partial(begin, env, policy, key))(first + jnp.arange(size))
    step = jax.vmap(lambda now: advance(env, policy, deterministic, now)[0])

    def unfinished(state):
        t, running = state
        return (t < env.max_steps) & running.alive.any()

    _, running = jax.lax.while_loop(unfinished, lambda state: (state[0] + 1, step(state[1])), (0, running))
    return running.totals


def run_episodes(
    env: Env,
    policy: Policy,
    key: Key,
    episodes: int,
    *,
    batch: int = 256,
    deterministic: bool = False,
    progress: Progress | None = None,
) -> Totals:
    """So many fresh episodes, `batch` of them at a time."""
    check_count("episodes", episodes)
    batch = min(check_count("batch", batch), episodes)
    parts = []
    for first in range(0, episodes, batch):
        parts.append(jax.tree.map(np.asarray, _run_batch(env, policy, key, jnp.asarray(first), batch, deterministic)))
        if progress is not None:
            progress(min(first + batch, episodes), episodes)
    return Totals(*(np.concatenate(x)[:episodes] for x in zip(*parts, strict=True)))


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


def check_count(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{name} = {value}: at least 1")
    return value


def is_data(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)


class HostRunner:
    """Episodes of a Python environment: `reset(key) -> obs`, `step(action) -> (obs, reward, cost, terminated, truncated)`."""

    def __init__(self, make_env: Callable[[], Any], policy: Policy, key: Key, deterministic: bool):
        self.make_env, self.policy, self.key = make_env, policy, key
        self.envs: list[Any] = []
        weights, rest = eqx.partition(policy, is_data)

        def step(weights, obs, carry, key, t, reward):
            policy = eqx.combine(weights, rest)
            carry = jax.lax.cond(t > 0, lambda c: feedback(policy, c, reward), lambda c: c, carry)
            return act(policy, obs, carry, jax.random.fold_in(key, t), deterministic)

        self._act = functools.partial(jax.jit(jax.vmap(step, (None, 0, 0, 0, None, 0))), weights)

    def __call__(self, indices: Sequence[int]) -> list[tuple[float, np.ndarray, int]]:
        """Return, costs and length of these episodes. They run side by side: the policy is asked once a step for all."""
        self.envs += [self.make_env() for _ in range(len(indices) - len(self.envs))]
        envs = self.envs[: len(indices)]
        start, noise = jax.vmap(functools.partial(episode_keys, self.key))(jnp.asarray(indices))
        obs = np.stack([np.asarray(env.reset(key), float) for env, key in zip(envs, start, strict=True)])
        carry = jax.tree.map(lambda x: jnp.stack([x] * len(envs)), self.policy.init())
        reward, t = np.zeros(len(envs)), 0
        totals, costs, lengths = np.zeros(len(envs)), [np.zeros(())] * len(envs), [0] * len(envs)
        alive = list(range(len(envs)))
        while alive:
            actions, carry = self._act(jnp.asarray(obs, float), carry, noise, t, jnp.asarray(reward, float))
            actions, t, ended = np.asarray(actions), t + 1, []
            for i in alive:
                obs[i], reward[i], cost, terminated, truncated = envs[i].step(actions[i])
                totals[i] += reward[i]
                costs[i] = costs[i] + np.asarray(cost)
                lengths[i] = t
                if terminated or truncated:
                    ended.append(i)
            alive = [i for i in alive if i not in ended]
        return list(zip(totals.tolist(), costs, lengths, strict=True))


_runner: HostRunner | None = None  # of a worker process


def _begin_worker(make_env, policy, key_data, implementation, deterministic) -> None:
    global _runner  # noqa: PLW0603  (an executor's initializer has nowhere else to leave it)
    jax.config.update("jax_platforms", "cpu")
    key = jax.random.wrap_key_data(key_data, impl=implementation)
    _runner = HostRunner(make_env, policy, key, deterministic)


def _run_in_worker(indices: Sequence[int]) -> list[tuple[float, np.ndarray, int]]:
    assert _runner is not None
    return _runner(indices)


def run_episodes_host(
    make_env: Callable[[], Any],
    policy: Policy,
    key: Key,
    episodes: int,
    *,
    deterministic: bool = False,
    batch: int = 20,
    workers: int = 0,
    progress: Progress | None = None,
) -> Totals:
    """The same for a Python environment, `batch` of them side by side.

    With `workers` in new processes, to which `make_env` and the policy are sent.
    """
    check_count("episodes", episodes)
    batch = min(check_count("batch", batch), -(-episodes // max(workers, 1)))
    parts = [range(first, min(first + batch, episodes)) for first in range(0, episodes, batch)]
    found = []

    def gather(results) -> Totals:
        for result in results:
            found.extend(result)
            if progress is not None:
                progress(len(found), episodes)
        returns, costs, lengths = zip(*found, strict=True)
        return Totals(np.array(returns), np.array(costs), np.array(lengths))

    if workers < 1:
        return gather(map(HostRunner(make_env, policy, key, deterministic), parts))
    policy = jax.tree.map(lambda x: np.asarray(x) if is_data(x) else x, policy)  # nothing of a device travels
    setup = (make_env, policy, np.asarray(jax.random.key_data(key)), str(jax.random.key_impl(key)), deterministic)
    context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
    with concurrent.futures.ProcessPoolExecutor(workers, context, _begin_worker, setup) as pool:
        return gather(pool.map(_run_in_worker, parts))
