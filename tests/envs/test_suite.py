"""Safety-Gymnasium's Point suite against Safety-Gymnasium itself, as `reference/original.py` recorded it."""

import pathlib

import jax
import numpy as np
import pytest
from scipy.stats import ks_2samp
from tasks import most

from reference.original import TASKS as RECORDED
from reference.original import UNIT, statistics, unpack
from reference.parity import original
from reference.parity.one_step import pick, velocities
from tqpo.envs import Task
from tqpo.envs.gymnasium import programs
from tqpo.envs.layout import GOAL_FIELD
from tqpo.envs.mujoco import MujocoTask

DATA = pathlib.Path(__file__).parents[1] / "data/safety-gymnasium.npz"
SUITE = original.suite()
HARD_TO_PLACE = {"Button1", "Button2"}


def test_every_task_of_the_suite_is_recorded():
    assert set(SUITE) == set(RECORDED)


@pytest.mark.parametrize("name", most(SUITE, "SafetyPoint"))
def test_layouts_are_distributed_alike(name):
    """Two-sample Kolmogorov–Smirnov over 2,000 starts of each side; over fewer where few tries find room for all."""
    with np.load(DATA) as file:
        theirs = {
            key.split("/layout/")[1]: unpack(file[key]) for key in file.files if key.startswith(f"{name}/layout/")
        }
    count, config = len(theirs["robot/0/x"]), SUITE[name]
    assert count == 2000 or name in HARD_TO_PLACE
    layout = programs(Task(config), batched=True).sample(jax.random.split(jax.random.key(0), count))
    places = {"robot": layout.robot[:, None, :2], "robot heading": layout.robot[:, 2:]}
    if config.goal in GOAL_FIELD:
        places["goal"] = layout.goal[:, None]
    places |= {kind: getattr(layout, kind)[..., :2] for kind in config.kinds}
    if config.free_boxes:
        places[f"{config.free_boxes.removesuffix('s')} headings"] = getattr(layout, config.free_boxes)[..., 2]
    ours = statistics({kind: np.asarray(xy) for kind, xy in places.items()})
    assert set(ours) == set(theirs)
    for key, samples in theirs.items():
        assert ks_2samp(UNIT * np.round(ours[key] / UNIT), samples).pvalue > 1e-4, key


@pytest.mark.parametrize("name", most(SUITE, "SafetyPoint"))
def test_steps_are_those_of_the_original(name):
    """From the recorded states. Steps that touch a gremlin are left out: those differ between versions of MuJoCo.

    In the first step of an episode gremlins leave the floor, which holds them back a little only in the original. The
    contact of the robot's cube with a pillar is found by iteration, differently in each version.
    """
    recorded = original.load(DATA)[name]
    found = original.compare(SUITE[name], recorded, original.by_jax(SUITE[name], recorded))
    assert found["reward"] <= original.REWARD
    assert found["equal_cost"] >= 0.99
    assert found["obs_p99"] <= (5e-3 if SUITE[name].gremlins else 5e-2 if SUITE[name].pillars else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SUITE))
def test_ten_thousand_random_steps_are_finite(name):
    compiled, count = programs(Task(SUITE[name]), batched=True), 100
    keys = jax.random.split(jax.random.key(0), count)
    state, obs = compiled.start(compiled.sample(keys), keys)
    rng = np.random.default_rng(0)
    for _ in range(100):
        state, step = compiled.step(state, rng.uniform(-1.0, 1.0, (count, 2)).astype(np.float32))
        assert all(np.all(np.isfinite(x)) for x in (step.obs, step.reward, step.cost))
    assert np.any(step.obs != obs)


@pytest.mark.slow
def test_a_gremlin_is_pushed_against_a_button():
    """Robot, gremlin and button in a row, all overlapping a little, no other gremlin near: as MuJoCo solves it."""
    config = SUITE["Button1"]
    rng, count = np.random.default_rng(0), len(original.load(DATA)["Button1"]["pose"])  # one program for both tests
    with jax.enable_x64(True):
        twin = MujocoTask(config, converged=True)
        starts = []
        for key in jax.random.split(jax.random.key(0), count):
            twin.reset(key)
            for _ in range(10):  # until gremlins have risen from the floor
                twin.step(np.zeros(2))
            state = twin.get_state()
            along = np.pi * rng.uniform(-1.0, 1.0)
            way = np.array([np.cos(along), np.sin(along)])
            pos = state.boxes.pos.copy()
            pos[0, :2] = state.buttons[0] + rng.uniform(0.17, 0.2) * way
            state.pose[:] = *(pos[0, :2] + rng.uniform(0.2, 0.23) * way), along + np.pi + rng.uniform(-0.5, 0.5)
            starts.append(state._replace(boxes=state.boxes._replace(pos=pos), key=jax.random.key_data(state.key)))
        before = jax.tree.map(lambda *x: np.stack(x), *starts)
        after, _ = original.stepper(Task(config))(before, np.tile([1.0, 0.0], (count, 1)))
        ours, pressed = velocities(after), 0
        others = np.linalg.norm(before.boxes.pos[:, 1:, :2] - before.pose[:, None, :2], axis=-1)
        alone = np.flatnonzero(others.min(axis=1) > 0.8)
        for i in alone:
            twin.set_state(pick(before, i))
            twin.forward()
            pairs = [{twin.geom_names[g] for g in pair} for pair in twin.data.contact.geom.tolist()]
            pressed += {"gremlin0", "button0"} in pairs
            twin.step(np.array([1.0, 0.0]))
            np.testing.assert_allclose(ours[i], twin.data.qvel, atol=1e-6)
    assert pressed == len(alone) >= count // 4
