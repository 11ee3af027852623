"""One environment step of the robot among boxes that lie on the floor, and pillars: ten physics steps.

A box that lies flat, neither slides nor turns and cannot be reached only settles (`settle`). So most environments need
the motion of the robot alone (`drive.py`); the others are solved with `loose.py`, a few at a time. `dispatch.py` chooses
between this and a GPU kernel.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from tqpo.physics import loose
from tqpo.physics.drive import components, drive_xla, on_some, robot_travel
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


def unsettled(
    robot: PlanarRobot, model: LooseBox, radius: float, pose: Array, velocity: Array, boxes: Boxes, pillars: Array
) -> Array:
    """[N, B] which boxes slide, turn or tilt, or might touch the robot or a pillar in this step: a bound, never too small."""
    slow, level = (1e-12, 1e-12) if pose.dtype == jnp.float64 else (1e-5, 2e-6)
    sliding, turning = (jnp.max(jnp.abs(boxes.vel[..., part]), axis=-1) for part in (slice(2), slice(3, 6)))
    moving = (sliding > slow) | (turning > 10.0 * slow)  # m/s, rad/s
    moving |= jnp.max(jnp.abs(boxes.quat[..., 1:3]), axis=-1) > level
    reach, travel = robot_travel(robot, velocity)
    distance = jnp.linalg.norm(boxes.pos[..., :2] - pose[:, None, :2], axis=-1)
    moving |= distance < (reach + travel)[:, None] + model.reach + 1e-3
    if pillars.shape[1]:
        gaps = jnp.linalg.norm(boxes.pos[:, :, None, :2] - pillars[:, None], axis=-1)  # [N, B, P]
        moving |= jnp.min(gaps, axis=-1) < radius + model.footprint + 1e-3
    return moving


def shove_xla(robot: PlanarRobot, model: LooseBox, radius: float, scene: Scene) -> BoxMotion:
    """Robots and their box after a step, [N, …]; pillars have this radius."""
    pose, velocity, control, boxes, pillars = scene
    free = drive_xla(robot, radius, pose, velocity, control, pillars)
    active = unsettled(robot, model, radius, pose, velocity, boxes, pillars)[:, 0]
    mine = Boxes(*(x[:, 0] for x in boxes))
    settled = Boxes(*(x[:, 0] for x in settle(robot, model, boxes)))

    def pairs(pose, velocity, control, box, pillars):
        args = [components(jnp.expand_dims(x, -2)) for x in (pose, velocity, control)]  # components become [..., 1]
        body = as_body(*(jnp.expand_dims(x, -2) for x in box))
        places = [components(pillars[..., k, None, :]) for k in range(pillars.shape[-2])]
        pair = solve_loose(robot, model, radius, *args, body, places)  # pyright: ignore[reportArgumentType, reportCallIssue]  (tuples of unknown length)
        motion = (jnp.concatenate(x, axis=-1) for x in (pair.pose, pair.velocity, pair.acceleration))
        return *motion, Boxes(*(x[..., 0, :] for x in as_boxes(pair.body))), pair.touching[..., 0]

    base = (*free, settled, jnp.zeros(pose.shape[0], bool))
    *motion, box, touching = on_some(active, pairs, base, (pose, velocity, control, mine, pillars), CHUNK)
    return BoxMotion(*motion, Boxes(*(x[:, None] for x in box)), touching)  # pyright: ignore[reportArgumentType, reportCallIssue]  (tuples of unknown length)
