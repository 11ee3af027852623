"""The drawing from above: its shape, what is where, and its speed."""

import numpy as np
import pytest

from tqpo.envs import TASKS
from tqpo.envs.gymnasium import TaskEnv
from tqpo.envs.render import ALARM, GOAL, MARGIN, ROBOT, Caption, draw


@pytest.fixture(scope="module")
def scene():
    """State and observation of a DynamicEnv placed by hand."""
    env = TaskEnv("DynamicEnv", render_mode="rgb_array")
    places = {"robot": [0.5, -0.5, 1.0], "goal": [-0.7, 0.7], "hazards": [[0.9, 0.9], [-0.9, -0.9], [1.0, 0.2]]}
    obs, _ = env.reset(seed=0, options={"layout": places})
    return env, env.world.get_state(), obs


def pixel(frame, x: float, y: float, span: float = 1.5 + MARGIN) -> np.ndarray:
    size = frame.shape[1]
    return frame[round((span - y) / (2 * span) * size), round((x + span) / (2 * span) * size)].astype(int)


def test_things_are_where_they_belong(scene):
    env, state, obs = scene
    frame = draw(state, obs, env.config)
    assert frame.shape == (528, 480, 3)
    assert frame.dtype == np.uint8
    behind = np.array([0.5, -0.5]) - 0.06 * np.array([np.cos(1.0), np.sin(1.0)])  # clear of the white arrow
    np.testing.assert_allclose(pixel(frame, *behind), ROBOT, atol=3)
    np.testing.assert_allclose(pixel(frame, -0.7, 0.7), GOAL, atol=3)
    red, _, blue = pixel(frame, 0.9, 0.9)
    assert blue > red + 40  # a hazard, seen through
    np.testing.assert_allclose(pixel(frame, 0.25, 0.25), (255, 255, 255), atol=1)  # the empty floor


def test_cost_flashes(scene):
    env, state, obs = scene
    calm = draw(state, obs, env.config)
    costly = draw(state._replace(cost=np.array(1.0)), obs, env.config, Caption(episode_cost=3.0))
    np.testing.assert_allclose(costly[2, 240], ALARM, atol=3)
    assert not np.allclose(calm[2, 240], ALARM, atol=60)


def test_robot_outside_the_arena_is_still_seen(scene):
    env, state, obs = scene
    away = state._replace(pose=np.array([2.9, 0.0, np.pi]))
    frame = draw(away, obs, env.config)
    np.testing.assert_allclose(pixel(frame, 2.96, 0.0, 2.9 + MARGIN), ROBOT, atol=3)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_drawn(task):
    env = TaskEnv(task, physics="mujoco", render_mode="rgb_array")
    env.reset(seed=1)
    env.step([0.05, 0.05])
    frame = env.render()
    assert frame.shape == (528, 480, 3)
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 100
