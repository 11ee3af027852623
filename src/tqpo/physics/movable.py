"""The exact MuJoCo step of a planar robot and free boxes that are welded to moving targets.

TBD
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp

from tqpo.physics import planar
from tqpo.physics.boxes import (
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
    sub,
    where,
)
from tqpo.physics.contact import Softness, pyramid_regulariser
from tqpo.physics.newton import Problem, minimise
from tqpo.physics.planar import Control, PlanarRobot, Pose, Velocity
from tqpo.physics.solver import dot
from tqpo.types import Array

Quat = tuple[Array, Array, Array, Array]  # w, x, y, z; body to world


@dataclass(frozen=True)
class BoxModel:
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
        return self.mass * (2.0 * self.half_size) ** 2 / 6.0  # kg·m², about every axis


class Body(NamedTuple):
    """A free box by components, each an array of one common shape."""

    pos: Vec  # m
    quat: Quat
    vel: Vec  # m/s, world frame
    spin: Vec  # rad/s, body frame


class Target(NamedTuple):
    pos: Vec
    quat: Quat


class Weld(NamedTuple):
    linear: Vec  # world
    angular: Vec  # body frame
    error: Vec
    impedance: Array


def multiply(a: Quat, b: Quat) -> Quat:
    (aw, *av), (bw, *bv) = a, b
    vector = add(add(scale(aw, bv), scale(bw, av)), cross(av, bv))
    return aw * bw - dot(av, bv), *vector


def rotation(q: Quat) -> Axes:
    w, x, y, z = q
    return (
        (1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z), 2.0 * (x * z - w * y)),
        (2.0 * (x * y - w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z + w * x)),
        (2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y)),
    )


def weld(model: BoxModel, body: Body, target: Target) -> Weld:
    offset = sub(target.pos, body.pos)
    w, *x = multiply((body.quat[0], *scale(-1.0, body.quat[1:])), target.quat)
    d = model.weld.impedance(jnp.sqrt(dot(offset, offset) + dot(x, x)))
    b, k = model.weld.damping, model.weld.stiffness
    pull = tuple(d * (k * d * e - b * v) for e, v in zip(offset, body.vel, strict=True))
    linear = (pull[0], pull[1], pull[2] - (1.0 - d) * model.gravity)
    ratio = d / (1.0 - d)
    rhs = add(scale(b, body.spin), scale(0.5 * ratio * w * (k * d - 0.25 * dot(body.spin, body.spin)), x))
    share = 0.25 * ratio / (1.0 + 0.25 * ratio)
    y = scale(1.0 / (1.0 + 0.25 * ratio), add(rhs, scale(share * dot(x, rhs) / (1.0 - share * dot(x, x)), x)))
    return Weld(linear, sub(y, scale(b, body.spin)), tuple(x), d)


def integrate(body: Body, linear: Vec, angular: Vec, h: float) -> Body:
    vel, spin = add(body.vel, scale(h, linear)), add(body.spin, scale(h, angular))
    speed = jnp.sqrt(dot(spin, spin))
    turning = speed > 1e-15
    half = 0.5 * h * speed
    sine = jnp.where(turning, jnp.sin(half) / jnp.where(turning, speed, 1.0), 0.5 * h)
    q = multiply(body.quat, (jnp.cos(half), *scale(sine, spin)))
    size = 1.0 / jnp.sqrt(dot(q, q))
    return Body(add(body.pos, scale(h, vel)), tuple(size * x for x in q), vel, spin)


class Frame(NamedTuple):
    cos: Array
    sin: Array

    def into(self, v: Vec) -> Vec:
        return self.cos * v[0] + self.sin * v[1], self.cos * v[1] - self.sin * v[0], v[2]

    def out(self, v: Vec) -> Vec:
        return self.cos * v[0] - self.sin * v[1], self.sin * v[0] + self.cos * v[1], v[2]


def find_contacts(robot: PlanarRobot, model: BoxModel, pose: Pose, body: Body) -> Contacts:
    frame = Frame(jnp.cos(pose[2]), jnp.sin(pose[2]))
    centre = frame.into(sub(body.pos, (pose[0], pose[1], robot.z_height)))
    axes = tuple(frame.into(a) for a in rotation(body.quat))
    return contacts(robot.sphere_radius, robot.box_half, robot.box_offset, model.half_size, centre, axes)


def tangents(frame: Frame, normal: Vec) -> tuple[Vec, Vec]:
    """MuJoCo's contact frame"""
    north = frame.sin * normal[0] + frame.cos * normal[1]
    flat = abs(north) < 0.5
    zero = jnp.zeros_like(north)
    guide = where(flat, (frame.sin + zero, frame.cos + zero, zero), (zero, zero, zero + 1.0))
    first = sub(guide, scale(dot(guide, normal), normal))
    first = scale(1.0 / jnp.sqrt(dot(first, first)), first)
    return first, cross(normal, first)


class Coupled(NamedTuple):
    robot: Vec
    linear: Vec
    angular: Vec
    touching: Array
    iterations: Array


def coupled_acceleration(
    robot: PlanarRobot, model: BoxModel, pose: Pose, velocity: Velocity, control: Control, body: Body, target: Target
) -> Coupled:
    frame = Frame(jnp.cos(pose[2]), jnp.sin(pose[2]))
    held = weld(model, body, target)
    centre = frame.into(sub(body.pos, (pose[0], pose[1], robot.z_height)))
    axes = tuple(frame.into(a) for a in rotation(body.quat))
    found = contacts(robot.sphere_radius, robot.box_half, robot.box_offset, model.half_size, centre, axes)

    c, m, inertia = robot.com_offset, robot.mass, robot.inertia_com
    fx, fy, torque = planar.applied_force(robot, frame.cos, frame.sin, velocity, control)
    push = frame.into((fx, fy, torque))
    free = (push[0] / m, push[1] / m, (torque - c * push[1]) / inertia)
    speed = frame.into(velocity)
    speed = (speed[0], speed[1] + c * speed[2], speed[2])

    b, k = model.contact.damping, model.contact.stiffness
    w_robot = add(free, scale(b, speed))
    linear, angular = frame.into(held.linear), combine(axes, held.angular)
    w_linear = add(linear, scale(b, frame.into(body.vel)))
    w_angular = add(angular, scale(b, combine(axes, body.spin)))

    ratio = held.impedance / (1.0 - held.impedance)
    s_robot = (m**-0.5, m**-0.5, inertia**-0.5)
    s_linear = jnp.sqrt((1.0 - held.impedance) / model.mass)
    x = combine(axes, held.error)
    share = 0.25 * ratio / (1.0 + 0.25 * ratio)
    s_angular = 1.0 / jnp.sqrt(model.inertia * (1.0 + 0.25 * ratio))
    q = jnp.sqrt(1.0 - share * dot(x, x))
    eta = share / (q * (1.0 + q))

    def whiten(v):
        return scale(s_angular, add(v, scale(eta * dot(x, v), x)))

    n = found.normal
    t1, t2 = tangents(frame, n)
    sphere = slots_like(found.dist) == SPHERE_SLOT
    mus = []
    for i in range(3):
        mus.append(
            jnp.where(
                sphere,
                max(robot.sphere_friction[i], model.friction[i]),
                max(robot.other_friction[i], model.friction[i]),
            ).astype(found.dist.dtype)
        )
    scales = (1.0, mus[0], mus[0], mus[1], mus[2], mus[2])
    d = model.contact.impedance(found.dist)
    stiffness = 1.0 / pyramid_regulariser(d, mus[0], robot.invweight + 1.0 / model.mass)
    stiffness = jnp.where(found.active, stiffness, 0.0)

    arm_robot = (found.point[0] - c, found.point[1], found.point[2])
    arm_body = sub(found.point, centre)
    turn = w_robot[2]
    rel = sub(
        add(w_linear, cross(w_angular, arm_body)),
        (w_robot[0] - turn * arm_robot[1], w_robot[1] + turn * arm_robot[0], 0.0),
    )
    rel_spin = (w_angular[0], w_angular[1], w_angular[2] - turn)
    jac, off = [], []
    for f, mu in zip((n, t1, t2), scales[:3], strict=True):
        g = scale(mu, f)
        rot = whiten(cross(arm_body, g))
        jac.append(
            (
                -s_robot[0] * g[0],
                -s_robot[1] * g[1],
                -s_robot[2] * (arm_robot[0] * g[1] - arm_robot[1] * g[0]),
                *scale(s_linear, g),
                *rot,
            )
        )
        off.append(dot(g, rel))
    for f, mu in zip((n, t1, t2), scales[3:], strict=True):
        g = scale(mu, f)
        jac.append((None, None, -s_robot[2] * g[2], None, None, None, *whiten(g)))
        off.append(dot(g, rel_spin))
    off[0] = off[0] + k * d * found.dist
    problem = Problem(tuple(jac), tuple(off), stiffness)
    zero = (jnp.zeros_like(free[0]),) * 9
    z, count = minimise(problem, zero)
    a = add(free, (s_robot[0] * z[0], s_robot[1] * z[1], s_robot[2] * z[2]))
    linear = add(linear, scale(s_linear, z[3:6]))
    angular = add(angular, whiten(z[6:9]))
    ax, ay, _ = frame.out((a[0], a[1] - c * a[2], a[2]))
    touching = jnp.max(jnp.where(found.active, 1, 0), axis=-1, keepdims=True) > 0
    return Coupled((ax, ay, a[2]), frame.out(linear), tuple(dot(axis, angular) for axis in axes), touching, count)


def coupled_step(robot, model, pose, velocity, control, body, target):
    a = coupled_acceleration(robot, model, pose, velocity, control, body, target)
    pose, velocity = planar.integrate(robot, pose, velocity, a.robot)
    return pose, velocity, integrate(body, a.linear, a.angular, robot.timestep), a.touching
