"""The contact problem of two bodies in nine whitened variables.

With the free motion and the weld taken out (z = 0) and their Hessian made the identity, the contact forces minimise

    f(z) = ½ |z|² + ½ Σ_slots D Σ_{k=1..5} min(0, c₀ + c_k)² + min(0, c₀ − c_k)²,        c = J·z + e

where c₀ is a contact's normal and c₁ … c₅ its two tangential, one torsional and two rolling projections, each already multiplied by
its friction coefficient: ten pyramid rows from six projections. f is strictly convex and piecewise quadratic, so a Newton step that
keeps its set of active rows ends at the minimum, exactly; otherwise a line search on the monotone f′ keeps the descent going.

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
Projection = tuple[Array | None, ...]  # one row of J; None: a zero of the structure


class Problem(NamedTuple):
    jacobian: tuple[Projection, ...]  # J, 6 × n of [..., slots]
    offset: Vector  # e, 6 of [..., slots]
    stiffness: Array  # D, [..., slots]; 0 switches a slot off


def total(x: Array) -> Array:
    """Sum over slots, [..., 1]."""
    return jnp.sum(x, axis=-1, keepdims=True)


def product(row: Projection, z: Vector) -> Array:
    return sum(j * x for j, x in zip(row, z, strict=True) if j is not None)  # type: ignore[return-value]


def project(problem: Problem, z: Vector) -> Vector:
    """c = J·z + e."""
    return tuple(e + product(row, z) for e, row in zip(problem.offset, problem.jacobian, strict=True))


def pattern(problem: Problem, c: Vector) -> Array:
    """The active rows of each slot as a ten-bit number (exact in float32); equal numbers, equal sets."""
    code = jnp.zeros_like(c[0])
    for k in range(1, 6):
        code = (
            code
            + jnp.where(c[0] + c[k] < 0, 2.0 ** (2 * k - 2), 0.0)
            + jnp.where(c[0] - c[k] < 0, 2.0 ** (2 * k - 1), 0.0)
        )
    return jnp.where(problem.stiffness > 0, code, 0.0)


def gradient(problem: Problem, z: Vector, c: Vector) -> Vector:
    """z + Jᵀ·(force on each projection)."""
    plus = [jnp.minimum(c[0] + ck, 0.0) for ck in c[1:]]
    minus = [jnp.minimum(c[0] - ck, 0.0) for ck in c[1:]]
    force = [problem.stiffness * sum(p + m for p, m in zip(plus, minus, strict=True))]
    force += [problem.stiffness * (p - m) for p, m in zip(plus, minus, strict=True)]
    result = []
    for i, zi in enumerate(z):
        terms = [row[i] * f for row, f in zip(problem.jacobian, force, strict=True) if row[i] is not None]
        result.append(zi + total(sum(terms)))
    return tuple(result)


def hessian(problem: Problem, c: Vector) -> tuple[Vector, ...]:
    """1 + Jᵀ·W·J, with W the arrow-shaped sum over a slot's active rows (1, ±1_k)(1, ±1_k)ᵀ·D."""
    plus = [jnp.where(c[0] + ck < 0, problem.stiffness, 0.0) for ck in c[1:]]
    minus = [jnp.where(c[0] - ck < 0, problem.stiffness, 0.0) for ck in c[1:]]
    both = [p + m for p, m in zip(plus, minus, strict=True)]
    skew = [p - m for p, m in zip(plus, minus, strict=True)]
    jacobian, n = problem.jacobian, len(problem.jacobian[0])
    weighted = []  # W·J, column by column
    for i in range(n):
        normal = jacobian[0][i]
        tip = 0.0 if normal is None else sum(both) * normal
        column = []
        for row, b, s in zip(jacobian[1:], both, skew, strict=True):
            entry = None if normal is None else s * normal
            if row[i] is not None:
                tip = tip + s * row[i]
                entry = b * row[i] if entry is None else entry + b * row[i]
            column.append(entry)
        weighted.append([tip, *column])
    result = [[None] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            terms = [
                row[i] * w for row, w in zip(jacobian, weighted[j], strict=True) if row[i] is not None and w is not None
            ]
            value = total(sum(terms))
            result[i][j] = result[j][i] = value + 1.0 if i == j else value
    return tuple(tuple(row) for row in result)


def step_length(problem: Problem, z: Vector, c: Vector, step: Vector) -> Array:
    """α ≈ argmin f(z + α·step) by safeguarded Newton on f′; exactly 1 if the full step is good enough."""
    slope = tuple(product(row, step) for row in problem.jacobian)
    linear, quadratic = dot(z, step), dot(step, step)

    def derivatives(alpha):
        at = [ck + alpha * sk for ck, sk in zip(c, slope, strict=True)]
        first, second = 0.0, 0.0
        for k in range(1, 6):
            for sign in (1.0, -1.0):
                value, rate = at[0] + sign * at[k], slope[0] + sign * slope[k]
                pull = jnp.where(value < 0, rate, 0.0)
                first, second = first + pull * value, second + pull * rate
        return (
            linear + alpha * quadratic + total(problem.stiffness * first),
            quadratic + total(problem.stiffness * second),
        )

    zero, one = jnp.zeros_like(linear), jnp.ones_like(linear)
    enough = LINE_SEARCH_TOLERANCE * abs(derivatives(zero)[0])

    def unfinished(carry):
        iteration, *_, done = carry
        return (iteration < LINE_SEARCH_ITERATIONS) & (jnp.max(jnp.where(done, 0, 1)) > 0)

    def refine(carry):
        iteration, alpha, low, high, done = carry
        first, second = derivatives(alpha)
        done = done | (abs(first) <= enough)
        low, high = jnp.where(first < 0, alpha, low), jnp.where(first < 0, high, alpha)
        proposal = alpha - first / second
        proposal = jnp.where((proposal > low) & (proposal < high), proposal, 0.5 * (low + high))
        return iteration + 1, jnp.where(done, alpha, proposal), low, high, done

    start = (0, one, zero, 2.0 * one, jnp.zeros(one.shape, bool))
    _, alpha, low, _, done = lax.while_loop(unfinished, refine, start)
    return jnp.where(done, alpha, jnp.where(low > 0, low, alpha))


def minimise(problem: Problem, start: Vector) -> tuple[Vector, Array]:
    """argmin f from `start`, and the number of Newton steps, [..., 1]."""

    def unfinished(carry):
        iteration, _, done, _ = carry
        return (iteration < MAX_ITERATIONS) & (jnp.max(jnp.where(done, 0, 1)) > 0)

    def improve(carry):
        iteration, z, done, count = carry
        c = project(problem, z)
        minus_step = solve_spd(hessian(problem, c), gradient(problem, z, c))
        step = tuple(-x for x in minus_step)
        target = tuple(x + d for x, d in zip(z, step, strict=True))
        change = jnp.where(pattern(problem, c) == pattern(problem, project(problem, target)), 0.0, 1.0)
        settled = jnp.max(change, axis=-1, keepdims=True) == 0
        alpha = jnp.where(settled, 1.0, step_length(problem, z, c, step))
        z = tuple(jnp.where(done, x, x + alpha * d) for x, d in zip(z, step, strict=True))
        return iteration + 1, z, done | settled, count + jnp.where(done, 0, 1)

    nothing = jnp.max(jnp.where(problem.stiffness > 0, 1.0, 0.0), axis=-1, keepdims=True) == 0
    count = jnp.zeros(nothing.shape, jnp.int32)
    _, z, _, count = lax.while_loop(unfinished, improve, (0, start, nothing, count))
    return z, count
