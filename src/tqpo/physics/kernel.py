"""The environment steps of `drive.py` and `push.py` as GPU kernels: everything in registers for ten physics steps.

The functions are those of `planar.py` and `movable.py`; the kernels only load, loop and store. `drive` and `weld` give
a thread to each robot or box. `pair` gives a warp to each environment, its lanes to the contact slots, and returns at
once where the robot is far from every box. Written with Pallas for its Triton backend.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from tqpo.physics import planar, shove
from tqpo.physics.drive import Motion
from tqpo.physics.loose import LooseBox
from tqpo.physics.movable import Body, Boxes, BoxModel, Fixed
from tqpo.physics.planar import PlanarRobot
from tqpo.physics.push import BoxMotion, Circle, Fixture, Scene, nearest, solve_pair, solve_weld
from tqpo.physics.shove import by_box, settle, solve_loose, together, unsettled
from tqpo.types import Array

WARP = 32
INTERPRET = False  # tests set it to run the kernels without a GPU
WHOLE = pl.BlockSpec(memory_space=pl.ANY)


def block_size(n: int) -> int:
    """Few rows: one warp a block, to spread over the chip. Many: four."""
    return WARP if n <= 32_768 else 4 * WARP


def by_thread(function, inputs: list[Array], widths: list[int], name: str) -> list[Array]:
    """Runs `function(*columns) -> columns` with a thread per row: inputs [N, C], outputs [N, width]."""
    n = inputs[0].shape[0]
    block = block_size(n)

    def body(*refs):
        rows = pl.program_id(0) * block + jnp.arange(block)
        inside = rows < n
        columns = [
            tuple(plt.load(ref.at[rows, i], mask=inside, other=0.0) for i in range(x.shape[1]))
            for ref, x in zip(refs, inputs, strict=False)
        ]
        for ref, values in zip(refs[len(inputs) :], function(*columns), strict=True):
            for i, value in enumerate(values):
                plt.store(ref.at[rows, i], value, mask=inside)

    call = pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct((n, width), inputs[0].dtype) for width in widths],
        grid=(pl.cdiv(n, block),),
        in_specs=[WHOLE] * len(inputs),
        out_specs=[WHOLE] * len(widths),
        compiler_params=plt.CompilerParams(num_warps=block // WARP, num_stages=1),
        interpret=INTERPRET,
        name=name,
    )
    return call(*inputs)


def drive_pallas(robot: PlanarRobot, radius: float, pose: Array, velocity: Array, control: Array, spheres: Array):
    """A flat batch: pose [N, 3], velocity [N, 3], control [N, 2], spheres [N, K, 2] → `Motion` of [N, 3]."""
    n, count = spheres.shape[:2]

    def function(pose, velocity, control, places=()):
        points = [(places[2 * k], places[2 * k + 1]) for k in range(count)]
        return planar.environment_step(robot, pose, velocity, control, points, radius)

    inputs = [pose, velocity, control.astype(pose.dtype)] + ([spheres.reshape(n, 2 * count)] if count else [])
    return Motion(*by_thread(function, inputs, [3, 3, 3], "drive"))


def weld_pallas(
    robot: PlanarRobot, model: BoxModel, travel: float, boxes: Boxes, gremlins: Array, time: Array
) -> Boxes:
    """Boxes [N, G, …] that touch nothing."""
    n, g = gremlins.shape[:2]

    def function(pos, quat, vel, gremlin, time):
        body = Body(pos, quat, vel[:3], vel[3:])
        moved = solve_weld(robot, model, travel, body, Circle(gremlin[:2], gremlin[2], time[0]))
        return moved.pos, moved.quat, (*moved.vel, *moved.spin)

    times = jnp.broadcast_to(time[:, None], (n, g))
    inputs = [x.reshape(n * g, -1) for x in (*boxes, gremlins, times)]
    out = by_thread(function, inputs, [3, 4, 6], "weld")
    return Boxes(*(x.reshape(n, g, -1) for x in out))


def pair_body(solve, near, index, *refs) -> None:
    """The inputs; then seven outputs, which hold the uncoupled motion until they are overwritten.

    `solve(pose, velocity, control, body, (row, box), scalars, *refs)` gets the refs after the boxes', and how to read them.
    """
    pose, velocity, control, pos, quat, vel, *others = refs[:-14]
    out_pose, out_velocity, out_accel, out_pos, out_quat, out_vel, out_touching = refs[-7:]
    row = pl.program_id(0)

    @pl.when(near[row] != 0)
    def _():
        box = index[row]

        def scalars(ref, count, *where):
            return tuple(jnp.full((1, 1), ref[(row, *where, i)]) for i in range(count))

        body = Body(
            scalars(pos, 3, box), scalars(quat, 4, box), *(scalars(vel, 6, box)[s] for s in (slice(3), slice(3, 6)))
        )
        state = scalars(pose, 3), scalars(velocity, 3), scalars(control, 2)
        pair = solve(*state, body, (row, box), scalars, *others)
        robot_parts = ((out_pose, pair.pose), (out_velocity, pair.velocity), (out_accel, pair.acceleration))
        for ref, values in robot_parts:
            for i, value in enumerate(values):
                ref[row, i] = jnp.sum(value)
        moved = pair.body
        for ref, values in ((out_pos, moved.pos), (out_quat, moved.quat), (out_vel, (*moved.vel, *moved.spin))):
            for i, value in enumerate(values):
                ref[row, box, i] = jnp.sum(value)
        out_touching[row] = jnp.sum(jnp.where(pair.touching, 1, 0), dtype=jnp.int32)


def pairs(solve, near: Array, index: Array, inputs: tuple[Array, ...], results: tuple[Array, ...], name: str):
    """`results`, motion and boxes without contact, with those under `near` [N] solved together with box `index` [N]."""
    inputs = near.astype(jnp.int32), index.astype(jnp.int32), *inputs
    call = pl.pallas_call(
        partial(pair_body, solve),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
        grid=(near.shape[0],),
        in_specs=[WHOLE] * (len(inputs) + len(results)),
        out_specs=[WHOLE] * len(results),
        input_output_aliases={len(inputs) + i: i for i in range(len(results))},
        compiler_params=plt.CompilerParams(num_warps=1, num_stages=1),
        interpret=INTERPRET,
        name=name,
    )
    *motion, pos, quat, vel, touching = call(*inputs, *results)
    return BoxMotion(*motion, Boxes(pos, quat, vel), touching > 0)  # pyright: ignore[reportArgumentType, reportCallIssue]  (tuples of unknown length)


def push_pallas(fixture: Fixture, scene: Scene) -> BoxMotion:
    """As `push.push_xla`."""
    robot, model, travel, radius = fixture
    pose, velocity, control, boxes, gremlins, time, spheres = scene
    n, count = spheres.shape[:2]
    free = drive_pallas(robot, radius, pose, velocity, control, spheres)
    welded = weld_pallas(robot, model, travel, boxes, gremlins, time)
    index, near = nearest(fixture, scene)

    def solve(pose, velocity, control, body, place, scalars, gremlins, time, *spheres):
        row, box = place
        x, y, yaw = scalars(gremlins, 3, box)
        circle = Circle((x, y), yaw, jnp.full((1, 1), time[row]))
        fixed = Fixed([scalars(spheres[0], 2, k) for k in range(count)], radius)
        return solve_pair(robot, model, travel, pose, velocity, control, body, circle, fixed)

    inputs = pose, velocity, control, *boxes, gremlins, time, *((spheres,) if count else ())
    return pairs(solve, near, index, inputs, (*free, *welded, jnp.zeros(n, jnp.int32)), "pair")


def shove_pallas(robot: PlanarRobot, model: LooseBox, radius: float, scene: shove.Scene) -> BoxMotion:
    """As `shove.shove_xla`."""
    pose, velocity, control, boxes, pillars = scene
    count, each = pillars.shape[1], boxes.pos.shape[1]
    free = drive_pallas(robot, radius, pose, velocity, control, pillars)
    near = unsettled(robot, model, radius, pose, velocity, boxes, pillars).reshape(-1)

    def solve(pose, velocity, control, body, _, scalars, *pillars):
        places = [scalars(pillars[0], 2, k) for k in range(count)]
        return solve_loose(robot, model, radius, pose, velocity, control, body, places)

    mine, settled = ((x.reshape(-1, 1, x.shape[-1]) for x in y) for y in (boxes, settle(robot, model, boxes)))
    pose, velocity, control, pillars, *motion = (by_box(x, each) for x in (pose, velocity, control, pillars, *free))
    inputs = pose, velocity, control, *mine, *((pillars,) if count else ())
    first = jnp.zeros(near.shape, jnp.int32)
    return together(free, pairs(solve, near, first, inputs, (*motion, *settled, first), "shove"), each)
