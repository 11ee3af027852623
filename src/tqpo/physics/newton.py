"""The contact problem of two bodies in nine whitened variables.

With the free motion and the weld taken out (z = 0) and their Hessian made the identity, the contact forces minimise

    f(z) = ½ |z|² + ½ Σ_slots D Σ_{k=1..5} min(0, c₀ + c_k)² + min(0, c₀ − c_k)²,        c = J·z + e

where c₀ is a contact's normal and c₁ … c₅ its two tangential, one torsional and two rolling projections, each already
multiplied by its friction coefficient: ten pyramid rows from six projections. f is strictly convex and piecewise
quadratic, so a Newton step that keeps its set of active rows ends at the minimum, exactly; otherwise a line search on
the monotone f′ keeps the descent going.

Variables are arrays [..., 1], projections [..., slots]; sums over slots are the only operations that mix lanes.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from tqpo.physics.solver import dot, solve_spd
from tqpo.types import Array

MAX_ITERATIONS = 30
LINE_SEARCH_ITERATIONS = 12
LINE_SEARCH_TOLERANCE = 0.05  # |f′(α)| / |f′(0)|

Vector = tuple[Array, ...]
Column = dict[int, Array]  # one column of J by projection number; a missing number is a zero of the structure


class Problem(NamedTuple):
    jacobian: tuple[Column, ...]  # J, n columns of up to six [..., slots]
    offset: Vector  # e, six of [..., slots]
    stiffness: Array  # D, [..., slots]; 0 switches a slot off


def add_up(terms: list[Array]) -> Array:
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def total(x: Array) -> Array:
    """Sum over slots, [..., 1]."""
    return jnp.sum(x, axis=-1, keepdims=True)


def some(flags: Array) -> Array:
    """Whether any is true, as a scalar. GPU kernels reduce numbers only, and one axis at a time."""
    count = jnp.where(flags, 1, 0)
    while count.ndim:
        count = jnp.max(count, axis=-1)
    return count > 0


def product(jacobian: tuple[Column, ...], z: Vector) -> Vector:
    """J·z."""
    return tuple(
        add_up([column[k] * x for column, x in zip(jacobian, z, strict=True) if k in column]) for k in range(6)
    )


def project(problem: Problem, z: Vector) -> Vector:
    """c = J·z + e."""
    return tuple(c + e for c, e in zip(product(problem.jacobian, z), problem.offset, strict=True))


def pattern(problem: Problem, c: Vector) -> Array:
    """The active rows of each slot as a ten-bit number (exact in float32): equal numbers, equal sets."""
    bits = [jnp.where(c[0] + ck < 0, 4.0**k, 0.0) for k, ck in enumerate(c[1:])]
    bits += [jnp.where(c[0] - ck < 0, 2.0 * 4.0**k, 0.0) for k, ck in enumerate(c[1:])]
    return jnp.where(problem.stiffness > 0, add_up(bits), 0.0)


def gradient(problem: Problem, z: Vector, c: Vector) -> Vector:
    """z + Jᵀ·(force along each projection)."""
    plus = [problem.stiffness * jnp.minimum(c[0] + ck, 0.0) for ck in c[1:]]
    minus = [problem.stiffness * jnp.minimum(c[0] - ck, 0.0) for ck in c[1:]]
    force = [add_up(plus + minus)] + [p - m for p, m in zip(plus, minus, strict=True)]
    return tuple(
        x + total(add_up([j * force[k] for k, j in column.items()]))
        for x, column in zip(z, problem.jacobian, strict=True)
    )


def weigh(column: Column, both: list[Array], skew: list[Array]) -> Column:
    """W·column, where W sums D·(1, ±1ₖ)(1, ±1ₖ)ᵀ over a slot's active rows.

    W is a diagonal, `both`, with `skew` in its first row and column.
    """
    result = {0: add_up([(both if k == 0 else skew)[k] * j for k, j in column.items()])}
    for k in range(1, 6):
        terms = ([skew[k] * column[0]] if 0 in column else []) + ([both[k] * column[k]] if k in column else [])
        if terms:
            result[k] = add_up(terms)
    return result


def hessian(problem: Problem, c: Vector) -> tuple[Vector, ...]:
    """1 + Jᵀ·W·J."""
    plus = [jnp.where(c[0] + ck < 0, problem.stiffness, 0.0) for ck in c[1:]]
    minus = [jnp.where(c[0] - ck < 0, problem.stiffness, 0.0) for ck in c[1:]]
    both = [add_up(plus + minus)] + [p + m for p, m in zip(plus, minus, strict=True)]
    skew = [both[0]] + [p - m for p, m in zip(plus, minus, strict=True)]
    weighted = [weigh(column, both, skew) for column in problem.jacobian]
    lower = [
        [
            total(add_up([j * weighted[other][k] for k, j in column.items() if k in weighted[other]]))
            for other in range(i + 1)
        ]
        for i, column in enumerate(problem.jacobian)
    ]
    n = len(lower)
    return tuple(tuple(lower[max(i, j)][min(i, j)] + (1.0 if i == j else 0.0) for j in range(n)) for i in range(n))


def step_length(problem: Problem, z: Vector, c: Vector, step: Vector, slope: Array, full: Array) -> Array:
    """α ≈ argmin f(z + α·step) by safeguarded Newton on f′, which is `slope` at 0; 1 where `full` or good enough."""
    rate = product(problem.jacobian, step)
    linear, quadratic = dot(z, step), dot(step, step)

    def derivatives(alpha):
        at = [ck + alpha * rk for ck, rk in zip(c, rate, strict=True)]
        rows = [(at[0] + a, rate[0] + r) for a, r in zip(at[1:], rate[1:], strict=True)]
        rows += [(at[0] - a, rate[0] - r) for a, r in zip(at[1:], rate[1:], strict=True)]
        pull = [jnp.where(value < 0, problem.stiffness * speed, 0.0) for value, speed in rows]
        first = add_up([p * value for p, (value, _) in zip(pull, rows, strict=True)])
        second = add_up([p * speed for p, (_, speed) in zip(pull, rows, strict=True)])
        return linear + alpha * quadratic + total(first), quadratic + total(second)

    def unfinished(carry):
        iteration, _, _, _, done = carry
        return (iteration < LINE_SEARCH_ITERATIONS) & some(~done)

    def refine(carry):
        iteration, alpha, low, high, done = carry
        first, second = derivatives(alpha)
        done = done | (abs(first) <= LINE_SEARCH_TOLERANCE * abs(slope))
        low, high = jnp.where(first < 0, alpha, low), jnp.where(first < 0, high, alpha)
        guess = alpha - first / second
        guess = jnp.where((guess > low) & (guess < high), guess, 0.5 * (low + high))
        return iteration + 1, jnp.where(done, alpha, guess), low, high, done

    one = jnp.ones_like(slope)
    _, alpha, low, _, done = lax.while_loop(unfinished, refine, (0, one, 0.0 * one, 2.0 * one, full))
    return jnp.where(done | (low == 0), alpha, low)


def minimise(problem: Problem, start: Vector) -> tuple[Vector, Array]:
    """argmin f from `start`, and the number of Newton steps taken, [..., 1]. Without any contact, 0 and none."""

    def unfinished(carry):
        iteration, _, done, _ = carry
        return (iteration < MAX_ITERATIONS) & some(~done)

    def improve(carry):
        iteration, z, done, count = carry
        c = project(problem, z)
        slope = gradient(problem, z, c)
        step = tuple(-x for x in solve_spd(hessian(problem, c), slope))
        end = project(problem, tuple(x + s for x, s in zip(z, step, strict=True)))
        same = jnp.where(pattern(problem, c) == pattern(problem, end), 1.0, 0.0)
        negligible = dot(step, step) <= tiny * dot(z, z)  # a row at zero to rounding would switch for ever
        settled = done | negligible | (jnp.min(same, axis=-1, keepdims=True) > 0)
        alpha = step_length(problem, z, c, step, dot(slope, step), settled)
        z = tuple(jnp.where(done, x, x + alpha * s) for x, s in zip(z, step, strict=True))
        return iteration + 1, z, settled, count + jnp.where(done, 0, 1)

    tiny = (4.0 * float(jnp.finfo(problem.stiffness.dtype).eps)) ** 2
    idle = jnp.max(problem.stiffness, axis=-1, keepdims=True) == 0
    z = tuple(jnp.where(idle, 0.0, x) for x in start)
    _, z, _, count = lax.while_loop(unfinished, improve, (0, z, idle, jnp.zeros(idle.shape, jnp.int32)))
    return z, count
