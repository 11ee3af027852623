"""The robot and a box on the floor: one physics step against MuJoCo, and the kernel against plain XLA."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import lowered_for_gpu

from reference.parity.episodes import stepper
from reference.parity.one_step import shake, twin_velocities, velocities
from tqpo.envs import TASKS, Task
from tqpo.envs.mujoco import MujocoTask
from tqpo.physics import kernel
from tqpo.physics.dispatch import make_shove
from tqpo.physics.loose import PUSH_BOX, VASE
from tqpo.physics.movable import Boxes
from tqpo.physics.shove import Scene, settle, shove_xla, unsettled

COUNT = 64
WITH_PILLAR, TEN = (pytest.param(f"SafetyPoint{name}", marks=pytest.mark.slow) for name in ("Push1", "Goal2"))


def states(config, count: int = COUNT):
    """Random states [count, …]: robots beside or in a box that is tilted and moves; every fourth is left as it starts."""
    twin, starts = MujocoTask(config), []
    for key in jax.random.split(jax.random.key(0), count):
        twin.reset(key)
        starts.append(twin.get_state()._replace(key=jax.random.key_data(key)))
    before = jax.tree.map(lambda *x: np.stack(x), *starts)
    rows = np.flatnonzero(np.arange(count) % 4)
    return shake(np.random.default_rng(0), config, before, rows)


def single(config):
    return replace(config, robot=replace(config.robot, substeps=1))


@pytest.mark.parametrize("name", ["SafetyPointGoal1", pytest.param("SafetyPointPush0", marks=pytest.mark.slow)])
def test_a_step_is_that_of_mujoco(x64, name):
    config = single(TASKS[name])
    before, actions = states(config), np.random.default_rng(1).uniform(-1.0, 1.0, (COUNT, 2))
    after, _ = stepper(Task(config))(before, actions)
    theirs, touching = twin_velocities(config, before, actions, converged=True)
    errors = np.abs(velocities(after) - theirs).max(axis=1)
    assert touching.mean() > 0.3
    assert np.median(errors) <= 1e-12  # m/s, rad/s
    assert np.max(errors) <= 1e-6


@pytest.mark.slow
def test_ten_vases_are_those_of_mujoco_but_where_two_are_touched(x64):
    """Vases that stand apart. What two of them do to a robot at once is added up."""
    config = single(TASKS["SafetyPointGoal2"])
    before, actions = states(config), np.random.default_rng(1).uniform(-1.0, 1.0, (COUNT, 2))
    after, _ = stepper(Task(config))(before, actions)
    theirs, touching = twin_velocities(config, before, actions, converged=True)
    errors = np.abs(velocities(after) - theirs).max(axis=1)
    twin, counts = MujocoTask(config), []
    for i in range(COUNT):
        twin.set_state(jax.tree.map(lambda x, i=i: x[i], before))
        twin.forward()
        counts.append(sum(name.startswith("vase") for name in twin.touched()))
    alone = np.array(counts) <= 1
    assert touching.mean() > 0.3
    assert 0 < np.sum(~alone) < COUNT // 8
    assert np.median(errors) <= 1e-12  # m/s, rad/s
    assert np.max(errors[alone]) <= 1e-6
    assert np.max(errors[~alone]) <= 0.05


def pushed_states(config, count: int):
    """Boxes that a robot pushes against a pillar, some time after they met."""
    twin, rng, found = MujocoTask(config), np.random.default_rng(0), []
    for key in jax.random.split(jax.random.key(0), count):
        twin.reset(key)
        state, angle = twin.get_state(), rng.uniform(0.0, 2.0 * np.pi)
        way = np.array([np.cos(angle), np.sin(angle)])
        state.boxes.pos[0, :2] = state.pillars[0] + 0.7 * way
        state.boxes.vel[0, :2] = -0.8 * way
        pose = np.array([*(state.boxes.pos[0, :2] + 0.45 * way), angle + np.pi])
        twin.set_state(state._replace(pose=pose, velocity=np.array([*(-0.8 * way), 0.0]), goal=np.full(2, 9.0)))
        for _ in range(120):
            twin.step(np.array([1.0, 0.0]))
        found.append(twin.get_state()._replace(key=jax.random.key_data(key)))
    return jax.tree.map(lambda *x: np.stack(x), *found)


@pytest.mark.slow
def test_a_box_is_pushed_against_a_pillar(x64):
    """MuJoCo finds the pillar's contact by iteration, at one end of the box's edge or the other."""
    config = single(TASKS["SafetyPointPush1"])
    before, actions = pushed_states(config, COUNT), np.tile([1.0, 0.0], (COUNT, 1))
    after, _ = stepper(Task(config))(before, actions)
    theirs, _ = twin_velocities(config, before, actions, converged=True)
    errors = np.abs(velocities(after) - theirs).max(axis=1)
    assert np.median(errors) <= 1e-3
    assert np.quantile(errors, 0.9) <= 1e-2


@pytest.mark.parametrize("model", [VASE, PUSH_BOX])
def test_mass_and_inertia_are_those_of_mujoco(model):
    name, body = ("SafetyPointGoal1", "vase0") if model == VASE else ("SafetyPointPush0", "push_box")
    found = MujocoTask(TASKS[name]).model.body(body)
    assert model.mass == pytest.approx(found.mass[0], rel=1e-9)
    np.testing.assert_allclose(sorted(model.inertia), sorted(found.inertia), rtol=1e-9)


def test_a_box_settles_as_mujoco_lets_it(x64):
    config = TASKS["SafetyPointGoal1"]
    twin = MujocoTask(config, converged=True)
    twin.reset(jax.random.key(0))
    boxes = jax.tree.map(lambda x: jnp.asarray(x)[None], twin.get_state().boxes)
    for _ in range(10):
        twin.step(np.zeros(2))
        boxes = settle(config.robot, VASE, boxes)
    far, still, nothing = jnp.full((1, 3), 9.0), jnp.zeros((1, 3)), jnp.zeros((1, 0, 2))
    assert not np.any(unsettled(config.robot, VASE, 0.2, far, still, boxes, nothing))
    assert np.all(unsettled(config.robot, VASE, 0.2, far, still, boxes, boxes.pos[..., :2] + 0.2))
    np.testing.assert_allclose(boxes.pos[0], twin.get_state().boxes.pos, atol=1e-12)


@pytest.mark.parametrize("name", ["SafetyPointGoal1", "SafetyPointPush0"])
def test_a_box_that_mujoco_moves_is_not_held_for_settled(x64, name):
    """Robots that drive and turn close by a box at rest."""
    config = TASKS[name]
    twin, rng, model = MujocoTask(config), np.random.default_rng(0), config.loose_model
    twin.reset(jax.random.key(0))
    for _ in range(20):
        twin.step(np.zeros(2))
    still, flagged, moved = twin.get_state(), [], []
    boxes = Boxes(*(jnp.asarray(x)[None] for x in still.boxes._replace(vel=np.zeros_like(still.boxes.vel))))
    for _ in range(400):
        way, distance = rng.uniform(-np.pi, np.pi), model.half_size + rng.uniform(0.1, 0.35)
        at = still.boxes.pos[0, :2] + distance * np.array([np.cos(way), np.sin(way)])
        pose, velocity = np.array([*at, rng.uniform(-np.pi, np.pi)]), rng.uniform(-1.0, 1.0, 3) * (0.8, 0.8, 3.0)
        flagged.append(
            unsettled(config.robot, model, 0.2, pose[None], velocity[None], boxes, np.zeros((1, 0, 2)))[0, 0]
        )
        twin.set_state(still._replace(pose=pose, velocity=velocity, boxes=Boxes(*(np.asarray(x[0]) for x in boxes))))
        twin.step(np.sign(rng.uniform(-1.0, 1.0, 2)))
        moved.append(np.abs(twin.get_state().boxes.vel[0, [0, 1, 3, 4, 5]]).max() > 1e-6)
    assert np.all(np.array(flagged)[moved])
    assert 50 < np.sum(moved) <= np.sum(flagged) < 350


@pytest.mark.parametrize("name", ["SafetyPointGoal1", WITH_PILLAR, TEN])
def test_the_kernel_is_xla(monkeypatch, name):
    config = single(TASKS[name])
    monkeypatch.setattr(kernel, "INTERPRET", jax.default_backend() != "gpu")
    with jax.enable_x64(True):
        state = states(config, 16)
        pillars = np.zeros((16, 0, 2)) if state.pillars is None else state.pillars
        args = jax.tree.map(jnp.asarray, (state.pose, state.velocity, np.full((16, 2), 0.3), state.boxes, pillars))
        plain, by_kernel = (
            partial(f, config.robot, config.loose_model, config.pillar_radius)(Scene(*args))
            for f in (jax.jit(shove_xla, static_argnums=(0, 1, 2)), kernel.shove_pallas)
        )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-8), by_kernel, plain)


@pytest.mark.parametrize("name", ["SafetyPointGoal1", WITH_PILLAR, TEN])
def test_the_kernel_lowers_for_a_gpu(monkeypatch, name):
    monkeypatch.setenv("TQPO_PHYSICS", "pallas")
    config = TASKS[name]
    state = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float32) if x.dtype == float else jnp.asarray(x), states(config, 4)
    )
    pillars = jnp.zeros((4, 0, 2)) if state.pillars is None else state.pillars
    args = state.pose, state.velocity, jnp.zeros((4, 2)), state.boxes, pillars
    assert "shove" in lowered_for_gpu(make_shove(config.robot, config.loose_model, config.pillar_radius), *args)
