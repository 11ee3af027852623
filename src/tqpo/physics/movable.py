"""The exact MuJoCo step of a planar robot and free boxes that are welded to moving targets.

A box (a cube of mass m, inertia I about every axis) is drawn to its target by a soft weld with impedance d, stiffness k
and damping b (`contact.Softness`): six rows that pull in both directions. Let e be the way to the target, and x and w
the vector and scalar parts of the error quaternion q⁻¹·q_target. Then, in closed form,

    v̇ = (1 − d)·g + d·(k·d·e − b·v)
    (1 + ρ/4 − ρ/4·x xᵀ)·(ω̇ + b·ω) = b·ω + ρ/2·w·(k·d − ¼|ω|²)·x,           ρ = d/(1 − d)

with d taken at |(e, x)|; ¼|ω|²·x comes from the change of the rows' Jacobian (MuJoCo ≥ 3.12 has it). The target is a
place without velocity, so a box trails a moving one.

Robot and box in contact have nine coupled variables. In the robot's frame and about its centre of mass the Hessian of
free motion and weld is diagonal but for one rank-one term, so its root S is known in closed form (`whitening`), and in
z = S·(a − a_free) only the contacts are left: `boxes.py` finds them, `newton.py` solves for z. Fixed spheres (buttons)
that both may touch have slots of their own, 16 and up (`add_fixed`).

| | MuJoCo | here |
|---|---|---|
| two boxes at the robot at once | solved together | only the box given here; tasks keep them 0.8 m apart |
| box against box, box against floor | possible | left out: boxes move in phase, 0.1 m above the floor |
| box against a fixed sphere | possible | for the box given here: undisturbed, they keep clear of spheres |

Arrays hold one number per environment and have shape [..., 1].
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from tqpo.physics import planar
from tqpo.physics.boxes import (
    SLOTS,
    SPHERE_SLOT,
    Axes,
    Contacts,
    Vec,
    add,
    combine,
    contacts,
    cross,
    scale,
    slots_like,
    sphere_contact,
    sub,
    where,
)
from tqpo.physics.contact import Softness, pyramid_regulariser
from tqpo.physics.newton import Problem, Vector, minimise
from tqpo.physics.planar import Control, PlanarRobot, Pose, Velocity
from tqpo.physics.solver import dot
from tqpo.types import Array

Quat = tuple[Array, ...]  # w, x, y, z; body to world


@dataclass(frozen=True)
class BoxModel:
    """Safety Gym's gremlin. Mass and inertia follow from the geometry; MuJoCo's inverse weights are 1/m and 1/I."""

    half_size: float = 0.1  # m
    density: float = 0.001  # kg/m³
    gravity: float = 9.81  # m/s²
    friction: tuple[float, float, float] = (1.0, 0.005, 0.0001)  # sliding, torsion, rolling
    weld: Softness = Softness(dampratio=1.5)
    contact: Softness = Softness()

    @property
    def mass(self) -> float:
        return self.density * (2.0 * self.half_size) ** 3  # kg

    @property
    def inertia(self) -> float:
        return self.mass * (2.0 * self.half_size) ** 2 / 6.0  # kg·m²


class Boxes(NamedTuple):
    """The boxes of one environment."""

    pos: Array  # [..., 3] m
    quat: Array  # [..., 4] w, x, y, z; body to world
    vel: Array  # [..., 6] m/s in the world frame, rad/s in the body frame


class Body(NamedTuple):
    """One box by components."""

    pos: Vec  # m
    quat: Quat
    vel: Vec  # m/s, world frame
    spin: Vec  # rad/s, body frame


class Target(NamedTuple):
    """Where the weld wants a box."""

    pos: Vec  # m
    quat: Quat


class Fixed(NamedTuple):
    """Spheres that stand still, as high as the robot's."""

    places: list[tuple[Array, Array]]  # m, at most five
    radius: float  # m

    @property
    def slots(self) -> int:
        return 2 * SLOTS if self.places else SLOTS


NOTHING_FIXED = Fixed([], 0.0)


class Sides(NamedTuple):
    """Which bodies each contact moves, [..., slots] of 0 or 1; the other side of a contact with a fixed sphere is still."""

    robot: Array
    box: Array


class Weld(NamedTuple):
    """A box's acceleration without contact, and what shapes its Hessian."""

    linear: Vec  # m/s², world frame
    angular: Vec  # rad/s², body frame
    error: Vec  # x, body frame
    impedance: Array  # d


class Coupled(NamedTuple):
    """Accelerations of a robot and a box."""

    robot: Vec  # m/s², m/s², rad/s²; d²q/dt²
    linear: Vec  # m/s², world frame
    angular: Vec  # rad/s², body frame
    touching: Array  # [..., 1] bool
    effort: Vector  # z, nine of [..., 1]; the next step's warm start
    iterations: Array  # [..., 1] int, Newton steps


def multiply(a: Quat, b: Quat) -> Quat:
    vector = add(add(scale(a[0], b[1:]), scale(b[0], a[1:])), cross(a[1:], b[1:]))
    return a[0] * b[0] - dot(a[1:], b[1:]), *vector


def rotation(q: Quat) -> Axes:
    """Columns of the rotation matrix of a unit quaternion."""
    w, x, y, z = q
    return (
        (1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z), 2.0 * (x * z - w * y)),
        (2.0 * (x * y - w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z + w * x)),
        (2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y)),
    )


def weld(model: BoxModel, body: Body, target: Target) -> Weld:
    """The free acceleration of a welded box (the module's first two equations)."""
    b, k = model.weld.damping, model.weld.stiffness
    offset = sub(target.pos, body.pos)
    error = multiply((body.quat[0], *scale(-1.0, body.quat[1:])), target.quat)
    w, x = error[0], error[1:]
    d = model.weld.impedance(jnp.sqrt(dot(offset, offset) + dot(x, x)))

    pull = scale(d, sub(scale(k * d, offset), scale(b, body.vel)))
    linear = (pull[0], pull[1], pull[2] - (1.0 - d) * model.gravity)

    quarter = 0.25 * d / (1.0 - d)
    share = quarter / (1.0 + quarter)
    drag = scale(b, body.spin)
    torque = add(drag, scale(2.0 * quarter * w * (k * d - 0.25 * dot(body.spin, body.spin)), x))
    along = share * dot(x, torque) / (1.0 - share * dot(x, x))  # Sherman–Morrison
    angular = sub(scale(1.0 - share, add(torque, scale(along, x))), drag)
    return Weld(linear, angular, x, d)


def integrate(body: Body, linear: Vec, angular: Vec, timestep: float) -> Body:
    """Semi-implicit Euler: v ← v + h·v̇, p ← p + h·v, q ← q·exp(h·ω/2)."""
    vel, spin = add(body.vel, scale(timestep, linear)), add(body.spin, scale(timestep, angular))
    speed = jnp.sqrt(dot(spin, spin))
    turning = speed > 1e-15
    half = 0.5 * timestep * speed
    sine = jnp.where(turning, jnp.sin(half) / jnp.where(turning, speed, 1.0), 0.5 * timestep)
    quat = multiply(body.quat, (jnp.cos(half), *scale(sine, spin)))
    norm = 1.0 / jnp.sqrt(dot(quat, quat))
    return Body(add(body.pos, scale(timestep, vel)), tuple(norm * x for x in quat), vel, spin)


def free_step(model: BoxModel, body: Body, target: Target, timestep: float) -> Body:
    """One step of a box that nothing touches."""
    free = weld(model, body, target)
    return integrate(body, free.linear, free.angular, timestep)


class Frame(NamedTuple):
    """The robot's heading, to turn vectors from the world's frame into the robot's and back."""

    cos: Array
    sin: Array

    def into(self, v: Vec) -> Vec:
        return self.cos * v[0] + self.sin * v[1], self.cos * v[1] - self.sin * v[0], v[2]

    def out(self, v: Vec) -> Vec:
        return self.cos * v[0] - self.sin * v[1], self.sin * v[0] + self.cos * v[1], v[2]

    def tangents(self, normal: Vec) -> tuple[Vec, Vec]:
        """MuJoCo's contact frame: the world's y axis, or z where the normal is within 60° of ±y, made orthogonal."""
        north = self.sin * normal[0] + self.cos * normal[1]
        zero = jnp.zeros_like(north)
        guide = where(abs(north) < 0.5, (self.sin + zero, self.cos + zero, zero), (zero, zero, zero + 1.0))
        first = sub(guide, scale(dot(guide, normal), normal))
        first = scale(1.0 / jnp.sqrt(dot(first, first)), first)
        return first, cross(normal, first)


class Scales(NamedTuple):
    """S⁻¹: turns z into accelerations, and (transposed, the same) rows of the Jacobian into those for z."""

    robot: tuple[float, float, float]
    linear: Array  # s
    angular: Array  # σ
    stretch: Array  # η
    axis: Vec  # x, robot's frame

    def turn(self, v: Vec) -> Vec:
        """σ·(1 + η·x xᵀ)·v."""
        return scale(self.angular, add(v, scale(self.stretch * dot(self.axis, v), self.axis)))


def whitening(robot: PlanarRobot, model: BoxModel, held: Weld, axes: Axes) -> Scales:
    """Hessian of the weld plus inertia: m/(1 − d) for translation, I·(1 + ρ/4 − ρ/4·x xᵀ) for rotation."""
    d, x = held.impedance, combine(axes, held.error)
    quarter = 0.25 * d / (1.0 - d)
    share = quarter / (1.0 + quarter)
    shrink = jnp.sqrt(1.0 - share * dot(x, x))
    return Scales(
        (robot.mass**-0.5, robot.mass**-0.5, robot.inertia_com**-0.5),
        jnp.sqrt((1.0 - d) / model.mass),
        1.0 / jnp.sqrt(model.inertia * (1.0 + quarter)),
        share / (shrink * (1.0 + shrink)),
        x,
    )


def find_contacts(
    robot: PlanarRobot, model: BoxModel, frame: Frame, pose: Pose, body: Body, slots: int = SLOTS
) -> tuple[Contacts, Vec, Axes]:
    """Contacts, and the box's centre and axes, in the robot's frame."""
    centre = frame.into((body.pos[0] - pose[0], body.pos[1] - pose[1], body.pos[2] - robot.z_height))
    axes = tuple(frame.into(axis) for axis in rotation(body.quat))
    contact = contacts(robot.sphere_radius, robot.box_half, robot.box_offset, model.half_size, centre, axes, slots)
    return contact, centre, axes


def add_fixed(
    robot: PlanarRobot,
    model: BoxModel,
    frame: Frame,
    pose: Pose,
    fixed: Fixed,
    contact: Contacts,
    centre: Vec,
    axes: Axes,
) -> tuple[Contacts, Sides]:
    """`contact` with the contacts of K fixed spheres: slots 16 … with the robot's sphere, 16 + K … with its cube,
    16 + 2K … with the box."""
    count, slot = len(fixed.places), slots_like(contact.dist, fixed.slots)
    part = jnp.where(slot < SLOTS + count, 0, jnp.where(slot < SLOTS + 2 * count, 1, 2))
    number = slot - SLOTS - count * part
    zero = jnp.zeros_like(contact.dist)
    x, y = zero, zero
    for k, (px, py) in enumerate(fixed.places):
        x, y = jnp.where(number == k, px - pose[0], x), jnp.where(number == k, py - pose[1], y)
    at = frame.into((x, y, zero))

    origin, straight = (zero, zero, zero), (zero + 1.0, zero)
    by_sphere = planar.sphere_gap(robot, origin, at[:2], fixed.radius)  # pyright: ignore[reportArgumentType]
    by_cube = planar.box_gap(robot, *straight, origin, at[:2], fixed.radius)  # pyright: ignore[reportArgumentType]
    box_dist, box_point, box_normal = sphere_contact(fixed.radius, (model.half_size,) * 3, sub(centre, at), axes)
    dist = jnp.where(part == 0, by_sphere[0], jnp.where(part == 1, by_cube[0], box_dist))

    def chosen(which: int, by_box: Vec) -> Vec:
        return where(part == 0, (*by_sphere[which], zero), where(part == 1, (*by_cube[which], zero), by_box))

    own = slot >= SLOTS
    merged = Contacts(
        jnp.where(own, dist, contact.dist),
        where(own, chosen(2, add(at, box_point)), contact.point),
        where(own, chosen(1, box_normal), contact.normal),
        jnp.where(own, (dist < 0) & (number < count), contact.active),
    )
    sides = Sides(jnp.where(own & (part == 2), 0.0, 1.0 + zero), jnp.where(own & (part < 2), 0.0, 1.0 + zero))
    return merged, sides


def any_active(contact: Contacts) -> Array:
    return jnp.max(jnp.where(contact.active, 1, 0), axis=-1, keepdims=True) > 0


def free_robot(robot: PlanarRobot, frame: Frame, velocity: Velocity, control: Control) -> tuple[Vec, Vec]:
    """Acceleration without contact, and velocity: of the centre of mass in the robot's frame, and about z.

    The acceleration is J·d²q/dt², without the centripetal part.
    """
    offset = robot.com_offset
    force = frame.into(planar.applied_force(robot, frame.cos, frame.sin, velocity, control))
    speed = frame.into(velocity)
    free = (force[0] / robot.mass, force[1] / robot.mass, (force[2] - offset * force[1]) / robot.inertia_com)
    return free, (speed[0], speed[1] + offset * speed[2], speed[2])


def pairwise_friction(robot: PlanarRobot, model: BoxModel, fixed: Fixed, dist: Array) -> Vec:
    """Sliding, torsional and rolling friction of each slot: the greater of the two bodies'.

    A fixed sphere has that of the robot's cube, so that its contact with the box has the same as that of cube and box.
    """
    slot, count = slots_like(dist, dist.shape[-1]), len(fixed.places)
    sphere = slot == SPHERE_SLOT
    out = []
    for s, o, b in zip(robot.sphere_friction, robot.other_friction, model.friction, strict=True):
        value = jnp.where(sphere, max(s, b), max(o, b))
        if count:
            value = jnp.where((slot >= SLOTS) & (slot < SLOTS + count), max(s, o), value)
            value = jnp.where((slot >= SLOTS + count) & (slot < SLOTS + 2 * count), o, value)
        out.append(value.astype(dist.dtype))
    return tuple(out)


def contact_problem(
    robot: PlanarRobot,
    model: Any,  # a box with mass and contact
    frame: Frame,
    scales: Any,  # S⁻¹ with robot, linear and turn
    contact: Contacts,
    centre: Vec,
    drive: tuple[Vec, Vec, Vec],
    friction: Vec,
    sides: Sides | None,
) -> Problem:
    """The contacts' rows over z. `drive` is a_free + b·v of the robot, of the box's centre and of its rotation.

    A row's residual J·a − a_ref = J·(a + b·v) + k·d·r is linear in it. Without `sides` every contact moves both bodies.
    """
    sliding, torsion, rolling = friction
    impedance = model.contact.impedance(contact.dist)
    invweight = robot.invweight + 1.0 / model.mass
    if sides:
        invweight = sides.robot * robot.invweight + sides.box / model.mass
    stiffness = 1.0 / pyramid_regulariser(impedance, sliding, invweight)  # type: ignore[arg-type]

    rx, ry = contact.point[0] - robot.com_offset, contact.point[1]
    arm = sub(contact.point, centre)
    own, linear, angular = drive
    swept = add(linear, cross(angular, arm))
    if sides:
        own, swept, angular = scale(sides.robot, own), scale(sides.box, swept), scale(sides.box, angular)
    slip = (swept[0] - own[0] + own[2] * ry, swept[1] - own[1] - own[2] * rx, swept[2])
    roll = (angular[0], angular[1], angular[2] - own[2])

    mx, my, mz = scales.robot
    moved = 1.0
    if sides:
        mx, my, mz = (m * sides.robot for m in scales.robot)
        moved = sides.box
    normal = contact.normal
    first, second = frame.tangents(normal)
    rows, offset = [], []  # a row by variable: 0–2 of the robot, 3–5 and 6–8 of the box
    for f in (normal, scale(sliding, first), scale(sliding, second)):
        ours = (-mx * f[0], -my * f[1], mz * (ry * f[0] - rx * f[1]))
        rows.append(
            dict(enumerate((*ours, *scale(moved * scales.linear, f), *scale(moved, scales.turn(cross(arm, f))))))
        )
        offset.append(dot(f, slip))
    for f in (scale(torsion, normal), scale(rolling, first), scale(rolling, second)):
        rows.append({2: -mz * f[2], **dict(enumerate(scale(moved, scales.turn(f)), start=6))})
        offset.append(dot(f, roll))
    offset[0] = offset[0] + model.contact.stiffness * impedance * contact.dist
    columns = tuple({k: row[i] for k, row in enumerate(rows) if i in row} for i in range(9))
    return Problem(columns, tuple(offset), jnp.where(contact.active, stiffness, 0.0))


def coupled_acceleration(
    robot: PlanarRobot,
    model: BoxModel,
    pose: Pose,
    velocity: Velocity,
    control: Control,
    body: Body,
    target: Target,
    start: Vector | None = None,
    fixed: Fixed = NOTHING_FIXED,
) -> Coupled:
    """Accelerations of the robot and one box at this state; `start` warm-starts the solver with an earlier `effort`."""
    frame = Frame(jnp.cos(pose[2]), jnp.sin(pose[2]))
    contact, centre, axes = find_contacts(robot, model, frame, pose, body, fixed.slots)
    touching, sides = any_active(contact), None
    if fixed.places:
        contact, sides = add_fixed(robot, model, frame, pose, fixed, contact, centre, axes)
    held = weld(model, body, target)
    scales = whitening(robot, model, held, axes)
    free, speed = free_robot(robot, frame, velocity, control)
    linear, angular = frame.into(held.linear), combine(axes, held.angular)

    rate = model.contact.damping
    drive = (
        add(free, scale(rate, speed)),
        add(linear, scale(rate, frame.into(body.vel))),
        add(angular, scale(rate, combine(axes, body.spin))),
    )
    friction = pairwise_friction(robot, model, fixed, contact.dist)
    problem = contact_problem(robot, model, frame, scales, contact, centre, drive, friction, sides)
    z, iterations = minimise(problem, start or (jnp.zeros_like(free[0]),) * 9)

    ahead, across, turn = (a + s * x for a, s, x in zip(free, scales.robot, z[:3], strict=True))
    ax, ay, _ = frame.out((ahead, across - robot.com_offset * turn, turn))
    linear = frame.out(add(linear, scale(scales.linear, z[3:6])))
    angular = add(angular, scales.turn(z[6:9]))
    spin = tuple(dot(axis, angular) for axis in axes)
    return Coupled((ax, ay, turn), linear, spin, touching, z, iterations)
