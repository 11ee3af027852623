"""One environment step of the robot among free boxes that are welded to targets on circles (gremlins)."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

from tqpo.physics.drive import flatten_vmap, solve
from tqpo.physics.movable import Boxes, BoxModel
from tqpo.physics.planar import PlanarRobot
from tqpo.types import Array


class BoxMotion(NamedTuple):
    """Robot and boxes after an environment step."""

    pose: Array  # [3]
    velocity: Array  # [3]
    acceleration: Array  # [3]
    boxes: Boxes
    touching: Array  # [] bool


def start_boxes(model: BoxModel, gremlins: Array) -> Boxes:
    """Boxes at rest at the centres of their circles; gremlins [G, 3] are centre and heading."""
    half = gremlins[:, 2] / 2.0
    zero = jnp.zeros_like(half)
    height = jnp.full_like(half, model.half_size)
    return Boxes(
        pos=jnp.stack([gremlins[:, 0], gremlins[:, 1], height], axis=1),
        quat=jnp.stack([jnp.cos(half), zero, zero, jnp.sin(half)], axis=1),
        vel=jnp.zeros((gremlins.shape[0], 6), gremlins.dtype),
    )


def interim(robot, model, travel, pose, velocity, control, boxes, gremlins, time):
    motion = solve(robot, 0.1, pose, velocity, control, jnp.zeros((0, 2)))
    t = time + 0.018
    offset = travel * jnp.stack([jnp.sin(t), jnp.cos(t)])
    pos = jnp.concatenate([gremlins[:, :2] + offset, jnp.full((gremlins.shape[0], 1), 0.2)], axis=1)
    near = jnp.any(jnp.linalg.norm(pos[:, :2] - motion.pose[:2], axis=1) < 0.2)
    return BoxMotion(*motion, boxes._replace(pos=pos), near)


def make_push(robot: PlanarRobot, model: BoxModel, travel: float):
    one = partial(interim, robot, model, travel)
    import jax

    return flatten_vmap(one, jax.vmap(one))
