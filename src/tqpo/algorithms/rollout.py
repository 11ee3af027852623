"""A policy acting in a batch of environments: one scan, time-major `[T, B]`.

Environments go on from one rollout to the next, so a batch may begin or end in the middle of an episode. An episode that
ends takes the next of a pool of fresh starts that was drawn before the scan: no start is used twice and no step pays for
a reset.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tqpo.types import Array, Batch, Env, Key, PyTree


class Runner(NamedTuple):
    """Where the environments and the policy's memory stand between two steps."""

    env_state: PyTree  # [B, …]
    obs: Array  # [B, O]
    memory: PyTree  # [B, …] the policy's recurrent state, or None
    prev_action: Array  # [B, A]; 0 at an episode's start
    prev_reward: Array  # [B]; 0 at an episode's start
    first: Array  # [B] bool: `obs` is an episode's first


class Decision(NamedTuple):
    """What a policy says about an observation."""

    action: Array  # [B, A], before it is clipped to [-1, 1]
    log_prob: Array  # [B] of that action
    memory: PyTree  # [B, …] after this step
    outputs: PyTree  # [B, …] whatever else it wants recorded (values), or None


# (obs [B, O], memory, prev_action [B, A], prev_reward [B], standard normal noise [B, A]) → Decision
Policy = Callable[[Array, PyTree, Array, Array, Array], Decision]


class Rollout(NamedTuple):
    """A batch, and what a recurrent policy needs to see it again."""

    batch: Batch
    first: Array  # [T, B] bool: an episode starts with this observation
    prev_action: Array  # [T, B, A]
    prev_reward: Array  # [T, B]
    memory: PyTree  # [S, B, …] at the start of each segment of T/S steps
    outputs: PyTree  # [T, B, …] at `batch.obs`
    next_outputs: PyTree  # [T, B, …] at `batch.next_obs`; see `rollout` for where it is meaningful


def pool_size(n_envs: int, n_steps: int, min_steps: int) -> int:
    """Fresh starts that a rollout can use up: B·(⌈(T−1)/min_steps⌉ + 1)."""
    return n_envs * (-(-(n_steps - 1) // min_steps) + 1)


def restarts(n_envs: int, n_steps: int, share: float, every: int) -> np.ndarray:
    """[T, B] bool: after which steps the first `share` of the environments are cut off to begin anew, every few steps."""
    at = np.arange(1, 1 + n_steps) % every == 0
    return at[:, None] & (np.arange(n_envs) < round(share * n_envs))


def start(key: Key, env: Env, n_envs: int, memory: PyTree) -> Runner:
    """All environments at a fresh start; `memory` is the policy's initial state for [n_envs]."""
    env_state, obs = jax.vmap(env.reset)(jax.random.split(key, n_envs))
    return Runner(
        env_state,
        obs,
        memory,
        jnp.zeros((n_envs, env.action_size)),
        jnp.zeros(n_envs),
        jnp.ones(n_envs, bool),
    )


def rollout(
    key: Key,
    env: Env,
    policy: Policy,
    runner: Runner,
    n_steps: int,
    segment: int | None = None,
    look_ahead: bool = False,
    restart: np.ndarray | None = None,
) -> tuple[Runner, Rollout]:
    """T steps of B environments; the memory is kept at the start of each `segment` of steps (default: one).

    Episodes also end, as by a time-out, after the steps that `restart` [T, B] marks.

    `next_outputs` at step t are the outputs at step t + 1, which say nothing where an episode ended in between.
    With `look_ahead` the policy is asked a second time in each step, about the observation before the reset, and
    they are right everywhere.
    """
    segment = segment or n_steps
    n_envs = runner.obs.shape[0]
    pool_key, noise_key = jax.random.split(key)
    marks = np.zeros((n_steps, n_envs), bool) if restart is None else restart
    starts = pool_size(n_envs, n_steps, env.min_steps) + int(marks.sum())
    pool = jax.vmap(env.reset)(jax.random.split(pool_key, starts))  # state, obs
    noise = jax.random.normal(noise_key, (n_steps // segment, segment, n_envs, env.action_size))

    def step(carry, drawn):
        now, used = carry
        noise, mark = drawn
        decision = policy(now.obs, now.memory, now.prev_action, now.prev_reward, noise)
        env_state, result = jax.vmap(env.step)(now.env_state, jnp.clip(decision.action, -1.0, 1.0))
        result = result._replace(truncated=result.truncated | mark)
        ended = result.terminated | result.truncated  # [B]
        seen = Batch(
            now.obs,
            decision.action,
            decision.log_prob,
            result.reward,
            result.cost,
            result.terminated,
            result.truncated,
            result.obs,
        )
        next_outputs = None
        if look_ahead:
            next_outputs = policy(
                result.obs, decision.memory, decision.action, result.reward, jnp.zeros_like(noise)
            ).outputs
        onward = Runner(env_state, result.obs, decision.memory, decision.action, result.reward, ended)
        rank = jnp.cumsum(ended) - 1  # among those that end now
        fresh_state, fresh_obs = jax.tree.map(lambda leaf: leaf[used + rank], pool)
        restarted = Runner(
            fresh_state,
            fresh_obs,
            jax.tree.map(jnp.zeros_like, decision.memory),
            jnp.zeros_like(decision.action),
            jnp.zeros_like(result.reward),
            ended,
        )
        carry = select(ended, restarted, onward), used + ended.sum()
        return carry, (seen, now.first, decision.outputs, next_outputs)

    def one_segment(carry, drawn):
        memory = carry[0].memory
        carry, seen = jax.lax.scan(step, carry, drawn)
        return carry, (memory, seen)

    drawn = noise, jnp.asarray(marks.reshape(noise.shape[:3]))
    (after, _), (memory, seen) = jax.lax.scan(one_segment, (runner, jnp.zeros((), int)), drawn)
    flat = jax.tree.map(lambda x: x.reshape(n_steps, *x.shape[2:]), seen)  # [S, T/S, B, …] → [T, B, …]
    batch, first, outputs, next_outputs = flat
    if outputs is not None and not look_ahead:
        last = policy(
            after.obs, after.memory, after.prev_action, after.prev_reward, jnp.zeros_like(noise[0, 0])
        ).outputs
        next_outputs = jax.tree.map(lambda x, end: jnp.concatenate([x[1:], end[None]]), outputs, last)
    prev_action = jnp.concatenate([runner.prev_action[None], batch.action[:-1]])
    prev_reward = jnp.concatenate([runner.prev_reward[None], batch.reward[:-1]])
    return after, Rollout(
        batch,
        first,
        jnp.where(first[..., None], 0.0, prev_action),
        jnp.where(first, 0.0, prev_reward),
        memory,
        outputs,
        next_outputs,
    )


def select(flags: Array, chosen: PyTree, other: PyTree) -> PyTree:
    """Per environment: `chosen` where `flags` [B], else `other`; leaves [B, …], random keys among them."""

    def pick(a, b):
        return jnp.where(flags.reshape(flags.shape + (1,) * (a.ndim - flags.ndim)), a, b)

    return jax.tree.map(pick, chosen, other)
