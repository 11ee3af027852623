"""The exact MuJoCo step of a planar robot and a box that lies free on the floor, among pillars that stand still.

The box is a rigid body of one or more parts, each a box of its own: a vase has one, the box that is pushed has five. As
in `movable.py` robot and box have nine coupled variables, and S is known: the box's mass and principal inertia. What is
left are contacts, in a fixed number of slots (P parts; `Slots`):

| slots | contact |
|---|---|
| 0–12, and for P > 1 16–28 | the robot's cube with the first part; with the nearest of the others (`boxes.py`) |
| 4 for each part | a lower corner with the floor |
| 1 for each part | the robot's sphere |
| 1 for each part | the pillar nearest to the box |
| 2 | the robot's sphere and cube with the pillar nearest to the robot |

| | MuJoCo | here |
|---|---|---|
| the robot's cube and two of the posts | possible | the nearest: the gap between posts is wider than the cube |
| a pillar and the box | one point, found by iteration | the deeper end of the box's edge or face (`pillar_contacts`) |
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tqpo.physics import movable, planar
from tqpo.physics.boxes import (
    Axes,
    Contacts,
    Vec,
    add,
    box_contacts,
    combine,
    cross,
    no_contacts,
    scale,
    sign,
    slots_like,
    sphere_contact,
    sub,
    where,
)
from tqpo.physics.contact import Softness
from tqpo.physics.movable import Body, Coupled, Frame, Sides
from tqpo.physics.newton import Vector, minimise, some
from tqpo.physics.planar import Control, PlanarRobot, Points, Pose, Velocity
from tqpo.physics.solver import dot
from tqpo.types import Array

Numbers = tuple[float, float, float]


class Part(NamedTuple):
    """One box of a body, with the body's axes."""

    offset: Numbers  # m, of its centre from the body's
    half: Numbers  # m, half-sizes


@dataclass(frozen=True)
class LooseBox:
    """A free body. Mass and inertia follow from the parts, which count in full where they overlap."""

    parts: tuple[Part, ...]
    sink: float = 0.0  # m that it lies below its height at the start of an episode
    density: float = 0.001  # kg/m³
    gravity: float = 9.81  # m/s²
    friction: Numbers = (1.0, 0.005, 0.0001)  # sliding, torsion, rolling
    contact: Softness = Softness()

    @property
    def half_size(self) -> float:
        return self.parts[0].half[2]  # m

    @property
    def reach(self) -> float:
        """The farthest corner from the centre, m."""
        return max(math.hypot(*(abs(o) + h for o, h in zip(*part, strict=True))) for part in self.parts)

    @cached_property
    def masses(self) -> list[float]:
        return [8.0 * self.density * math.prod(part.half) for part in self.parts]  # kg

    @property
    def mass(self) -> float:
        return sum(self.masses)

    @cached_property
    def inertia(self) -> Numbers:
        """About the body's axes, kg·m². Parts lie symmetrically, so these are the principal ones."""
        squares = [[h * h / 3.0 + o * o for o, h in zip(*part, strict=True)] for part in self.parts]
        x, y, z = (sum(m * s[k] for m, s in zip(self.masses, squares, strict=True)) for k in range(3))
        return y + z, x + z, x + y


POST = 0.2  # m from the middle of the pushed box, along both of its sides
VASE = LooseBox((Part((0.0, 0.0, 0.0), (0.1, 0.1, 0.1)),), sink=4e-5)
PUSH_BOX = LooseBox(
    (
        Part((0.0, 0.0, 0.0), (0.2, 0.2, 0.2)),
        *(Part((x, y, 0.0), (0.1, 0.1, 0.2)) for y in (POST, -POST) for x in (POST, -POST)),
    ),
    sink=1e-9,  # at 0 ± rounding it would depend on that which corners the floor holds in the first 2 ms
)


class Slots(NamedTuple):
    """Which contact each slot holds, [..., slots]."""

    number: Array  # int
    part: Array  # int, of the box
    arrow: Array  # bool, as all below: the robot's cube with a part
    floor: Array
    sphere: Array  # the robot's sphere with a part
    pillar: Array  # a pillar with a part
    own: Array  # the robot's sphere or cube with a pillar


def count_slots(model: LooseBox) -> int:
    return 32 if len(model.parts) == 1 else 64


def assign(model: LooseBox, like: Array, nearest: Array) -> Slots:
    """`nearest` [..., 1] is the part after the first that the robot's cube may touch."""
    parts = len(model.parts)
    number = slots_like(like, count_slots(model))
    first = 16 if parts == 1 else 32
    ends = [first, first + 4 * parts, first + 5 * parts, first + 6 * parts, first + 6 * parts + 2]
    groups = [(number >= a) & (number < b) for a, b in zip([0, *ends], ends, strict=False)]
    part = jnp.where(number < 16, 0, nearest)
    part = jnp.where(groups[1], (number - ends[0]) >> 2, part)
    part = jnp.where(groups[2], number - ends[1], jnp.where(groups[3], number - ends[2], part))
    return Slots(number, part, *groups)


def of_part(model: LooseBox, part: Array, field: int, axis: int, like: Array) -> Array:
    """A number of the part that a slot is about: `field` 0 is its offset, 1 its half-size."""
    out = jnp.full(part.shape, model.parts[0][field][axis], like.dtype)
    for k, own in enumerate(model.parts[1:], start=1):
        if own[field][axis] != model.parts[0][field][axis]:
            out = jnp.where(part == k, own[field][axis], out)
    return out


def nearest_part(model: LooseBox, local: Vec) -> Array:
    """The part after the first that is nearest to a point of the box's frame."""
    best, index = jnp.full_like(local[0], jnp.inf), jnp.zeros(local[0].shape, jnp.int32)
    for k, (offset, _) in enumerate(model.parts[1:], start=1):
        gap = sub(local, offset)  # pyright: ignore[reportArgumentType]
        squared = dot(gap, gap)
        index, best = jnp.where(squared < best, k, index), jnp.minimum(squared, best)
    return index


def floor_contacts(robot: PlanarRobot, half: Vec, centre: Vec, axes: Axes, number: Array) -> Contacts:
    """Of the corners ±(±h₀, ±h₁, h₂) the four lower ones, one of each opposite pair."""
    out = half[0] * jnp.where((number & 1) == 0, 1.0, -1.0), half[1] * jnp.where((number & 2) == 0, 1.0, -1.0), half[2]
    corner = combine(axes, out)
    corner = add(centre, scale(-sign(corner[2]), corner))
    dist = corner[2] + robot.z_height
    zero = jnp.zeros_like(dist)
    return Contacts(dist, (corner[0], corner[1], corner[2] - 0.5 * dist), (zero, zero, zero + 1.0), dist < 0)


def pillar_contacts(radius: float, half: Vec, centre: Vec, axes: Axes, place: Vec) -> Contacts:
    """A standing cylinder against a part: its lower and upper end cut level, the deeper of the two.

    A part that is tilted by more than 25° meets a sphere of that radius at its own height instead.
    """
    zero = jnp.zeros_like(centre[0])
    level = jnp.where(jnp.abs(axes[2][2]) > 0.9, 1.0, 0.0)
    flat = [scale(1.0 / jnp.sqrt(axis[0] ** 2 + axis[1] ** 2 + (1.0 - level)), axis) for axis in axes[:2]]
    upright = (*((x, y, zero) for x, y, _ in flat), (zero, zero, zero + 1.0))

    def cut(end: float) -> tuple[Array, Vec, Vec]:
        at = add(centre, scale(end * half[2], axes[2]))
        gap = (at[0] - place[0], at[1] - place[1], zero)
        dist, point, normal = sphere_contact(radius, (half[0], half[1], 1.0), gap, upright)
        return dist, (point[0] + place[0], point[1] + place[1], at[2]), normal

    low, high = cut(-1.0), cut(1.0)
    deeper = high[0] < low[0]
    beside = sphere_contact(radius, half, (centre[0] - place[0], centre[1] - place[1], zero), axes)
    shifted = add(beside[1], (place[0] + zero, place[1] + zero, centre[2]))
    chosen = [jax.tree.map(lambda a, b: jnp.where(deeper, a, b), a, b) for a, b in zip(high, low, strict=True)]
    other = (beside[0], shifted, beside[2])
    dist, point, normal = (
        jax.tree.map(lambda a, b: jnp.where(level > 0, a, b), a, b) for a, b in zip(chosen, other, strict=True)
    )
    return Contacts(dist, point, normal, dist < 0)


def own_contacts(robot: PlanarRobot, radius: float, place: Vec, number: Array) -> Contacts:
    """The robot against a standing cylinder: its sphere in even slots, its cube in odd ones."""
    zero = jnp.zeros_like(place[0])
    pose, straight = (zero, zero, zero), (zero + 1.0, zero)
    by_sphere = planar.sphere_gap(robot, pose, place[:2], radius)  # pyright: ignore[reportArgumentType]
    by_cube = planar.box_gap(robot, *straight, pose, place[:2], radius)  # pyright: ignore[reportArgumentType]
    odd = (number & 1) == 1
    dist, normal, point = (
        jax.tree.map(lambda a, b: jnp.where(odd, b, a), a, b) for a, b in zip(by_sphere, by_cube, strict=True)
    )
    return Contacts(dist, (*point, zero), (*normal, zero), dist < 0)


def select(condition: Array, a: Contacts, b: Contacts) -> Contacts:
    return Contacts(*(jax.tree.map(lambda x, y: jnp.where(condition, x, y), x, y) for x, y in zip(a, b, strict=True)))


def nearest_place(frame: Frame, pose: Pose, places: Points, centre: Vec) -> Vec:
    """Of the places, in the robot's frame, that nearest to `centre`."""
    best, at = jnp.full_like(centre[0], jnp.inf), (jnp.zeros_like(centre[0]),) * 3
    for x, y in places:
        here = frame.into((x - pose[0], y - pose[1], jnp.zeros_like(x)))
        gap = (here[0] - centre[0], here[1] - centre[1])
        squared = dot(gap, gap)
        best, at = jnp.minimum(best, squared), where(squared < best, here, at)
    return at


def find_contacts(
    robot: PlanarRobot,
    model: LooseBox,
    frame: Frame,
    pose: Pose,
    centre: Vec,
    axes: Axes,
    pillars: Points,
    radius: float,
) -> tuple[Contacts, Slots]:
    """All contacts in the robot's frame."""
    ahead = sub((robot.box_offset + jnp.zeros_like(centre[0]), 0.0, 0.0), centre)  # pyright: ignore[reportArgumentType]
    slots = assign(model, centre[0], nearest_part(model, tuple(dot(axis, ahead) for axis in axes)))
    number, part = slots.number, slots.part
    offset, half = (tuple(of_part(model, part, f, k, centre[0]) for k in range(3)) for f in (0, 1))
    middle = add(centre, combine(axes, offset))

    def by_robot() -> Contacts:
        from_cube = (middle[0] - robot.box_offset, middle[1], middle[2])
        cube = box_contacts((robot.box_half,) * 3, half, from_cube, axes, number & 15)
        cube = cube._replace(point=(cube.point[0] + robot.box_offset, *cube.point[1:]))
        dist, point, normal = sphere_contact(robot.sphere_radius, half, middle, axes)
        return select(slots.arrow, cube, Contacts(dist, point, normal, dist < 0))

    corner = math.hypot(robot.box_offset + robot.box_half, robot.box_half, robot.box_half)
    reach = max(robot.sphere_radius, corner) + model.reach
    nothing = no_contacts(centre[0], number.shape[-1])
    near = lax.cond(some(dot(centre, centre) < reach**2), by_robot, lambda: nothing)
    out = select(slots.floor, floor_contacts(robot, half, middle, axes, number), near)
    used = slots.arrow | slots.sphere | slots.floor
    if pillars:
        place = nearest_place(frame, pose, pillars, centre)
        out = select(slots.pillar, pillar_contacts(radius, half, middle, axes, place), out)
        place = nearest_place(frame, pose, pillars, (jnp.zeros_like(centre[0]),) * 2)
        own = own_contacts(robot, radius, tuple(x + jnp.zeros_like(out.dist) for x in place), number)
        out = select(slots.own, own, out)
        used = used | slots.pillar | slots.own
    return out._replace(active=out.active & used), slots


def friction_of(robot: PlanarRobot, model: LooseBox, slots: Slots, like: Array) -> Vec:
    """Sliding, torsional and rolling friction of each slot: the greater of the two bodies'."""
    round_ = slots.sphere | (slots.own & ((slots.number & 1) == 0))
    both = zip(robot.sphere_friction, robot.other_friction, model.friction, strict=True)
    return tuple(jnp.where(round_, max(s, o), max(o, b)).astype(like.dtype) for s, o, b in both)


class Scales(NamedTuple):
    """S⁻¹, as `movable.Scales`."""

    robot: Numbers
    linear: float
    angular: Numbers  # along the box's axes
    axes: Axes

    def turn(self, v: Vec) -> Vec:
        return combine(self.axes, tuple(s * dot(axis, v) for s, axis in zip(self.angular, self.axes, strict=True)))


def coupled_acceleration(
    robot: PlanarRobot,
    model: LooseBox,
    pose: Pose,
    velocity: Velocity,
    control: Control,
    body: Body,
    pillars: Points,
    radius: float,
    start: Vector,
) -> Coupled:
    """Accelerations of the robot and the box at this state; `start` warm-starts the solver with an earlier `effort`."""
    frame = Frame(jnp.cos(pose[2]), jnp.sin(pose[2]))
    centre = frame.into((body.pos[0] - pose[0], body.pos[1] - pose[1], body.pos[2] - robot.z_height))
    axes = tuple(frame.into(axis) for axis in movable.rotation(body.quat))
    contact, slots = find_contacts(robot, model, frame, pose, centre, axes, pillars, radius)
    moves = [jnp.where(x, 0.0, 1.0) for x in (slots.floor | slots.pillar, slots.own)]
    sides = Sides(*(x.astype(centre[0].dtype) for x in moves))
    scales = Scales(
        (robot.mass**-0.5, robot.mass**-0.5, robot.inertia_com**-0.5),
        model.mass**-0.5,
        tuple(i**-0.5 for i in model.inertia),  # pyright: ignore[reportArgumentType]
        axes,
    )
    free, speed = movable.free_robot(robot, frame, velocity, control)
    momentum = tuple(i * w for i, w in zip(model.inertia, body.spin, strict=True))
    twist = tuple(-x / i for x, i in zip(cross(body.spin, momentum), model.inertia, strict=True))
    zero = jnp.zeros_like(centre[0])
    linear, angular = (zero, zero, zero - model.gravity), combine(axes, twist)

    rate = model.contact.damping
    drive = (
        add(free, scale(rate, speed)),
        add(linear, scale(rate, frame.into(body.vel))),
        add(angular, scale(rate, combine(axes, body.spin))),
    )
    friction = friction_of(robot, model, slots, centre[0])
    problem = movable.contact_problem(robot, model, frame, scales, contact, centre, drive, friction, sides)
    z, iterations = minimise(problem, start)

    ahead, across, turn = (a + s * x for a, s, x in zip(free, scales.robot, z[:3], strict=True))
    ax, ay, _ = frame.out((ahead, across - robot.com_offset * turn, turn))
    linear = frame.out(add(linear, scale(scales.linear, z[3:6])))
    angular = add(angular, scales.turn(z[6:9]))
    touching = movable.any_active(contact._replace(active=contact.active & (slots.arrow | slots.sphere)))
    return Coupled((ax, ay, turn), linear, tuple(dot(axis, angular) for axis in axes), touching, z, iterations)
