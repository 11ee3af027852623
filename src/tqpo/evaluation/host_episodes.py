"""A frozen policy in environments on the host: fresh episodes to judge it by, and one to look at."""

import os
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tqpo.algorithms import rollout
from tqpo.errors import ConfigError, RenderError
from tqpo.evaluation.episodes import Policy, Progress, Totals, check_count, feedback
from tqpo.host.batch import Hosts
from tqpo.host.reference import GYM, build, find, takes
from tqpo.host.spec import HostSpec, border_of
from tqpo.types import Key, PyTree

AT_ONCE = 32  # environments of an evaluation, where they share a process
LONGEST = 2000  # steps of a film


@eqx.filter_jit
def _act(policy: Policy, obs: Any, first: Any, carry: PyTree, reward: Any, key: Key, deterministic: bool):
    """Actions [N, A] in [-1, 1], and what is remembered after them."""
    fresh = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(obs), *jnp.shape(x))), policy.init())
    carry = rollout.select(first, fresh, jax.vmap(lambda c, r: feedback(policy, c, r))(carry, reward))
    keys = jax.random.split(key, len(obs))
    actions, carry = jax.vmap(lambda o, c, k: policy.act(o, c, k, deterministic))(obs, carry, keys)
    return jnp.clip(actions, -1.0, 1.0), carry


def run_episodes(
    env: HostSpec,
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
    own_process = env.hosting.vector == "async" and not env.own_vector
    at_once = at_once or (os.cpu_count() or 1 if own_process else AT_ONCE)
    count = min(check_count("at_once", at_once), check_count("episodes", episodes))
    share = np.full(count, episodes // count) + (np.arange(count) < episodes % count)  # of each environment
    found: list[list[tuple[float, np.ndarray, int]]] = [[] for _ in range(count)]
    seed = int(jax.random.randint(key, (), 0, 2**30))
    first, reward = np.ones(count, bool), np.zeros(count, np.float32)
    carry = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), policy.init())
    running, lengths, t = np.zeros((count, 1 + len(env.cost_names))), np.zeros(count, int), 0
    with Hosts(env, count, seed) as hosts:
        obs = hosts.reset()
        while any(len(done) < wanted for done, wanted in zip(found, share, strict=True)):
            action, carry = _act(policy, obs, first, carry, reward, jax.random.fold_in(key, t), deterministic)
            tick, t = hosts.tick(np.asarray(action)), t + 1
            gained = np.concatenate([tick.reward[:, None], tick.cost], 1)
            running = np.where(tick.valid[:, None], running + gained, np.where(tick.lost[:, None], 0.0, running))
            lengths = np.where(tick.valid, lengths + 1, np.where(tick.lost, 0, lengths))
            ended = tick.valid & (tick.terminated | tick.truncated)
            for i in np.flatnonzero(ended):
                if len(found[i]) < share[i]:
                    found[i].append((running[i, 0], running[i, 1:].copy(), lengths[i]))
            if progress is not None and ended.any():
                progress(sum(map(len, found)), episodes)
            running[ended], lengths[ended] = 0.0, 0
            obs, first, reward = tick.obs, ended | ~tick.valid, tick.reward.astype(np.float32)
        reports = hosts.take_reports()
    returns, costs, steps = zip(*(episode for done in found for episode in done), strict=True)
    return Totals(np.array(returns), np.array(costs), np.array(steps)), reports


def film(
    env: HostSpec, policy: Policy, key: Key, episode: int = 0, deterministic: bool = False
) -> tuple[list[np.ndarray], float]:
    """Frames of an episode, and how long each lasts in seconds. The environment must draw itself as "rgb_array"."""
    if env.own_vector:
        raise ConfigError(f"{env.task} makes vectors: there is no single environment to film")
    draws = env.task.startswith(GYM) or takes(find(env.task), "render_mode")
    seed = int(jax.random.randint(jax.random.fold_in(key, episode), (), 0, 2**30))
    try:
        single: Any = build(env.task, env.settings, **({"render_mode": "rgb_array"} if draws else {}))
        if getattr(single, "render_mode", None) != "rgb_array":
            raise RenderError(f'{env.task} has no render_mode "rgb_array": let its factory take render_mode')
        obs, _ = single.reset(seed=seed)
        frames = [single.render()]
        border, carry, reward, t, over = border_of(env), jax.tree.map(lambda x: x[None], policy.init()), 0.0, 0, False
        while not over and t < LONGEST:
            flat, now = border.flat(obs)[None], jax.random.fold_in(key, t)
            action, carry = _act(policy, flat, np.array([t == 0]), carry, np.array([reward]), now, deterministic)
            obs, reward, *_, terminated, truncated, _ = single.step(border.action(np.asarray(action)[0]))
            frames.append(single.render())
            t, over = t + 1, terminated or truncated
        single.close()
    except (ConfigError, RenderError):
        raise
    except Exception as error:
        raise RenderError(f"{env.task} could not be drawn: {type(error).__name__}: {error}") from error
    return [np.asarray(frame) for frame in frames], 1.0 / single.metadata.get("render_fps", 30)
