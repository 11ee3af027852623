"""One environment step of the robot among fixed spheres: ten physics steps and the acceleration felt at the end.

`drive_xla` computes free motion for all robots, and runs the contact solver only for those that can reach a sphere
within the step, a few dozen at a time, since contact is rare. `dispatch.py` chooses between it and a GPU kernel.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tqpo.physics import planar
from tqpo.physics.planar import PlanarRobot
from tqpo.types import Array, PyTree

CHUNK = 8, 32  # robots near a sphere that are solved together on the xla path: a sixteenth of all, between these


class Motion(NamedTuple):
    """The robot after an environment step."""

    pose: Array  # [3] x, y [m], heading [rad]
    velocity: Array  # [3] m/s, m/s, rad/s, world frame
    acceleration: Array  # [3] m/s², m/s², rad/s², at this state under the same control


def components(x: Array) -> tuple[Array, ...]:
    return tuple(x[..., i] for i in range(x.shape[-1]))


def solve(robot: PlanarRobot, radius: float, pose: Array, velocity: Array, control: Array, spheres: Array) -> Motion:
    """The plain definition: arrays [..., 3], [..., 3], [..., 2], [..., K, 2]."""
    points = [(spheres[..., k, 0], spheres[..., k, 1]) for k in range(spheres.shape[-2])]
    state = components(pose), components(velocity), components(control)
    moved = planar.environment_step(robot, *state, points, radius)  # pyright: ignore[reportArgumentType, reportCallIssue]  (tuples of unknown length)
    return Motion(*(jnp.stack(x, axis=-1) for x in moved))


def robot_turn(robot: PlanarRobot, velocity: Array) -> Array:
    """A bound on how far the robot turns within a step [...], rad. Its motor cannot drive it beyond `fastest`."""
    duration = robot.timestep * robot.substeps
    fastest = robot.gear * robot.force_limit / robot.damping_angular  # rad/s
    return (jnp.maximum(jnp.abs(velocity[..., 2]), fastest) + 20.0 * duration) * duration


def robot_travel(robot: PlanarRobot, velocity: Array) -> tuple[float, Array]:
    """How far the robot extends from its origin, and a bound on how far that moves within a step [...], m."""
    corner = math.hypot(robot.box_offset + robot.box_half, robot.box_half)
    duration = robot.timestep * robot.substeps
    gained = robot.gear * robot.force_limit / robot.mass * duration  # m/s the motor can add
    swing = 2.0 * robot.com_offset * robot_turn(robot, velocity)  # m of the origin about the com
    speed = jnp.hypot(velocity[..., 0], velocity[..., 1]) + gained
    return max(robot.sphere_radius, corner), speed * duration + swing


def can_reach(robot: PlanarRobot, radius: float, pose: Array, velocity: Array, spheres: Array) -> Array:
    """Whether a robot might touch a sphere before the step is over: a bound, never too small."""
    reach, travel = robot_travel(robot, velocity)
    gap = spheres - pose[..., None, :2]
    distance = jnp.sqrt(jnp.min(jnp.sum(gap * gap, axis=-1), axis=-1))
    return distance < reach + radius + travel + 1e-3


def on_some(mask: Array, function, base: PyTree, args: PyTree, chunk: int) -> PyTree:
    """`base` with the rows under `mask` replaced by `function(args)` of those rows, computed `chunk` rows at a time."""
    n = mask.shape[0]
    chunk = min(chunk, n)
    order = jnp.nonzero(mask, size=n + chunk, fill_value=n)[0]  # the masked rows first, then out-of-range ones
    rounds = (jnp.sum(mask) + chunk - 1) // chunk

    def body(i, out):
        rows = lax.dynamic_slice_in_dim(order, i * chunk, chunk)
        picked = jax.tree.map(lambda x: x.at[rows].get(mode="clip"), args)
        return jax.tree.map(lambda x, new: x.at[rows].set(new, mode="drop"), out, function(*picked))

    return lax.fori_loop(0, rounds, body, base)


def drive_xla(robot: PlanarRobot, radius: float, pose, velocity, control, spheres) -> Motion:
    free = solve(robot, radius, pose, velocity, control, spheres[..., :0, :])
    if spheres.shape[-2] == 0:
        return free
    near = can_reach(robot, radius, pose, velocity, spheres)
    chunk = max(CHUNK[0], min(CHUNK[1], near.shape[0] // 16))
    return on_some(near, partial(solve, robot, radius), free, (pose, velocity, control, spheres), chunk)
