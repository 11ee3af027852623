"""The JAX tasks against their MuJoCo twins, in double precision.

`python -m reference.parity` does the same at length.
"""

from functools import partial

import jax
import mujoco
import numpy as np
import pytest
from tasks import most

from reference.parity.episodes import stepper
from reference.parity.one_step import pick, shake, velocities
from reference.parity.policies import POLICIES
from tqpo.envs import TASKS, Task
from tqpo.envs.layout import GOAL_FIELD
from tqpo.envs.lidar import lidar as jax_lidar
from tqpo.envs.mjcf import model_xml
from tqpo.envs.mujoco import MujocoTask, lidar

COPIES, STEPS = 40, 40


# These differ from another task in numbers of things alone; `python -m reference.parity` has them too.


@pytest.fixture(scope="module", params=most(TASKS))
def run(request):
    """Per step: states before it, actions, steps and states after it, [COPIES, …].

    Half of the robots drive; before each step the others are put at random, mostly beside or into a solid thing.
    """
    config = TASKS[request.param]
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        step_all, twin = stepper(Task(config)), MujocoTask(config)
        obs = [twin.reset(key) for key in jax.random.split(jax.random.key(0), COPIES // 2)]
        starts = []
        for key in jax.random.split(jax.random.key(0), COPIES):
            twin.reset(key)
            starts.append(words(twin.get_state()))
        states = jax.tree.map(lambda *x: np.stack(x), *starts)
        history = []
        for _ in range(STEPS):
            states = shake(rng, config, states, np.arange(COPIES // 2, COPIES))
            actions = rng.uniform(-1.0, 1.0, (COPIES, 2))
            for i in range(COPIES // 2):
                actions[i] = POLICIES["straight"](obs[i], actions[i], config, np)
            after, steps = jax.device_get(words_out(step_all(states, actions)))
            history.append((states, actions, steps, after))
            states, obs = after, steps.obs
    return config, history


def words(state):
    return state._replace(key=jax.random.key_data(state.key))


def words_out(out):
    return words(out[0]), out[1]


def test_state_goes_in_and_comes_out(run):
    config, history = run
    twin = MujocoTask(config)
    state = pick(history[-1][0], 3)
    twin.set_state(state)
    jax.tree.map(np.testing.assert_array_equal, twin.get_state(), state)


def at_pillar(state) -> bool:
    """Whether the robot or a box might touch a pillar in this step: MuJoCo finds those contacts by iteration."""
    if state.pillars is None:
        return False
    places = ((state.boxes.pos[:, None, :2], 0.75), (state.pose[None, None, :2], 0.45))
    return any(np.min(np.linalg.norm(state.pillars - place, axis=-1)) < reach for place, reach in places)


def among_vases(state, after) -> bool:
    """Whether the robot might touch two vases in this step, or two vases each other: there Goal2 in JAX is not exact."""
    places, far = state.boxes.pos[:, :2], 0.02 * np.max(np.linalg.norm(after.boxes.vel[:, :3], axis=-1))  # m in a step
    apart = np.linalg.norm(places[:, None] - places, axis=-1) + 9 * np.eye(len(places))
    near = np.linalg.norm(places - state.pose[:2], axis=-1) < 0.4 + far
    return near.sum() > 1 or np.min(apart) < 0.3 + far


def test_steps_from_the_same_state_are_equal(run):
    config, history = run
    if config.gremlins and tuple(map(int, mujoco.__version__.split(".")[:2])) < (3, 12):
        pytest.skip("the box–box collider of older MuJoCo finds other contact points")
    errors, touched = [], 0
    with jax.enable_x64(True):
        twin = MujocoTask(config, converged=True)
        for before, actions, steps, after in history:
            ours = velocities(after)
            for i in range(COPIES):
                if at_pillar(pick(before, i)) or (config.vases and among_vases(pick(before, i), pick(after, i))):
                    continue
                twin.set_state(pick(before, i))
                judge, step = twin.step(actions[i]), pick(steps, i)
                touched += bool(twin.touched() - {"floor"})
                errors.append(np.max(np.abs(ours[i] - twin.data.qvel)))
                np.testing.assert_allclose(step.obs, judge.obs, atol=1e-5)
                np.testing.assert_allclose(step.reward, judge.reward, atol=1e-6)
                np.testing.assert_array_equal(step.cost, judge.cost)
                assert (step.terminated, step.truncated) == (judge.terminated, judge.truncated)
    assert len(errors) > COPIES * STEPS / 4
    assert np.median(errors) <= 1e-12  # m/s, rad/s
    assert np.max(errors) <= 1e-6
    if config.buttons or config.gremlins:
        assert touched >= 0.25 * len(errors)


def test_goals_and_keys_follow_the_task(run):
    """From a state in which the goal is reached, both draw the same next goal."""
    config, history = run
    if config.goal not in GOAL_FIELD:
        pytest.skip("its goal stays where it is")
    before, actions, _, _ = history[0]
    place = before.goal - [0.15, 0.0]  # in the area, or overlapping the button
    with jax.enable_x64(True):
        start = before._replace(pose=np.column_stack([place, np.full(COPIES, np.pi)]), velocity=np.zeros((COPIES, 3)))
        if config.goal == "push":
            pos = before.boxes.pos.copy()
            pos[:, 0, :2], start.pose[:, 0] = before.goal, place[:, 0] - 0.4
            way = np.linalg.norm(pos[:, 0] - np.column_stack([start.pose[:, :2], np.full(COPIES, 0.1)]), axis=1)
            start = start._replace(boxes=before.boxes._replace(pos=pos), distance=way + pos[:, 0, 2] - 0.16)
        after, step = stepper(Task(config))(start, actions)
        twin = MujocoTask(config, converged=True)
        for i in range(8):
            twin.set_state(pick(start, i))
            judge = twin.step(actions[i])
            assert judge.reward > 0.9
            assert step.reward[i] == pytest.approx(judge.reward, abs=1e-9)
            state = twin.get_state()
            np.testing.assert_allclose(after.goal[i], state.goal, atol=1e-12)
            assert int(after.goal_button[i]) == state.goal_button
            np.testing.assert_array_equal(jax.random.key_data(after.key[i]), state.key)


def test_what_follows_depends_on_the_state_alone():
    twin = MujocoTask(TASKS["GremlinEnv"])
    twin.reset(jax.random.key(0))
    state, outcomes = twin.get_state(), []
    for wander in (0, 7):
        for _ in range(wander):
            twin.step(np.array([0.05, -0.3]))
        twin.set_state(state)
        outcomes.append(twin.step(np.array([0.03, 0.1])).obs)
    np.testing.assert_array_equal(*outcomes)


def test_welds_are_those_of_a_compiled_layout():
    """`set_state` writes the weld's relative pose; MuJoCo computes the same from a model with the box in its place."""
    config = TASKS["GremlinEnv"]
    twin = MujocoTask(config)
    twin.reset(jax.random.key(1))
    x, y, yaw = twin.gremlins[0]
    placed = f'pos="{x} {y} 0.1" quat="{np.cos(yaw / 2)} 0 0 {np.sin(yaw / 2)}"><freejoint'
    model = mujoco.MjModel.from_xml_string(model_xml(config).replace('pos="0 0 0.1"><freejoint', placed, 1))
    assert not np.allclose(model.eq_data[0, 3:5], 0.0)
    np.testing.assert_allclose(twin.model.eq_data[0], model.eq_data[0], atol=1e-12)


def test_gremlins_float_and_trail():
    """They float at 0.2 m and trail their circle by 3.14 cm, 0.3 s after their start."""
    twin = MujocoTask(TASKS["GremlinEnv"])
    twin.reset(jax.random.key(2))
    for _ in range(50):
        twin.step(np.zeros(2))
    boxes, t = twin.get_state().boxes, twin.data.time - 0.002
    targets = twin.gremlins[:, :2] + 0.35 * np.array([np.sin(t), np.cos(t)])
    np.testing.assert_allclose(np.linalg.norm(boxes.pos[:, :2] - targets, axis=1), 0.0314, atol=1e-3)
    np.testing.assert_allclose(boxes.pos[:, 2], 0.2, atol=2e-3)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_lidars_are_equal(x64, count):
    rng = np.random.default_rng(0)
    compiled = jax.jit(partial(jax_lidar, bins=16, max_range=3.0))
    for _ in range(50):
        pose, objects = rng.uniform(-3.0, 3.0, 3), rng.uniform(-2.0, 2.0, (count, 2))
        np.testing.assert_allclose(compiled(pose, objects), lidar(pose, objects, 16, 3.0), atol=1e-12)
