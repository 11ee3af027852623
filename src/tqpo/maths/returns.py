"""Returns and advantages of a time-major rollout [T, B]; further axes (costs, quantiles) broadcast."""

import jax
import jax.numpy as jnp

from tqpo.types import Array


def _keep(flags: Array, like: Array) -> Array:
    """1 − flags, as numbers, with as many axes as `like`."""
    return 1.0 - flags.reshape(flags.shape + (1,) * (like.ndim - flags.ndim)).astype(like.dtype)


def _backward(x: Array, decay: Array) -> Array:
    """y_t = x_t + decay_t·y_{t+1}, y_T = 0."""

    def step(later, now):
        y = now[0] + now[1] * later
        return y, y

    return jax.lax.scan(step, jnp.zeros_like(x[0]), (x, decay), reverse=True)[1]


def gae(
    rewards: Array,
    values: Array,
    next_values: Array,
    ended: Array,
    cut: Array,
    discount: Array | float,
    lam: Array | float,
) -> Array:
    """A_t = Σ_l (γλ)^l·δ_{t+l}, δ_t = r_t + γ·V(s_{t+1}) − V(s_t) (Schulman et al. 2016, Eqs. 11–16).

    The sum stops at `cut`, the last step of an episode for whatever reason. V(s_{t+1}) counts as 0 at
    `ended`, where nothing follows: only the true ends, or every cut for the paper's reading of a time-out.
    `next_values` are of the observation before any reset, so each step is right by itself and the batch needs
    no bootstrap row.
    """
    delta = rewards + discount * _keep(ended, values) * next_values - values
    return _backward(delta, discount * lam * jnp.broadcast_to(_keep(cut, delta), delta.shape))


def accumulate_episodes(carry: Array, x: Array, cut: Array) -> tuple[Array, Array]:
    """Sums x over each episode, across batches: S_t = carry + Σ x since the episode began.

    `carry` [B] is the sum of the episodes under way; `x`, `cut` [T, B]. Returns the new carry and S [T, B],
    which is an episode's total where `cut`.
    """

    def step(total, now):
        value, keep = now
        total = total + value
        return total * keep, total

    return jax.lax.scan(step, carry, (x, jnp.broadcast_to(_keep(cut, x), x.shape)))
