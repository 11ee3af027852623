"""What the episodes cost: sums carried across batches, the last finished ones, and their statistics per constraint.

Everything here is the undiscounted *episode cost* C that a limit d applies to. (The cost to go from a step, discounted, is
a different quantity with a different name: *cost_return*.)
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tqpo.algorithms.settings import Constraint
from tqpo.maths import quantile, returns
from tqpo.types import Array

COSTS_PER_LIMIT = 1.5  # a cost of d counts as this much: 10 is the unit of the paper's limit of 15


class Episodes(NamedTuple):
    """Channel 0 is the return, channel 1 + c the cost channel c."""

    running: Array  # [B, 1 + C] sums of the episodes under way
    recent: quantile.Window  # [1 + C, W] totals of the last W finished


class Finished(NamedTuple):
    """The episodes that ended in this batch, in order, in a fixed number of places."""

    totals: Array  # [E, 1 + C]
    mask: Array  # [E] which places are taken


class Estimates(NamedTuple):
    """Per constraint, over the window; all 0 while it is empty."""

    quantile: Array  # [K] q̂ of the episode cost at the level that was asked for, to report
    mean: Array  # [K]
    safety_prob: Array  # [K] Pr[C ≤ d]
    bounded: Array  # [K] what the constraint bounds in training: q̂ with the margin, or the mean
    n_episodes: Array  # [] in the window


def init(n_envs: int, n_costs: int, window: int) -> Episodes:
    """No episode yet."""
    empty = quantile.window_init(window)
    recent = jax.tree.map(lambda x: jnp.broadcast_to(x, (1 + n_costs, *x.shape)), empty)
    return Episodes(jnp.zeros((n_envs, 1 + n_costs)), recent)


def add(
    episodes: Episodes, reward: Array, cost: Array, cut: Array, most: int, counted: Array | None = None
) -> tuple[Episodes, Finished, Array]:
    """Adds a batch [T, B] in which at most `most` episodes end; also the episode's cost up to and with each step, [T, B, C].

    Of those that end at `cut` only some may be `counted`; by default all are.
    """
    x = jnp.concatenate([reward[..., None], cost], -1)  # [T, B, 1 + C]
    running, totals = returns.accumulate_episodes(episodes.running, x, cut)
    counted = cut if counted is None else counted
    (at,) = jnp.nonzero(counted.reshape(-1), size=most, fill_value=0)  # time-major: in the order they ended
    finished = Finished(totals.reshape(-1, totals.shape[-1])[at], jnp.arange(most) < counted.sum())
    push = jax.vmap(quantile.window_push, in_axes=(0, 1, None))
    return Episodes(running, push(episodes.recent, finished.totals, finished.mask)), finished, totals[..., 1:]


def cost_before(episodes: Episodes, cost_after: Array, cut: Array) -> Array:
    """[T, B, C] the episode's cost before each step: that after the step before it, or 0 where an episode begins.

    `episodes` is as it was before the batch. Nothing is subtracted, so the two agree to the last bit.
    """
    begun = jnp.where(cut[:-1, :, None], 0.0, cost_after[:-1])
    return jnp.concatenate([episodes.running[None, :, 1:], begun])


def limits(constraints: tuple[Constraint, ...]) -> Array:
    """d of each constraint, [K]."""
    return jnp.stack([jnp.asarray(c.limit, float) for c in constraints])


def units(limit: Array) -> Array:
    """[K] the cost that counts as 1 where limits [K] set the scale, d/1.5; 1 for a limit of 0, which has no unit."""
    return jnp.where(limit > 0, limit / COSTS_PER_LIMIT, 1.0)


def levels(constraints: tuple[Constraint, ...]) -> Array:
    """The level that training bounds the quantile at, [K]: 1 − ε·(1 − margin)."""
    return jnp.stack([jnp.asarray(1.0 - (1.0 - c.safety) * (1.0 - c.margin), float) for c in constraints])


def bounds_quantile(constraints: tuple[Constraint, ...]) -> Array:
    """Which constraints bound a quantile, [K] bool; the others bound a mean."""
    return jnp.array([c.kind == "quantile" for c in constraints])


def channels(constraints: tuple[Constraint, ...]) -> Array:
    """The cost channel of each constraint, [K]."""
    return jnp.array([c.channel for c in constraints])


def estimate(episodes: Episodes, constraints: tuple[Constraint, ...]) -> Estimates:
    """Quantile, mean and safety probability of the recent episode costs."""
    rows = 1 + channels(constraints)
    costs = episodes.recent.values[rows]  # [K, W]
    mask = quantile.window_mask(episodes.recent)[rows]
    count = episodes.recent.count[0]
    asked = jnp.stack([jnp.asarray(c.safety, float) for c in constraints])
    q = jax.vmap(quantile.empirical_quantile)(costs, asked, mask)
    held = jax.vmap(quantile.empirical_quantile)(costs, levels(constraints), mask)
    if any(c.upper for c in constraints):
        above = jax.vmap(functools.partial(quantile.empirical_quantile, upper=True))(costs, levels(constraints), mask)
        held = jnp.where(jnp.array([c.upper for c in constraints]), above, held)
    mean = jnp.sum(jnp.where(mask, costs, 0.0), -1) / jnp.maximum(count, 1)
    safe = jax.vmap(quantile.safety_probability)(costs, limits(constraints), mask)
    return Estimates(q, mean, safe, jnp.where(bounds_quantile(constraints), held, mean), count)


def metrics(
    episodes: Episodes, finished: Finished, constraints: tuple[Constraint, ...], found: Estimates
) -> dict[str, Array]:
    """Means over the window, and sums over this batch's episodes.

    A batch may finish no episode, and then it has no mean. So a batch reports sums and a count, which add up over any
    stretch of training: Σ return_sum / Σ episodes.
    """
    count = jnp.maximum(found.n_episodes, 1)
    returns_ = jnp.where(quantile.window_mask(episodes.recent)[0], episodes.recent.values[0], 0.0)
    totals = jnp.where(finished.mask[:, None], finished.totals, 0.0)  # [E, 1 + C]
    costs = finished.totals[:, 1 + channels(constraints)]  # [E, K]
    within = finished.mask[:, None] & (costs <= limits(constraints))
    return {
        "return_mean": returns_.sum() / count,
        "episode_cost_mean": found.mean,
        "episode_cost_quantile": found.quantile,
        "safety_prob": found.safety_prob,
        "window_episodes": found.n_episodes,
        "episodes": finished.mask.sum(),
        "return_sum": totals[:, 0].sum(),
        "episode_cost_sum": totals[:, 1:].sum(0),  # [C] every channel of the task
        "safe_episodes": within.sum(0),  # [K]
    }
