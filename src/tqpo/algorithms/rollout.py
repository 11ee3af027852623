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

from tqpo.types import UNLIMITED, Array, Batch, Env, Key, PyTree, may_end

STARTS_AT_A_TIME_CPU, STARTS_AT_A_TIME_GPU = 16, 128  # where only those are drawn that can be used


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


class Cuts(NamedTuple):
    """Where episodes are cut off, as by a time-out, for their environments to begin anew. These do not count as episodes."""

    after: Array  # [T, B] bool: after which steps
    again: np.ndarray  # [B] bool: environments to which it happens again and again
    most: int  # fresh starts of a rollout that are used up besides those after whole episodes
    happen: bool  # False: every episode goes on to its end


def pool_size(n_envs: int, n_steps: int, min_steps: int) -> int:
    """Episodes that can end in a rollout: B·(⌊(T−1)/min_steps⌋ + 1)."""
    return n_envs * ((n_steps - 1) // min_steps + 1)


def no_cuts(n_envs: int, n_steps: int) -> Cuts:
    """Every episode goes on to its end."""
    return Cuts(jnp.zeros((n_steps, n_envs), bool), np.zeros(n_envs, bool), 0, False)


def cuts(iteration: Array, env: Env, n_envs: int, n_steps: int, share: float = 0.0, every: int = 1) -> Cuts:
    """The first `share` of the environments begin anew `every` few steps, where episodes are longer, one after the other.

    Of the others each is cut off once, at its own step before the longest episode's end, where a rollout is shorter than that.
    So where episodes have one length as many end in one rollout as in the next.
    """
    longest = env.max_steps
    staggered = n_steps < longest < UNLIMITED
    n_again = min(round(share * n_envs), n_envs - 1) if longest > every else 0  # some must end by themselves
    if not (staggered or n_again):
        return no_cuts(n_envs, n_steps)
    place, again = np.arange(n_envs), np.arange(n_envs) < n_again
    step = iteration * n_steps + 1 + jnp.arange(n_steps)[:, None]  # [T, 1] since the start of training
    offset = place * every // max(n_again, 1)
    first = (place - n_again) * longest // (n_envs - n_again) if staggered else np.zeros(n_envs, int)
    after = jnp.where(again, (step + offset) % every == 0, step == first)
    besides = n_envs - n_again if env.min_steps < longest else 0  # an episode that ended, and the next is cut off
    return Cuts(after, again, n_again * -(-n_steps // every) + besides, True)


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
    cut_off: Cuts | None = None,
) -> tuple[Runner, Rollout]:
    """T steps of B environments; the memory is kept at the start of each `segment` of steps (default: one).

    `next_outputs` at step t are the outputs at step t + 1, which say nothing where an episode ended in between. With
    `look_ahead` the policy is asked about the observation before the reset as well, and they are right after a time-out, too.
    """
    segment = segment or n_steps
    n_envs = runner.obs.shape[0]
    pool_key, noise_key = jax.random.split(key)
    cut_off = cut_off or no_cuts(n_envs, n_steps)
    starts = pool_size(n_envs, n_steps, env.min_steps) + cut_off.most
    pool = _fresh_starts(env, jax.random.split(pool_key, starts), runner, cut_off)
    noise = jax.random.normal(noise_key, (n_steps // segment, segment, n_envs, env.action_size))

    def step(carry, drawn):
        now, used = carry
        noise, cut_now = drawn
        decision = policy(now.obs, now.memory, now.prev_action, now.prev_reward, noise)
        env_state, result = jax.vmap(env.step)(now.env_state, jnp.clip(decision.action, -1.0, 1.0))
        result = result._replace(truncated=result.truncated | cut_now)
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
        return carry, (seen, now.first, decision.outputs, decision.memory if look_ahead else None)

    begun, drawn = (runner, jnp.zeros((), int)), (noise, cut_off.after.reshape(noise.shape[:3]))
    pack, unpack = _packing(lambda: jax.eval_shape(step, begun, jax.tree.map(lambda x: x[0, 0], drawn))[1])

    def packed_step(carry, drawn):
        carry, seen = step(carry, drawn)
        return carry, pack(seen)

    def one_segment(carry, drawn):
        memory = carry[0].memory
        carry, seen = jax.lax.scan(packed_step, carry, drawn)
        return carry, (memory, seen)

    (after, _), (memory, seen) = jax.lax.scan(one_segment, begun, drawn)
    flat = unpack(jax.tree.map(lambda x: x.reshape(n_steps, *x.shape[2:]), seen))  # [S, T/S, B, …] → [T, B, …]
    batch, first, outputs, remembered = flat
    next_outputs = None if outputs is None else _outputs_after(policy, after, outputs)
    if look_ahead:
        next_outputs = _outputs_at_time_outs(policy, batch, remembered, next_outputs, starts)
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


def _fresh_starts(env: Env, keys: Key, runner: Runner, cut_off: Cuts) -> tuple[PyTree, Array]:
    """Starts of these keys [S], state and observation. An environment that says which of its episodes may end gets only as many
    as can be used, a few at a time, since layouts can take long to draw; what fills the rest is never looked at."""
    draw = jax.vmap(env.reset)
    n_steps, n_envs = cut_off.after.shape
    ending = jax.vmap(lambda state: may_end(env, state, n_steps))(runner.env_state)
    size = STARTS_AT_A_TIME_CPU if jax.default_backend() == "cpu" else STARTS_AT_A_TIME_GPU
    if ending is None or n_steps > env.min_steps or len(keys) <= size:
        return draw(keys)
    needed = jnp.minimum(ending.sum() + cut_off.after.sum(), len(keys))

    def add(carry):
        at, pool = carry
        at = jnp.minimum(at, len(keys) - size)
        drawn = draw(jax.lax.dynamic_slice_in_dim(keys, at, size))
        pool = jax.tree.map(lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, at, 0), pool, drawn)
        return at + size, pool

    filling = jax.tree.map(lambda x: x[jnp.arange(len(keys)) % n_envs], (runner.env_state, runner.obs))
    return jax.lax.while_loop(lambda carry: carry[0] < needed, add, (jnp.asarray(0), filling))[1]


def _packing(like: Callable[[], PyTree]) -> tuple[Callable[[PyTree], PyTree], Callable[[PyTree], PyTree]]:
    """How what is seen in each step, of this structure, is written down, and back. On a GPU it is one array [B, D], since each
    array of its own would be one more kernel in every step."""
    if jax.default_backend() == "cpu":
        return (lambda x: x), (lambda x: x)
    leaves, structure = jax.tree.flatten(like())
    ends = np.cumsum([leaf.size // len(leaf) for leaf in leaves])[:-1].tolist()

    def pack(tree):
        return jnp.concatenate([x.reshape(len(x), -1).astype(float) for x in jax.tree.leaves(tree)], -1)

    def unpack(packed):
        parts = zip(leaves, jnp.split(packed, ends, -1), strict=True)
        return structure.unflatten([x.reshape(*packed.shape[:-1], *a.shape[1:]).astype(a.dtype) for a, x in parts])

    return pack, unpack


def _outputs_after(policy: Policy, after: Runner, outputs: PyTree) -> PyTree:
    """The outputs at the step that follows each step, [T, B, …]; the last is asked for."""
    context = after.obs, after.memory, after.prev_action, after.prev_reward
    last = policy(*context, jnp.zeros_like(after.prev_action)).outputs
    return jax.tree.map(lambda x, end: jnp.concatenate([x[1:], end[None]]), outputs, last)


def _outputs_at_time_outs(policy: Policy, batch: Batch, memory: PyTree, outputs: PyTree, most: int) -> PyTree:
    """`outputs` after each step, asked for anew where an episode was cut off: at what it would have seen next."""
    at = jnp.nonzero(batch.truncated, size=most, fill_value=0)  # (t, b); spare places all point at (0, 0)
    obs, action, reward = batch.next_obs[at], batch.action[at], batch.reward[at]
    there = policy(obs, jax.tree.map(lambda x: x[at], memory), action, reward, jnp.zeros_like(action)).outputs
    return jax.tree.map(lambda x, y: x.at[at].set(y), outputs, there)


def select(flags: Array, chosen: PyTree, other: PyTree) -> PyTree:
    """Per environment: `chosen` where `flags` [B], else `other`; leaves [B, …], random keys among them."""

    def pick(a, b):
        return jnp.where(flags.reshape(flags.shape + (1,) * (a.ndim - flags.ndim)), a, b)

    return jax.tree.map(pick, chosen, other)
