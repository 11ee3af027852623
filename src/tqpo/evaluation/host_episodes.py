"""A frozen policy in fresh episodes of Python environments: the MuJoCo twin, and anyone's on the host.

Episode i draws its noise from the same key as in `episodes.run_episodes`, whatever the batch or the number of workers;
in the twin, its start too. Every episode that is begun is counted, so that long ones are not left out.
"""

import concurrent.futures
import functools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tqpo.algorithms import rollout
from tqpo.errors import ConfigError, RenderError
from tqpo.evaluation.episodes import Policy, Progress, Totals, act, check_count, episode_keys, feedback, gather
from tqpo.host.transition import Transition, Transitions, stack
from tqpo.references import takes
from tqpo.types import Key, PyTree

if TYPE_CHECKING:
    from tqpo.host.spec import HostSpec

AT_ONCE = 32  # environments of an evaluation, where they share a process
ROUND = 256  # at most so many episodes until one who streams them can stop
LONGEST = 2000  # steps of a film


@eqx.filter_jit
def _act(policy: Policy, key: Key, index: Any, t: Any, obs: Any, carry: PyTree, reward: Any, deterministic: bool):
    """Actions [N, A] in step t [N] of the episodes `index` [N], and what is remembered after them."""

    def one(index, t, obs, carry, reward):
        _, noise = episode_keys(key, index)
        carry = rollout.select(t == 0, policy.init(), feedback(policy, carry, reward))
        return act(policy, obs, carry, jax.random.fold_in(noise, t), deterministic)

    return jax.vmap(one)(index, t, obs, carry, reward)


def play(
    envs: Any,
    policy: Policy,
    key: Key,
    shares: Sequence[Sequence[int]],
    deterministic: bool = False,
    progress: Progress | None = None,
) -> Totals:
    """Environment n of the batch runs the episodes `shares[n]`, one after the other; all, in the order of indices.

    `envs` has `reset()` and `step(actions)` as `EnvBatch` has them. An episode that is lost to a fault is run again.
    """
    obs, n = envs.reset(), len(shares)
    carry = jax.tree.map(lambda x: jnp.stack([x] * n), policy.init())
    sizes, done = np.array([len(share) for share in shares]), np.zeros(n, int)  # episodes
    length, reward = np.zeros(n, int), np.zeros(n)  # steps of the episode under way; the last reward
    sums = np.zeros((n, 1))  # [N, 1 + C] return and costs of the episode under way
    played: dict[int, tuple[float, np.ndarray, int]] = {}
    while np.any(done < sizes):
        index = np.array([share[min(k, len(share) - 1)] for share, k in zip(shares, done, strict=True)])
        seen = jnp.asarray(obs, float), carry, jnp.asarray(reward, float)
        action, carry = _act(policy, key, index, length, *seen, deterministic)
        step: Transitions = envs.step(np.asarray(action))
        sums = np.where(step.valid[:, None], sums + np.column_stack([step.reward, step.cost]), 0.0)
        length = np.where(step.valid, length + 1, 0)
        for i in np.flatnonzero(step.ended & (done < sizes)):
            played[index[i]] = sums[i, 0], sums[i, 1:].copy(), length[i]
            done[i] += 1
        if progress is not None:
            progress(len(played), int(sizes.sum()))
        sums[step.ended], length[step.ended] = 0.0, 0
        obs, reward = step.obs, step.reward
    return Totals(*(np.array(x) for x in zip(*(played[i] for i in sorted(played)), strict=True)))


def run_episodes(
    env: "HostSpec",
    policy: Policy,
    key: Key,
    episodes: int,
    *,
    at_once: int | None = None,
    deterministic: bool = False,
    progress: Progress | None = None,
) -> tuple[Totals, list[str]]:
    """So many fresh episodes, and the reports of faults among them.

    Each environment runs a fixed number of them, so that short ones do not crowd out long ones.
    """
    from tqpo.host.batch import EnvBatch

    own_process = env.options.vector == "async" and not env.autoreset
    at_once = at_once or (os.cpu_count() or 1 if own_process else AT_ONCE)
    count = min(check_count("at_once", at_once), check_count("episodes", episodes))
    shares = [part.tolist() for part in np.array_split(np.arange(episodes), count)]
    with EnvBatch(env, count, int(jax.random.randint(key, (), 0, 2**30))) as envs:
        return play(envs, policy, key, shares, deterministic, progress), envs.take_reports()


def stream_host(
    env: "HostSpec", policy: Policy, key: Key, episodes: int, deterministic: bool = False
) -> Iterator[tuple[Totals, list[str]]]:
    """Fresh episodes and reports of faults in rounds, for as long as one asks: few at first, since few can be enough."""
    first, size = 0, AT_ONCE
    while first < episodes:
        own, count = jax.random.fold_in(key, first), min(size, episodes - first)
        yield run_episodes(env, policy, own, count, deterministic=deterministic)
        first, size = first + count, min(2 * size, ROUND)


class KeyedEnvs:
    """Environments with `reset(key)` and `step(action) -> Step`, such as the MuJoCo twin; one episode of each."""

    def __init__(self, envs: Sequence[Any], keys: Sequence[Key]):
        self.envs, self.keys = envs, keys
        self.rows: list[Any] = [None] * len(envs)

    def reset(self) -> np.ndarray:
        return np.stack([np.asarray(env.reset(key), float) for env, key in zip(self.envs, self.keys, strict=True)])

    def step(self, actions: np.ndarray) -> Transitions:
        for i, row in enumerate(self.rows):
            if row is not None and (row.terminated or row.truncated):
                self.rows[i] = row._replace(valid=False)  # its episode is over: no more steps
            else:
                obs, *rest = self.envs[i].step(actions[i])
                self.rows[i] = Transition(obs, obs, *rest)
        return stack(self.rows)


def play_twin(
    make_env: Callable[[], Any], policy: Policy, key: Key, indices: Sequence[int], deterministic: bool = False
) -> Totals:
    """These episodes, side by side."""
    envs = KeyedEnvs([make_env() for _ in indices], [episode_keys(key, i)[0] for i in indices])
    return play(envs, policy, key, [[i] for i in indices], deterministic)


def _begin_worker() -> None:
    jax.config.update("jax_platforms", "cpu")


def stream_twin(
    make_env: Callable[[], Any],
    policy: Policy,
    key: Key,
    episodes: int,
    *,
    deterministic: bool = False,
    batch: int = 20,
    workers: int = 0,
) -> Iterator[Totals]:
    """Fresh episodes, `batch` of them at a time, for as long as one asks. With `workers`, in as many new processes."""
    check_count("episodes", episodes)
    batch = min(check_count("batch", batch), -(-episodes // max(workers, 1)))
    indices = [range(first, min(first + batch, episodes)) for first in range(0, episodes, batch)]
    run = functools.partial(play_twin, make_env, policy, key, deterministic=deterministic)
    context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, _begin_worker) if workers else None
    try:
        yield from pool.map(run, indices) if pool else map(run, indices)
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def run_twin(
    make_env: Callable[[], Any],
    policy: Policy,
    key: Key,
    episodes: int,
    *,
    progress: Progress | None = None,
    **how: Any,
) -> Totals:
    """So many fresh episodes; `how` as `stream_twin` takes it."""
    return gather(stream_twin(make_env, policy, key, episodes, **how), episodes, progress)


class Filmed:
    """A batch of one environment that draws itself, with a frame of each of its steps."""

    def __init__(self, guard: Any, ledger: Any, seed: int):
        self.guard, self.ledger, self.seed = guard, ledger, seed
        self.frames: list[np.ndarray] = []

    def _film(self, rows: list[Transition]) -> Transitions:
        self.frames.append(np.asarray(self.guard.env.render()))
        return self.ledger.show(stack(rows))

    def reset(self) -> np.ndarray:
        return self._film(self.guard.reset([self.seed])).obs

    def step(self, actions: np.ndarray) -> Transitions:
        step = self._film(self.guard.step(actions))
        return step._replace(truncated=step.truncated | (len(self.frames) > LONGEST))


def film(
    env: "HostSpec", policy: Policy, key: Key, episode: int = 0, deterministic: bool = False
) -> tuple[list[np.ndarray], float]:
    """Frames of an episode, and how long each lasts in seconds. The environment must draw itself as "rgb_array"."""
    from tqpo.host.batch import Ledger
    from tqpo.host.guard import Guard

    if env.autoreset:
        raise ConfigError(f"{env.task} makes vectors: there is no single environment to film")
    draws = env.factory is None or takes(env.factory, "render_mode")
    seed = int(jax.random.randint(jax.random.fold_in(key, episode), (), 0, 2**30))
    try:
        single: Any = env.make(**({"render_mode": "rgb_array"} if draws else {}))
        if getattr(single, "render_mode", None) != "rgb_array":
            raise RenderError(f'{env.task} has no render_mode "rgb_array": let its factory take render_mode')
        guard = Guard(env, 0)
        guard.env, filmed = single, Filmed(guard, Ledger(env, 1), seed)
        play(filmed, policy, key, [[episode]], deterministic)
        single.close()
    except (ConfigError, RenderError):
        raise
    except Exception as error:
        raise RenderError(f"{env.task} could not be drawn: {type(error).__name__}: {error}") from error
    return filmed.frames, 1.0 / single.metadata.get("render_fps", 30)
