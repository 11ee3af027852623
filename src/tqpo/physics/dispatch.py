"""Which path an environment step takes: plain XLA, or one GPU kernel that keeps each robot in registers (`kernel.py`).

`drive` and `push` are functions of one robot. Under `vmap`, however nested, the batch is flattened and goes to one of
two paths with the same results. The path is chosen from the default backend; `TQPO_PHYSICS=xla` or `=pallas` overrides
it.
"""

import os
from functools import partial

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from tqpo.errors import ConfigError
from tqpo.physics import shove
from tqpo.physics.drive import Motion, drive_xla, solve
from tqpo.physics.loose import LooseBox
from tqpo.physics.movable import BoxModel
from tqpo.physics.planar import PlanarRobot
from tqpo.physics.push import BoxMotion, Fixture, Scene, push_xla
from tqpo.types import Array


def path() -> str:
    chosen = os.environ.get("TQPO_PHYSICS", "auto")
    if chosen not in {"auto", "xla", "pallas"}:
        raise ConfigError(f"TQPO_PHYSICS={chosen!r} is not a physics path; use xla, pallas or auto")
    if chosen == "auto":
        return "pallas" if jax.default_backend() == "gpu" else "xla"
    return chosen


def flatten_vmap(single, flat):
    """A function of one item whose `vmap`, however nested, is one call of `flat` on a flat batch [N, …]."""

    @custom_vmap
    def batched(*args):
        return flat(*args)

    @batched.def_vmap
    def nested(axis_size, in_batched, *args):
        args = spread(axis_size, in_batched, args)
        inner = jax.tree.leaves(args)[0].shape[1]
        merged = jax.tree.map(lambda x: x.reshape((axis_size * inner, *x.shape[2:])), args)
        out = batched(*merged)
        out = jax.tree.map(lambda x: x.reshape((axis_size, inner, *x.shape[1:])), out)
        return out, jax.tree.map(lambda _: True, out)

    @custom_vmap
    def one(*args):
        return single(*args)

    @one.def_vmap
    def lifted(axis_size, in_batched, *args):
        out = batched(*spread(axis_size, in_batched, args))
        return out, jax.tree.map(lambda _: True, out)

    return one


def spread(axis_size: int, in_batched, args):
    """Gives every argument the batch axis."""
    return jax.tree.map(
        lambda x, mapped: x if mapped else jnp.broadcast_to(x, (axis_size, *jnp.shape(x))),
        tuple(args),
        tuple(in_batched),
    )


def drive_flat(robot: PlanarRobot, radius: float, *arrays: Array) -> Motion:
    """A flat batch [N, …] on the chosen path."""
    if path() == "pallas":
        from tqpo.physics.kernel import drive_pallas

        return drive_pallas(robot, radius, *arrays)
    return drive_xla(robot, radius, *arrays)


def make_drive(robot: PlanarRobot, radius: float):
    """`drive(pose [3], velocity [3], control [2], spheres [K, 2]) -> Motion`, for spheres of this radius."""
    return flatten_vmap(partial(solve, robot, radius), partial(drive_flat, robot, radius))


def push_flat(fixture: Fixture, *arrays) -> BoxMotion:
    if path() == "pallas":
        from tqpo.physics.kernel import push_pallas

        return push_pallas(fixture, Scene(*arrays))
    return push_xla(fixture, Scene(*arrays))


def make_push(robot: PlanarRobot, model: BoxModel, travel: float, radius: float):
    """`push(pose [3], velocity [3], control [2], boxes, gremlins [G, 3], time, spheres [K, 2]) -> BoxMotion`.

    Boxes are pulled round circles of radius `travel` [m]; the spheres stand still and have this `radius` [m].
    """
    return of_one(partial(push_flat, Fixture(robot, model, travel, radius)))


def of_one(flat):
    """A function of a flat batch as one of a single item."""

    def single(*args):
        return jax.tree.map(lambda x: x[0], flat(*jax.tree.map(lambda x: jnp.asarray(x)[None], args)))

    return flatten_vmap(single, flat)


def shove_flat(robot: PlanarRobot, model: LooseBox, radius: float, *arrays) -> BoxMotion:
    if path() == "pallas":
        from tqpo.physics.kernel import shove_pallas

        return shove_pallas(robot, model, radius, shove.Scene(*arrays))
    return shove.shove_xla(robot, model, radius, shove.Scene(*arrays))


def make_shove(robot: PlanarRobot, model: LooseBox, radius: float):
    """`shove(pose [3], velocity [3], control [2], boxes, pillars [P, 2]) -> BoxMotion`, for boxes on the floor."""
    return of_one(partial(shove_flat, robot, model, radius))
