"""The contact problem as a small convex optimisation.

The accelerations minimise

    f(a) = ½ (a − a₀)ᵀ M (a − a₀) + Σᵢ ½ Dᵢ·min(0, Jᵢ·a − a_ref,i)²

a strictly convex, piecewise quadratic function. A Newton step solves the quadratic of the present set of active rows;
if the set is the same at its end, the end is the minimum, exactly. Otherwise a line search along the step keeps the
descent monotone, which makes the iteration converge from every state (bare Newton cycles when two deep contacts
compete).

Vectors are tuples of arrays of one common shape (the batch), so that the same code runs under `vmap` and inside a GPU
kernel.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from tqpo.types import Array

Vector = tuple[Array, ...]
Matrix = tuple[Vector, ...]  # symmetric

MAX_ITERATIONS = 25
LINE_SEARCH_ITERATIONS = 6


class Row(NamedTuple):
    """One inequality row; `stiffness` 0 switches it off. `multiplicity` equal rows count as one of that weight."""

    jacobian: Vector  # J, [n]
    reference: Array  # a_ref
    stiffness: Array  # D × multiplicity


def dot(a: Vector, b: Vector) -> Array:
    total = a[0] * b[0]
    for x, y in zip(a[1:], b[1:], strict=True):
        total = total + x * y
    return total


def multiply(matrix: Matrix, vector: Vector) -> Vector:
    return tuple(dot(row, vector) for row in matrix)


def solve_spd(matrix: Matrix, rhs: Vector) -> Vector:
    """Solves A x = b for a symmetric positive definite A by an unrolled LDLᵀ factorisation."""
    n = len(rhs)
    low: list[list[Array]] = [[None] * n for _ in range(n)]  # type: ignore[list-item]
    pivot_inv: list[Array] = []
    pivots: list[Array] = []
    for j in range(n):
        pivot = matrix[j][j]
        for k in range(j):
            pivot = pivot - low[j][k] * low[j][k] * pivots[k]
        pivots.append(pivot)
        pivot_inv.append(1.0 / pivot)
        for i in range(j + 1, n):
            entry = matrix[i][j]
            for k in range(j):
                entry = entry - low[i][k] * low[j][k] * pivots[k]
            low[i][j] = entry * pivot_inv[j]
    y: list[Array] = []
    for i in range(n):
        value = rhs[i]
        for k in range(i):
            value = value - low[i][k] * y[k]
        y.append(value)
    x: list[Array] = [v * d for v, d in zip(y, pivot_inv, strict=True)]
    for i in reversed(range(n)):
        for k in range(i + 1, n):
            x[i] = x[i] - low[k][i] * x[k]
    return tuple(x)


def some(mask: Array) -> Array:
    """Whether any entry is true, as a maximum: kernels have no `any`."""
    return jnp.max(jnp.where(mask, 1, 0)) > 0


def residuals(rows: list[Row], a: Vector) -> list[Array]:
    return [dot(row.jacobian, a) - row.reference for row in rows]


def newton_target(inertia: Matrix, free: Vector, rows: list[Row], active: list[Array]) -> Vector:
    """Minimum of the quadratic in which just the `active` rows pull."""
    n = len(free)
    hessian = [list(row) for row in inertia]
    pull = list(multiply(inertia, free))
    for row, on in zip(rows, active, strict=True):
        weight = jnp.where(on, row.stiffness, 0.0)
        for i in range(n):
            weighted = weight * row.jacobian[i]
            pull[i] = pull[i] + weighted * row.reference
            for j in range(i + 1):
                hessian[i][j] = hessian[i][j] + weighted * row.jacobian[j]
    for i in range(n):
        for j in range(i):
            hessian[j][i] = hessian[i][j]
    return solve_spd(tuple(tuple(row) for row in hessian), tuple(pull))


def step_length(inertia: Matrix, free: Vector, rows: list[Row], a: Vector, step: Vector) -> Array:
    """The α ∈ (0, 1] that minimises φ(α) = f(a + α·step): safeguarded Newton on φ′, monotone and piecewise linear."""
    offset = tuple(x - y for x, y in zip(a, free, strict=True))
    inertia_step = multiply(inertia, step)
    linear, quadratic = dot(offset, inertia_step), dot(step, inertia_step)
    start = residuals(rows, a)
    slope = [dot(row.jacobian, step) for row in rows]

    def derivatives(alpha):
        first, second = linear + alpha * quadratic, quadratic
        for row, r, s in zip(rows, start, slope, strict=True):
            value = r + alpha * s
            weight = jnp.where(value < 0, row.stiffness, 0.0) * s
            first, second = first + weight * value, second + weight * s
        return first, second

    def refine(_, carry):
        alpha, low, high = carry
        first, second = derivatives(alpha)
        low, high = jnp.where(first < 0, alpha, low), jnp.where(first < 0, high, alpha)
        proposal = alpha - first / second
        inside = (proposal > low) & (proposal < high)
        return jnp.where(inside, proposal, 0.5 * (low + high)), low, high

    one = jnp.ones_like(linear)
    first, _ = derivatives(one)
    alpha, _, _ = lax.fori_loop(0, LINE_SEARCH_ITERATIONS, refine, (one, jnp.zeros_like(one), one))
    return jnp.where(first <= 0, one, alpha)


def minimise(inertia: Matrix, free: Vector, rows: list[Row]) -> Vector:
    """argmin f, started at the unconstrained acceleration a₀ = `free`."""

    def unfinished(carry):
        iteration, _, done = carry
        return (iteration < MAX_ITERATIONS) & some(~done)

    def improve(carry):
        iteration, a, done = carry
        active = [r < 0 for r in residuals(rows, a)]
        target = newton_target(inertia, free, rows, active)
        settled = jnp.ones_like(done)
        for on, r, row in zip(active, residuals(rows, target), rows, strict=True):
            settled = settled & ((on == (r < 0)) | (row.stiffness == 0))
        step = tuple(t - x for t, x in zip(target, a, strict=True))
        alpha = lax.cond(
            some(~(settled | done)), lambda: step_length(inertia, free, rows, a, step), lambda: jnp.ones_like(a[0])
        )
        searched = tuple(jnp.where(settled, t, x + alpha * s) for t, x, s in zip(target, a, step, strict=True))
        kept = tuple(jnp.where(done, x, y) for x, y in zip(a, searched, strict=True))
        return iteration + 1, kept, done | settled

    nothing_active = jnp.ones_like(free[0], dtype=bool)
    for r, row in zip(residuals(rows, free), rows, strict=True):
        nothing_active = nothing_active & ((r >= 0) | (row.stiffness == 0))
    _, solution, _ = lax.while_loop(unfinished, improve, (0, free, nothing_active))
    return solution
