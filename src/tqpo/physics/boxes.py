"""Where a robot touches a free box: MuJoCo's sphere–box and box–box contacts, in a fixed number of slots.

All vectors are in the robot's frame: origin at its sphere's centre, x along its heading, z up. So the robot's cube
(half-sizes h₁) is aligned with the axes; the other box (half-sizes h₂) has centre p and axes R₀, R₁, R₂. An array of one
number per environment has shape [..., 1], one per contact [..., slots]; slots that hold no contact are masked. There are
SLOTS of them, or more where `movable.py` and `loose.py` have others to add.

| slots | contact |
|---|---|
| 0–3, 4–7 | where edge k of the incident face enters, leaves the column over the reference face |
| 8–11 | corner k of the reference face, under the incident face |
| 12 | edge against edge |
| 13 | the robot's sphere against the box |

Two boxes are tested along 15 axes (six face normals, nine products of edges); the one with the least overlap decides.
For a face normal the opposing ("incident") face of the other box is clipped to the reference face, and every vertex of
the clipped polygon below it is a contact. For a product of edges the contact lies midway between the two edges. This is
the collider of MuJoCo ≥ 3.12; earlier ones find other points. Its removal of coincident vertices is approximated by the
`duplicate` tolerance.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from tqpo.physics.newton import add_up, some
from tqpo.physics.solver import dot
from tqpo.types import Array

SLOTS = 16
EDGE_SLOT, SPHERE_SLOT = 12, 13

Vec = tuple[Array, ...]  # x, y, z
Axes = tuple[Vec, ...]  # the three columns of a rotation matrix
Sizes = tuple[Array | float, ...]  # m, half-sizes of a box along its axes


class Contacts(NamedTuple):
    """Contacts of the robot (first) with a box (second), in the robot's frame."""

    dist: Array  # [..., slots] m, negative: penetration
    point: Vec  # [..., slots] m, midway between the two surfaces
    normal: Vec  # [..., slots] unit, from the robot to the box
    active: Array  # [..., slots] bool


class Overlap(NamedTuple):
    """The axis of least overlap of two boxes, all fields [..., 1]."""

    apart: Array  # bool: some axis separates them
    by_edge: Array  # bool: the axis is a product of edges
    face: Array  # int: best face normal, 0–2 of the first box, 3–5 of the second
    edge: tuple[Array, Array]  # int: the two edge directions of the product
    axis: Vec  # the unit product, of either sign


class Rounding(NamedTuple):
    """Tolerances of one floating-point type; MuJoCo's own where it has them."""

    parallel: float  # sin² of an angle below which two edges count as parallel
    tie: float  # m, by how much a product of edges must beat a face
    duplicate: float  # fraction of an edge within which two vertices are one


def rounding(x: Array) -> Rounding:
    return Rounding(1e-16, 0.0, 1e-7) if x.dtype == jnp.float64 else Rounding(1e-7, 5e-7, 1e-5)


def add(a: Vec, b: Vec) -> Vec:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def sub(a: Vec, b: Vec) -> Vec:
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def scale(s: Array | float, a: Vec) -> Vec:
    return s * a[0], s * a[1], s * a[2]


def cross(a: Vec, b: Vec) -> Vec:
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def where(condition: Array, a: Vec, b: Vec) -> Vec:
    return tuple(jnp.where(condition, x, y) for x, y in zip(a, b, strict=True))


def combine(axes: Axes, coefficients: Vec) -> Vec:
    """Σₖ cₖ·axisₖ."""
    return add(add(scale(coefficients[0], axes[0]), scale(coefficients[1], axes[1])), scale(coefficients[2], axes[2]))


def choose(index: Array, vectors: Axes, shift: int = 0) -> Vec:
    """vectors[(index + shift) mod 3]."""
    a, b, c = (vectors[(k + shift) % 3] for k in range(3))
    return where(index == 0, a, where(index == 1, b, c))


def pick(index: Array, values: Sizes, shift: int = 0) -> Array:
    """values[(index + shift) mod 3], of numbers."""
    a, b, c = (values[(k + shift) % 3] for k in range(3))
    return jnp.where(index == 0, a, jnp.where(index == 1, b, c))


def identity(like: Array) -> Axes:
    one, zero = jnp.ones_like(like), jnp.zeros_like(like)
    return (one, zero, zero), (zero, one, zero), (zero, zero, one)


def sign(x: Array) -> Array:
    """±1, with +1 at zero."""
    return jnp.where(x >= 0, 1.0, -1.0).astype(x.dtype)


def slots_like(x: Array, slots: int) -> Array:
    """0, 1, …, slots − 1 along the last axis, int."""
    shape = (*x.shape[:-1], slots)
    return lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1)


def sphere_contact(radius: float, half: Sizes, centre: Vec, axes: Axes) -> tuple[Array, Vec, Vec]:
    """The robot's sphere (at the origin) against a box: dist, point, normal, each of the shape of `centre`.

    The normal points from the sphere's centre c to the nearest point of the box; a centre inside the box leaves by
    the nearest face, and its depth counts that way too.
    """
    local = tuple(-dot(axis, centre) for axis in axes)  # the sphere's centre in the box's frame
    nearest = tuple(jnp.clip(x, -h, h) for x, h in zip(local, half, strict=True))
    gap = sub(nearest, local)
    squared = dot(gap, gap)
    outside = squared > 1e-30
    distance = jnp.sqrt(jnp.where(outside, squared, 1.0))

    depth = [h - jnp.abs(x) for x, h in zip(local, half, strict=True)]
    by_x = (depth[0] <= depth[1]) & (depth[0] <= depth[2])
    by_y = ~by_x & (depth[1] <= depth[2])
    inward = tuple(
        jnp.where(by, jnp.where(x > 0, -1.0, 1.0), 0.0)
        for by, x in zip((by_x, by_y, ~by_x & ~by_y), local, strict=True)
    )
    least = jnp.minimum(jnp.minimum(depth[0], depth[1]), depth[2])

    normal = where(outside, scale(1.0 / distance, gap), inward)
    dist = jnp.where(outside, distance, -least) - radius
    middle = jnp.where(outside, radius + 0.5 * dist, 0.5 * (radius - least))
    along = combine(axes, normal)
    return dist, scale(middle, along), along


def find_axis(half1: Sizes, half2: Sizes, offset: Vec, axes: Axes) -> Overlap:
    """Separating-axis test of two boxes; `offset` from the first centre to the second, `axes` of the second.

    Along a unit axis n the gap is |n·p| − Σᵢ h₁ᵢ·|nᵢ| − Σⱼ h₂ⱼ·|n·Rⱼ|; the largest gap decides. A product of edges must
    beat the faces clearly, and yields to a face normal within 8° of it unless its overlap is 5 % less.
    """
    tolerance = rounding(offset[0])
    gaps = [
        abs(offset[i]) - half1[i] - add_up([h * abs(axis[i]) for h, axis in zip(half2, axes, strict=True)])
        for i in range(3)
    ]
    gaps += [
        abs(dot(offset, axis)) - h2 - add_up([h * abs(x) for h, x in zip(half1, axis, strict=True)])
        for h2, axis in zip(half2, axes, strict=True)
    ]
    best, face = gaps[0], jnp.zeros(gaps[0].shape, jnp.int32)
    for k in range(1, 6):
        face, best = jnp.where(gaps[k] > best, k, face), jnp.maximum(gaps[k], best)
    best_face, most = best, best

    axis = (jnp.zeros_like(best),) * 3
    first, second = jnp.zeros_like(face), jnp.zeros_like(face)
    by_edge = jnp.zeros(best.shape, bool)
    for i in range(3):
        for j in range(3):
            product, gap, valid = edge_axis(half1, half2, offset, axes, i, j, tolerance.parallel)
            most = jnp.where(valid, jnp.maximum(most, gap), most)
            better = valid & (gap - 1e-6 * abs(gap) > best) & (gap > best_face + tolerance.tie)
            best = jnp.where(better, gap, best)
            axis = where(better, product, axis)
            first, second = jnp.where(better, i, first), jnp.where(better, j, second)
            by_edge = by_edge | better

    normal = where(face < 3, choose(face, identity(best)), choose(face - 3, axes))
    close = (abs(dot(axis, normal)) > 0.99) & (best < best_face + 0.05 * abs(best_face) + 1e-15)
    return Overlap(most > 0, by_edge & ~close, face, (first, second), axis)


def edge_axis(half1: Sizes, half2: Sizes, offset: Vec, axes: Axes, i: int, j: int, parallel: float):
    """The unit axis eᵢ × Rⱼ, the gap along it, and whether the edges are far enough from parallel."""
    i1, i2, j1, j2 = (i + 1) % 3, (i + 2) % 3, (j + 1) % 3, (j + 2) % 3
    a1, a2 = -axes[j][i2], axes[j][i1]  # the product's components i1, i2; component i is zero
    squared = a1 * a1 + a2 * a2
    valid = squared >= parallel
    inverse = 1.0 / jnp.sqrt(jnp.where(valid, squared, 1.0))
    a1, a2 = a1 * inverse, a2 * inverse
    reach1 = half1[i1] * abs(a1) + half1[i2] * abs(a2)
    reach2 = (half2[j1] * abs(axes[j2][i]) + half2[j2] * abs(axes[j1][i])) * inverse  # (eᵢ × Rⱼ)·Rⱼ₁ = eᵢ·Rⱼ₂
    gap = abs(a1 * offset[i1] + a2 * offset[i2]) - reach1 - reach2
    components = [jnp.zeros_like(a1)] * 3
    components[i1], components[i2] = a1, a2
    return tuple(components), gap, valid


def edge_contact(half1: Sizes, half2: Sizes, offset: Vec, axes: Axes, overlap: Overlap) -> tuple[Array, Vec, Vec]:
    """Edge against edge: dist, point (from the first box's centre), normal, each [..., 1].

    On each box the edge farthest along ±n; on these two segments the closest points w₁, w₂; dist = n·(w₂ − w₁).
    """
    first, second = overlap.edge
    normal = scale(sign(dot(overlap.axis, offset)), overlap.axis)
    corner1 = tuple(jnp.where(first == k, 0.0, half1[k] * sign(normal[k])) for k in range(3))
    inside = tuple(jnp.where(second == k, 0.0, -half2[k] * sign(dot(normal, axes[k]))) for k in range(3))
    corner2 = add(offset, combine(axes, inside))
    along1, along2 = choose(first, identity(normal[0])), choose(second, axes)

    between = sub(corner2, corner1)
    cosine, e1, e2 = dot(along1, along2), dot(along1, between), dot(along2, between)
    sine2 = jnp.maximum(1.0 - cosine * cosine, 1e-15)
    long1, long2 = pick(first, half1), pick(second, half2)
    s = jnp.clip((e1 - cosine * e2) / sine2, -long1, long1)
    t = jnp.clip(cosine * s - e2, -long2, long2)
    s = jnp.clip(e1 + cosine * t, -long1, long1)
    w1, w2 = add(corner1, scale(s, along1)), add(corner2, scale(t, along2))
    return dot(normal, sub(w2, w1)), scale(0.5, add(w1, w2)), normal


def clip_edge(half: Sizes, start: tuple[Array, ...], step: tuple[Array, ...]) -> tuple[Array, Array, Array]:
    """The part of a segment over the rectangle |x|, |y| ≤ half: fractions where it enters and leaves; is there any?"""
    enter, leave = jnp.zeros_like(start[0]), jnp.ones_like(start[0])
    over = jnp.ones(start[0].shape, bool)
    for p, d, h in zip(start, step, half, strict=True):
        for side in (1.0, -1.0):
            before = side * p - h  # positive: beyond this side
            after = before + side * d
            crosses = (before > 0) != (after > 0)
            cut = before / jnp.where(crosses, before - after, 1.0)
            enter = jnp.where(crosses & (before > 0), jnp.maximum(enter, cut), enter)
            leave = jnp.where(crosses & (after > 0), jnp.minimum(leave, cut), leave)
            over = over & ((before <= 0) | (after <= 0))
    return enter, leave, over & (enter <= leave)


class Faces(NamedTuple):
    """A reference rectangle and the opposing parallelogram c ± u ± v, in the rectangle's frame; all fields [..., 1]."""

    frame: Axes  # X, Y in the rectangle, Z outward
    centre: Vec  # of the reference box, from the first box's centre
    half: Vec  # m, of the reference box along X, Y, Z
    c: Vec
    u: Vec
    v: Vec
    outward: Array  # +1 if Z points away from the first box, −1 if towards it


def opposing_faces(half1: Sizes, half2: Sizes, offset: Vec, axes: Axes, face: Array) -> Faces:
    """The reference face of number `face`, and the face of the other box that opposes it most."""
    by_first = face < 3
    index = jnp.where(by_first, face, face - 3)
    own = identity(offset[0])
    reference = tuple(where(by_first, a, b) for a, b in zip(own, axes, strict=True))
    incident = tuple(where(by_first, b, a) for a, b in zip(own, axes, strict=True))
    outward = jnp.where(by_first, 1.0, -1.0).astype(offset[0].dtype)
    half = tuple(jnp.where(by_first, a, b) for a, b in zip(half1, half2, strict=True))
    half_incident = tuple(jnp.where(by_first, b, a) for a, b in zip(half1, half2, strict=True))

    towards = scale(outward, offset)  # from the reference box to the other
    normal = choose(index, reference)
    normal = scale(sign(dot(normal, towards)), normal)
    frame = (choose(index, reference, 1), choose(index, reference, 2), normal)

    slope = [abs(dot(normal, axis)) for axis in incident]
    opposed = jnp.where(slope[1] > slope[0], 1, 0)
    opposed = jnp.where(slope[2] > jnp.maximum(slope[0], slope[1]), 2, opposed)
    across = choose(opposed, incident)
    middle = add(towards, scale(-sign(dot(normal, across)) * pick(opposed, half_incident), across))
    c = tuple(dot(axis, middle) for axis in frame)
    u = tuple(pick(opposed, half_incident, 1) * dot(axis, choose(opposed, incident, 1)) for axis in frame)
    v = tuple(pick(opposed, half_incident, 2) * dot(axis, choose(opposed, incident, 2)) for axis in frame)
    centre = where(by_first, (jnp.zeros_like(outward),) * 3, offset)
    sizes = pick(index, half, 1), pick(index, half, 2), pick(index, half)
    return Faces(frame, centre, sizes, c, u, v, outward)


def edge_vertices(faces: Faces, slot: Array, duplicate: float) -> tuple[Vec, Array]:
    """Slots 0–7: where the parallelogram's edges enter and leave the rectangle's column.

    Edge k runs from vertex k to k + 1 of (+ +), (− +), (− −), (+ −).
    """
    k = slot & 3
    su, sv = jnp.where((k == 0) | (k == 3), 1.0, -1.0), jnp.where(k < 2, 1.0, -1.0)
    along_u, along_v = jnp.where((k & 1) == 0, -2.0 * su, 0.0), jnp.where((k & 1) == 0, 0.0, -2.0 * sv)
    start = tuple(c + su * u + sv * v for c, u, v in zip(faces.c, faces.u, faces.v, strict=True))
    step = tuple(along_u * u + along_v * v for u, v in zip(faces.u, faces.v, strict=True))
    enter, leave, over = clip_edge(faces.half[:2], start[:2], step[:2])
    vertex = add(start, scale(jnp.where(slot < 4, enter, leave), step))
    ends_inside = leave > 1.0 - duplicate  # then its end is where the next edge begins
    return vertex, over & ((slot < 4) | ~(ends_inside | (leave - enter < duplicate)))


def corner_vertices(faces: Faces, slot: Array, duplicate: float) -> tuple[Vec, Array]:
    """Slots 8–11: the rectangle's corners, in units of u and v."""
    x = jnp.where((slot & 2) == 0, faces.half[0], -faces.half[0])
    y = jnp.where((slot & 1) == 0, faces.half[1], -faces.half[1])
    c, u, v = faces.c, faces.u, faces.v
    inverse = 1.0 / (u[0] * v[1] - u[1] * v[0])
    a = ((x - c[0]) * v[1] - (y - c[1]) * v[0]) * inverse
    b = ((y - c[1]) * u[0] - (x - c[0]) * u[1]) * inverse
    under = jnp.maximum(abs(a), abs(b)) < 1.0 - duplicate
    return (x, y, c[2] + a * u[2] + b * v[2]), under


def face_contacts(half1: Sizes, half2: Sizes, offset: Vec, axes: Axes, face: Array, slot: Array) -> Contacts:
    """A face of one box against the other box; points from the first box's centre.

    Contacts are the vertices of the clipped parallelogram that lie below the rectangle: dist = z, at half that depth.
    """
    faces = opposing_faces(half1, half2, offset, axes, face)
    duplicate = rounding(offset[0]).duplicate
    vertex, inside = edge_vertices(faces, slot, duplicate)
    corner, under = corner_vertices(faces, slot, duplicate)
    x, y, z = where(slot < 8, vertex, corner)
    dist = z - faces.half[2]
    point = add(faces.centre, combine(faces.frame, (x, y, faces.half[2] + 0.5 * dist)))
    active = jnp.where(slot < 8, inside, under) & (slot < EDGE_SLOT) & (dist < 0)
    return Contacts(dist, point, scale(faces.outward, faces.frame[2]), active)


def box_contacts(half1: Sizes, half2: Sizes, offset: Vec, axes: Axes, slot: Array) -> Contacts:
    """Two boxes: the first at the origin and aligned with the axes. `slot` [..., slots] has the numbers of the table."""
    overlap = find_axis(half1, half2, offset, axes)
    by_face = face_contacts(half1, half2, offset, axes, overlap.face, slot)
    dist, point, normal = edge_contact(half1, half2, offset, axes, overlap)
    edge = slot == EDGE_SLOT
    active = jnp.where(overlap.by_edge, edge & (dist < 0), by_face.active) & ~overlap.apart
    return Contacts(
        jnp.where(edge, dist, by_face.dist),
        where(edge, point, by_face.point),
        where(overlap.by_edge, normal, by_face.normal),
        active,
    )


def robot_contacts(
    radius: float, half1: float, ahead: float, half2: float, centre: Vec, axes: Axes, slots: int
) -> Contacts:
    """Sphere and cube of the robot against a cube, wherever that is."""
    slot = slots_like(centre[0], slots)
    cubes = box_contacts((half1,) * 3, (half2,) * 3, (centre[0] - ahead, centre[1], centre[2]), axes, slot)
    dist, point, normal = sphere_contact(radius, (half2,) * 3, centre, axes)
    sphere = slot == SPHERE_SLOT
    shifted = (cubes.point[0] + ahead, cubes.point[1], cubes.point[2])
    return Contacts(
        jnp.where(sphere, dist, cubes.dist),
        where(sphere, point, shifted),
        where(sphere, normal, cubes.normal),
        jnp.where(sphere, dist < 0, cubes.active),
    )


def no_contacts(like: Array, slots: int) -> Contacts:
    zero = jnp.zeros((*like.shape[:-1], slots), like.dtype)
    return Contacts(zero, (zero, zero, zero), (zero + 1.0, zero, zero), zero > 0)


def contacts(
    radius: float, half1: float, ahead: float, half2: float, centre: Vec, axes: Axes, slots: int = SLOTS
) -> Contacts:
    """All contacts of the robot (sphere of `radius`, cube of half-size `half1` centred `ahead`) with a cube.

    The branch spares a batch without any near pair the work. It also keeps XLA from computing the contacts anew for
    each of the many quantities that follow from them.
    """
    corner = math.sqrt((ahead + half1) ** 2 + 2.0 * half1**2)
    reach = max(radius, corner) + math.sqrt(3.0) * half2
    return lax.cond(
        some(dot(centre, centre) < reach**2),
        lambda: robot_contacts(radius, half1, ahead, half2, centre, axes, slots),
        lambda: no_contacts(centre[0], slots),
    )
