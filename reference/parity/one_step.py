"""One step from random states: the velocities of robot and gremlins after it, against MuJoCo.

Four in ten states are visited by policies that drive into things. In the others the robot is put somewhere else, mostly
next to or into a solid thing, with random velocities, and gremlins are shaken. `physics` is one 2 ms step.
`environment` is ten of them: there the speed servo of the hinge, unstable at this time step unless it saturates,
multiplies a rounding error by about −4 each time.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from reference.parity.episodes import Plan, record, stepper
from tqpo.envs import State, Task, TaskConfig
from tqpo.envs.mujoco import MujocoTask

SEED = 1


def pick(tree, *index):
    return jax.tree.map(lambda x: x[index], tree)


def states(config: TaskConfig, count: int) -> State:
    """Random states [count, …] in double precision; call under x64."""
    rng = np.random.default_rng(SEED)
    episodes = max(2, count // 500)
    plans = [Plan(config, policy, episodes, seed=SEED) for policy in ("ram", "careful")]
    driven = [record(plan)[0] for plan in plans]
    share = [count - count // 4, count // 4]
    chosen = [
        pick(s, rng.integers(config.max_steps, size=n), rng.integers(episodes, size=n))
        for s, n in zip(driven, share, strict=True)
    ]
    out = jax.tree.map(lambda *x: np.concatenate(x), *chosen)
    moved = rng.permutation(count)[: round(0.6 * count)]
    return shake(rng, config, out, moved)


def shake(rng, config: TaskConfig, out: State, rows: np.ndarray) -> State:
    """The states with the robot put elsewhere in the given rows, and gremlins disturbed there.

    Not where gremlins have yet to rise from the floor: the JAX task lets them rise freely, and no robot is there so soon.
    """
    if config.gremlins:
        rows = rows[np.min(out.boxes.pos[rows, :, 2], axis=1) > 0.15]  # m
    n = len(rows)
    pose, velocity = out.pose.copy(), out.velocity.copy()
    place = rng.uniform(-config.extents, config.extents, (n, 2))
    still = out.buttons if out.pillars is None else out.pillars
    solids = np.concatenate([out.boxes.pos[rows, :, :2], still[rows]], axis=1)
    if solids.shape[1]:
        near = solids[np.arange(n), rng.integers(solids.shape[1], size=n)]
        angle, radius = rng.uniform(0.0, 2.0 * np.pi, n), rng.uniform(0.05, 0.28, n)
        if config.goal == "push":
            radius = rng.uniform(0.25, 0.48, n)
        beside = near + radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        place = np.where(rng.random(n)[:, None] < 0.85, beside, place)
    pose[rows] = np.column_stack([place, rng.uniform(0.0, 2.0 * np.pi, n)])
    velocity[rows] = rng.normal(size=(n, 3)) * [0.6, 0.6, 4.0]
    pos, quat, vel = (x.copy() for x in out.boxes)
    pos[rows] += 0.005 * rng.normal(size=pos[rows].shape)
    quat[rows] += 0.03 * rng.normal(size=quat[rows].shape)
    quat /= np.linalg.norm(quat, axis=-1, keepdims=True)
    vel[rows] += 0.1 * rng.normal(size=vel[rows].shape)
    distance = np.linalg.norm(out.goal - pose[:, :2], axis=1)
    boxes = out.boxes._replace(pos=pos, quat=quat, vel=vel)
    return out._replace(pose=pose, velocity=velocity, boxes=boxes, distance=distance)


def as_type(tree, dtype):
    return jax.tree.map(lambda x: x.astype(dtype) if x.dtype.kind == "f" else x, tree)


def velocities(state: State) -> np.ndarray:
    """[N, 3 + 6·G]"""
    boxes = np.asarray(state.boxes.vel)
    return np.concatenate([np.asarray(state.velocity), boxes.reshape(len(boxes), -1)], axis=1)


def twin_velocities(config: TaskConfig, before: State, actions: np.ndarray, converged: bool):
    """After one step of MuJoCo: velocities [N, 3 + 6·G]; and whether the robot touched a solid thing before it [N]."""
    twin = MujocoTask(config, converged=converged)
    out, touching = [], []
    for i, action in enumerate(actions):
        twin.set_state(pick(before, i))
        twin.forward()
        touching.append(bool(twin.touched() - {"floor"}))
        twin.step(action)
        out.append(twin.data.qvel.copy())
    return np.array(out), np.array(touching)


def summary(errors: np.ndarray) -> dict[str, float]:
    if not len(errors):
        return {}
    return {
        "median": float(np.median(errors)),
        "p99": float(np.quantile(errors, 0.99)),
        "worst": float(np.max(errors)),
    }


def measure(config: TaskConfig, count: int) -> dict[str, Any]:
    """Per span and precision: |Δ velocity|, the largest component of each state, against the converged solver."""
    with jax.enable_x64(True):
        base = states(config, count)
    rng = np.random.default_rng(SEED + 1)
    actions = rng.uniform(-1.0, 1.0, (count, 2)) * np.where(rng.random((count, 1)) < 0.5, 1.0, 0.05)
    one = replace(config, robot=replace(config.robot, substeps=1), max_steps=config.max_steps * config.robot.substeps)
    spans = {
        "physics": (one, base._replace(steps=base.steps * config.robot.substeps)),  # the same time
        "environment": (config, base),
    }
    result: dict[str, Any] = {"states": count}
    for span, (chosen, before) in spans.items():
        for dtype in (np.float64, np.float32):
            with jax.enable_x64(dtype is np.float64):
                start, commands = as_type((before, actions), dtype)
                after, _ = stepper(Task(chosen))(start, commands)
                ours = velocities(after)
                theirs, touching = twin_velocities(chosen, start, commands, converged=True)
                usual, _ = twin_velocities(chosen, start, commands, converged=False)
            errors = np.max(np.abs(ours - theirs), axis=1)
            result[f"{span}_{np.dtype(dtype).name}"] = {
                "in_contact": float(np.mean(touching)),
                "all": summary(errors),
                "contact": summary(errors[touching]),
                "default_solver": summary(np.max(np.abs(ours - usual), axis=1)),
                "worst_states": np.argsort(errors)[-5:][::-1].tolist(),
            }
    return result
