"""One environment step of the robot among boxes that lie on the floor, and pillars: ten physics steps.

A box that lies flat, neither slides nor turns and cannot be reached only settles (`settle`). So most environments need
the motion of the robot alone (`drive.py`); the others are solved with `loose.py`, a few at a time. `dispatch.py` chooses
between this and a GPU kernel.

One box is exact. Of several each is solved with the robot as if it were alone (`by_box`), and what they change in the
robot's motion is added up (`together`). Two things are then otherwise than in MuJoCo: boxes pass through each other, and
two that touch the robot at once do not feel each other through it (a vase has a 650th of the robot's mass).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tqpo.physics import loose
from tqpo.physics.drive import Motion, components, drive_xla, on_some, robot_travel, robot_turn
from tqpo.physics.loose import LooseBox
from tqpo.physics.movable import Body, Boxes
from tqpo.physics.planar import PlanarRobot, Points
from tqpo.physics.push import BoxMotion, Pair, as_body, as_boxes, run_pair
from tqpo.types import Array

CHUNK = 8  # pairs of robot and box that are solved together on the xla path


class Scene(NamedTuple):
    """A flat batch of robots, boxes and pillars before a step."""

    pose: Array  # [N, 3]
    velocity: Array  # [N, 3]
    control: Array  # [N, 2]
    boxes: Boxes  # [N, B, …]
    pillars: Array  # [N, P, 2]


def solve_loose(
    robot: PlanarRobot, model: LooseBox, radius: float, pose, velocity, control, body: Body, pillars: Points
) -> Pair:
    """An environment step of the robot and one box together, by components [..., 1]."""

    def feel(_, pose, velocity, body, effort):
        return loose.coupled_acceleration(robot, model, pose, velocity, control, body, pillars, radius, effort)

    return run_pair(robot, feel, pose, velocity, body)


def settle(robot: PlanarRobot, model: LooseBox, boxes: Boxes) -> Boxes:
    """Boxes that lie flat and move up or down only: all rows of all corners are then one, and known in closed form."""
    soft, mu2 = model.contact, model.friction[0] ** 2
    rows = 40 * len(model.parts) / (2.0 * mu2 * (1.0 + mu2))

    def one(_, carry):
        z, v = carry
        depth = z - model.half_size
        d = soft.impedance(depth)
        wanted = -soft.damping * v - soft.stiffness * d * depth
        pull = jnp.where((depth < 0) & (wanted > -model.gravity), rows * d / (1.0 - d), 0.0)
        v = v + robot.timestep * (pull * wanted - model.gravity) / (1.0 + pull)
        return z + robot.timestep * v, v

    z, v = lax.fori_loop(0, robot.substeps, one, (boxes.pos[..., 2], boxes.vel[..., 2]))
    return boxes._replace(pos=boxes.pos.at[..., 2].set(z), vel=jnp.zeros_like(boxes.vel).at[..., 2].set(v))


def flat_gap(model: LooseBox, boxes: Boxes, points: Array) -> Array:
    """[N, B] m, from boxes that lie flat to the nearest of the points [N, K, 2], seen from above; 0 inside."""
    w, z = boxes.quat[..., 0, None], boxes.quat[..., 3, None]
    cos, sin = w * w - z * z, 2.0 * w * z
    away = points[:, None] - boxes.pos[:, :, None, :2]  # [N, B, K, 2]
    local = cos * away[..., 0] + sin * away[..., 1], cos * away[..., 1] - sin * away[..., 0]
    gaps = [
        jnp.hypot(*(jnp.maximum(jnp.abs(x - o) - h, 0.0) for x, o, h in zip(local, offset, half, strict=False)))
        for offset, half in model.parts
    ]
    return jnp.min(jnp.stack(gaps), axis=(0, -1))


def unsettled(
    robot: PlanarRobot, model: LooseBox, radius: float, pose: Array, velocity: Array, boxes: Boxes, pillars: Array
) -> Array:
    """[N, B] which boxes slide, turn or tilt, or might touch the robot or a pillar in this step: a bound, never too small.

    Seen from above the robot lies in two circles, of its sphere and about its cube.
    """
    slow, level = (1e-12, 1e-12) if pose.dtype == jnp.float64 else (1e-5, 2e-6)
    sliding, turning = (jnp.max(jnp.abs(boxes.vel[..., part]), axis=-1) for part in (slice(2), slice(3, 6)))
    moving = (sliding > slow) | (turning > 10.0 * slow)  # m/s, rad/s
    moving |= jnp.max(jnp.abs(boxes.quat[..., 1:3]), axis=-1) > level
    _, travel = robot_travel(robot, velocity)
    ahead = robot.box_offset * jnp.stack([jnp.cos(pose[:, 2]), jnp.sin(pose[:, 2])], axis=-1)
    swing = robot.box_offset * robot_turn(robot, velocity)
    gap = flat_gap(model, boxes, pose[:, None, :2])
    moving |= gap < (robot.sphere_radius + travel)[:, None] + 1e-3
    gap = flat_gap(model, boxes, (pose[:, :2] + ahead)[:, None])
    moving |= gap < (math.sqrt(2.0) * robot.box_half + travel + swing)[:, None] + 1e-3
    if pillars.shape[1]:
        moving |= flat_gap(model, boxes, pillars) < radius + 1e-3
    return moving


def by_box(x: Array, boxes: int) -> Array:
    """[N, …] → [N·boxes, …]: a robot's row for each of its boxes."""
    return x if boxes == 1 else jnp.repeat(x, boxes, axis=0)


def together(free: Motion, moved: BoxMotion, boxes: int) -> BoxMotion:
    """From a row for each box, [N·boxes, …] with boxes of [N·boxes, 1, …], one for each robot: what the boxes change in
    its free motion is added up."""
    if boxes == 1:
        return moved
    split = jax.tree.map(lambda x: x.reshape((-1, boxes, *x.shape[1:])), moved)
    motion = (alone + jnp.sum(x - alone[:, None], axis=1) for alone, x in zip(free, split[:3], strict=True))
    return BoxMotion(*motion, Boxes(*(x[:, :, 0] for x in split.boxes)), jnp.any(split.touching, axis=1))  # pyright: ignore[reportCallIssue]


def shove_xla(robot: PlanarRobot, model: LooseBox, radius: float, scene: Scene) -> BoxMotion:
    """Robots and their boxes after a step, [N, …]; pillars have this radius."""
    pose, velocity, control, boxes, pillars = scene
    count = boxes.pos.shape[1]
    free = drive_xla(robot, radius, pose, velocity, control, pillars)
    active = unsettled(robot, model, radius, pose, velocity, boxes, pillars).reshape(-1)
    mine, settled = (Boxes(*(x.reshape(-1, x.shape[-1]) for x in y)) for y in (boxes, settle(robot, model, boxes)))

    def pairs(pose, velocity, control, box, pillars):
        args = [components(jnp.expand_dims(x, -2)) for x in (pose, velocity, control)]  # components become [..., 1]
        body = as_body(*(jnp.expand_dims(x, -2) for x in box))
        places = [components(pillars[..., k, None, :]) for k in range(pillars.shape[-2])]
        pair = solve_loose(robot, model, radius, *args, body, places)  # pyright: ignore[reportArgumentType, reportCallIssue]  (tuples of unknown length)
        motion = (jnp.concatenate(x, axis=-1) for x in (pair.pose, pair.velocity, pair.acceleration))
        return *motion, Boxes(*(x[..., 0, :] for x in as_boxes(pair.body))), pair.touching[..., 0]

    base = (*(by_box(x, count) for x in free), settled, jnp.zeros(active.shape, bool))
    rows = [by_box(x, count) for x in (pose, velocity, control, pillars)]
    *motion, box, touching = on_some(active, pairs, base, (*rows[:3], mine, rows[3]), CHUNK)
    moved = BoxMotion(*motion, Boxes(*(x[:, None] for x in box)), touching)  # pyright: ignore[reportArgumentType, reportCallIssue]  (tuples of unknown length)
    return together(free, moved, count)
