"""One environment step of the robot among fixed spheres and free boxes that are welded to targets on circles (gremlins).

Every box follows its own weld, and the robot drives freely, except where the robot can reach a box within the step:
there robot and nearest box are solved together (`movable.coupled_acceleration`). Boxes never meet each other, and the
robot meets one at a time; the keepouts of the tasks see to that (`docs/decisions.md`). A box meets a sphere only where
the robot pushes it there. The two paths are those of `drive.py`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tqpo.physics import movable, planar
from tqpo.physics.drive import components, drive_xla, on_some, robot_travel
from tqpo.physics.movable import NOTHING_FIXED, Body, Boxes, BoxModel, Fixed, Target
from tqpo.physics.planar import PlanarRobot
from tqpo.types import Array

CHUNK = 8  # pairs of robot and box that are solved together on the xla path


class BoxMotion(NamedTuple):
    """Robot and boxes after an environment step."""

    pose: Array  # [3]
    velocity: Array  # [3]
    acceleration: Array  # [3]
    boxes: Boxes
    touching: Array  # [] bool: the robot is in contact with a box


class Pair(NamedTuple):
    """Robot and one box by components, each an array of one common shape: the input and output of `solve_pair`."""

    pose: tuple[Array, ...]
    velocity: tuple[Array, ...]
    acceleration: tuple[Array, ...]
    body: Body
    touching: Array


class Fixture(NamedTuple):
    """What stays the same in every step of a task."""

    robot: PlanarRobot
    model: BoxModel
    travel: float  # m, radius of the circles
    radius: float  # m, of the spheres


class Scene(NamedTuple):
    """A flat batch of robots, boxes and spheres before a step."""

    pose: Array  # [N, 3]
    velocity: Array  # [N, 3]
    control: Array  # [N, 2]
    boxes: Boxes  # [N, G, …]
    gremlins: Array  # [N, G, 3] centre and heading of each circle
    time: Array  # [N] s
    spheres: Array  # [N, K, 2]


class Circle(NamedTuple):
    """Where a box is pulled: a circle that all boxes run in phase."""

    centre: tuple[Array, Array]  # m
    yaw: Array  # rad
    time: Array  # s, at the beginning of the environment step


def start_boxes(places: Array, height: float) -> Boxes:
    """Boxes at rest; places [G, 3] are x, y and heading."""
    half = places[:, 2] / 2.0
    zero = jnp.zeros_like(half)
    return Boxes(
        pos=jnp.stack([places[:, 0], places[:, 1], jnp.full_like(half, height)], axis=1),
        quat=jnp.stack([jnp.cos(half), zero, zero, jnp.sin(half)], axis=1),
        vel=jnp.zeros((places.shape[0], 6), places.dtype),
    )


def target(model: BoxModel, travel: float, circle: Circle, elapsed) -> Target:
    """The weld's goal. Its height is twice the box's half-size: the engine adds the offsets of start and mocap."""
    phase = circle.time + elapsed
    half = circle.yaw / 2.0
    zero = jnp.zeros_like(half)
    place = (circle.centre[0] + travel * jnp.sin(phase), circle.centre[1] + travel * jnp.cos(phase))
    return Target((*place, zero + 2.0 * model.half_size), (jnp.cos(half), zero, zero, jnp.sin(half)))


def solve_weld(robot: PlanarRobot, model: BoxModel, travel: float, body: Body, circle: Circle) -> Body:
    """An environment step of a box that touches nothing, by components."""

    def one(i, body):
        return movable.free_step(model, body, target(model, travel, circle, i * robot.timestep), robot.timestep)

    return lax.fori_loop(0, robot.substeps, one, body)


def solve_pair(
    robot: PlanarRobot,
    model: BoxModel,
    travel: float,
    pose,
    velocity,
    control,
    body: Body,
    circle: Circle,
    fixed: Fixed = NOTHING_FIXED,
):
    """An environment step of the robot and one box together, by components [..., 1]."""

    def feel(i, pose, velocity, body, effort):
        during = jnp.minimum(i, robot.substeps - 1) * robot.timestep  # the mocap stays until the next step
        goal = target(model, travel, circle, during)
        return movable.coupled_acceleration(robot, model, pose, velocity, control, body, goal, effort, fixed)

    return run_pair(robot, feel, pose, velocity, body)


def run_pair(robot: PlanarRobot, feel, pose, velocity, body: Body) -> Pair:
    """The ten steps of robot and box; `feel(i, pose, velocity, body, effort)` gives their accelerations in step i."""

    def one(i, state):
        pose, velocity, body, *_, effort = state
        felt = feel(i, pose, velocity, body, effort)
        moved = (
            *planar.integrate(robot, pose, velocity, felt.robot),
            movable.integrate(body, felt.linear, felt.angular, robot.timestep),
        )
        here = (pose, velocity, body)
        state = jax.tree.map(lambda new, old: jnp.where(i < robot.substeps, new, old), moved, here)
        return *state, felt.robot, felt.touching, felt.effort

    zero = jnp.zeros_like(pose[0])
    start = (pose, velocity, body, (zero,) * 3, zero > 0, (zero,) * 9)
    # One round more than there are steps: the last only feels the acceleration at the end.
    pose, velocity, body, accel, touching, _ = lax.fori_loop(0, robot.substeps + 1, one, start)
    return Pair(pose, velocity, accel, body, touching)


def as_body(pos: Array, quat: Array, vel: Array) -> Body:
    """Arrays [..., 3], [..., 4], [..., 6] to components."""
    return Body(components(pos), components(quat), components(vel[..., :3]), components(vel[..., 3:]))


def as_boxes(body: Body) -> Boxes:
    return Boxes(*(jnp.stack(x, axis=-1) for x in (body.pos, body.quat, (*body.vel, *body.spin))))


def as_circle(gremlins: Array, time: Array) -> Circle:
    return Circle((gremlins[..., 0], gremlins[..., 1]), gremlins[..., 2], time)


def nearest(fixture: Fixture, scene: Scene) -> tuple[Array, Array]:
    """The index of the nearest box [N], and whether the robot or a sphere might touch it in this step [N].

    The bound allows for the motor, the swing of the robot's origin and the pull of the weld, and is never too small.
    """
    robot, model, travel, radius = fixture
    pose, velocity, _, boxes, gremlins, time, spheres = scene
    duration = robot.timestep * robot.substeps
    reach, travelled = robot_travel(robot, velocity)
    reach += math.sqrt(3.0) * model.half_size
    goal = jnp.stack([jnp.sin(time), jnp.cos(time)], axis=-1)[:, None, :] * travel + gremlins[..., :2]
    lag = jnp.linalg.norm(goal - boxes.pos[..., :2], axis=-1) + travel * duration  # [N, G]
    speed = jnp.linalg.norm(boxes.vel[..., :2], axis=-1)
    box_travel = speed * duration + 0.5 * model.weld.stiffness * lag * duration**2
    distance = jnp.linalg.norm(boxes.pos[..., :2] - pose[:, None, :2], axis=-1)
    slack = distance - reach - travelled[:, None] - box_travel  # [N, G]
    index, near = jnp.argmin(distance, axis=-1), jnp.min(slack, axis=-1) < 1e-3
    if spheres.shape[1]:
        rows = jnp.arange(pose.shape[0])
        gap = jnp.linalg.norm(spheres - boxes.pos[rows, index, None, :2], axis=-1)  # [N, K]
        near |= jnp.min(gap, axis=-1) - radius - math.sqrt(3.0) * model.half_size - box_travel[rows, index] < 1e-3
    return index, near


def push_xla(fixture: Fixture, scene: Scene) -> BoxMotion:
    """Robots and boxes after a step, [N, …]."""
    robot, model, travel, radius = fixture
    pose, velocity, control, boxes, gremlins, time, spheres = scene
    rows = jnp.arange(pose.shape[0])
    free = drive_xla(robot, radius, pose, velocity, control, spheres)
    circle = as_circle(gremlins, time[:, None])
    welded = as_boxes(solve_weld(robot, model, travel, as_body(*boxes), circle))
    index, near = nearest(fixture, scene)
    mine = Boxes(*(x[rows, index] for x in boxes))

    def pairs(pose, velocity, control, box, gremlin, time, spheres):
        args = [jnp.expand_dims(x, -2) for x in (pose, velocity, control)]  # components become [..., 1]
        body = as_body(*(jnp.expand_dims(x, -2) for x in box))
        circle = as_circle(gremlin[..., None, :], time[..., None])
        fixed = Fixed([components(spheres[..., k, None, :]) for k in range(spheres.shape[-2])], radius)  # pyright: ignore[reportArgumentType]
        pair = solve_pair(robot, model, travel, *(components(x) for x in args), body, circle, fixed)  # pyright: ignore[reportArgumentType, reportCallIssue]  (tuples of unknown length)
        motion = (jnp.concatenate(x, axis=-1) for x in (pair.pose, pair.velocity, pair.acceleration))
        return *motion, Boxes(*(x[..., 0, :] for x in as_boxes(pair.body))), pair.touching[..., 0]

    base = (*free, mine, jnp.zeros(pose.shape[0], bool))
    args = (pose, velocity, control, mine, gremlins[rows, index], time, spheres)
    *motion, box, touching = on_some(near, pairs, base, args, CHUNK)
    box = Boxes(*(jnp.where(near[:, None], new, old[rows, index]) for new, old in zip(box, welded, strict=True)))
    moved = Boxes(*(all_.at[rows, index].set(new) for all_, new in zip(welded, box, strict=True)))
    return BoxMotion(*motion, moved, touching)  # pyright: ignore[reportArgumentType, reportCallIssue]  (tuples of unknown length)
