"""The table of an observation against what the observation holds, by hand; and the page that shows it."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tasks import most

from tqpo.envs import TASKS, Task, make
from tqpo.envs.observation import Feature, slice_table
from tqpo.envs.task import observe

PAGE = pathlib.Path(__file__).parents[2] / "docs/tasks.md"


def known_state(task: Task):
    """The robot at the origin, facing the world's +y: its ahead is +y, its left is −x."""
    state, _ = task.reset(jax.random.key(0))
    place = {"pose": [0, 0, np.pi / 2], "velocity": [0.3, -0.2, 1.5], "acceleration": [1.0, 2.0, 9.0]}
    state = state._replace(**{name: jnp.array(x, jnp.float32) for name, x in place.items()})

    def first_at(objects, x: float, y: float):
        """The others are out of every lidar's range."""
        return objects.at[:, :2].set(50.0).at[:1, :2].set(jnp.array([x, y]))

    return state._replace(
        goal=jnp.array([0.0, 1.0]),
        hazards=first_at(state.hazards, -0.6, 0.0),
        buttons=first_at(state.buttons, 1.2, 0.0),
        boxes=state.boxes._replace(pos=first_at(state.boxes.pos, 0.0, -1.5)),
        pillars=None if state.pillars is None else first_at(state.pillars, 1.2, 0.0),
        cost=jnp.array(1.0),
    )


def expected_parts(lidar_range: float) -> dict[str, np.ndarray]:
    """An object on the border of two sectors, at a multiple of 22.5°, shows fully in both."""

    def seen(distance: float, *sectors: int) -> np.ndarray:
        out = np.zeros(16)
        out[list(sectors)] = 1 - distance / lidar_range
        return out

    return {
        "accelerometer": np.array([2.0, -1.0, 9.81]),  # ahead = world y, left = −world x
        "gyro": np.array([0.0, 0.0, 1.5]),
        "magnetometer": np.array([-0.5, 0.0, 0.0]),  # the field lies behind
        "velocimeter": np.array([-0.2, -0.3, 0.0]),
        "goal_lidar": seen(1.0, 15, 0),  # straight ahead
        "circle_lidar": seen(1.0, 15, 0),
        "hazards_lidar": seen(0.6, 3, 4),  # 90° to the left
        **{f"{kind}_lidar": seen(1.5, 7, 8) for kind in ("gremlins", "vases", "push_box")},  # behind
        **{f"{kind}_lidar": seen(1.2, 11, 12) for kind in ("buttons", "pillars")},  # 90° to the right
        "previous_cost": np.array([1.0]),
    }


@pytest.mark.parametrize("name", most(TASKS))
def test_every_slice_holds_what_the_table_says(name):
    task = make(name)
    state = known_state(task)
    obs, table = np.asarray(observe(task.config, state)), task.observation_table()
    expected = expected_parts(task.config.lidar_range)
    for part in table:
        np.testing.assert_allclose(obs[part.start : part.stop], expected[part.name], atol=1e-5, err_msg=part.name)
    assert [part.start for part in table] == [0, *(part.stop for part in table[:-1])]  # no gap, no overlap
    assert table[-1].stop == len(obs) == task.obs_size


def test_the_previous_cost_is_that_of_the_step_that_led_here():
    task = make("DynamicEnv")
    state, obs = task.reset(jax.random.key(0))
    assert obs[task.config.observation["previous_cost"]] == 0.0
    away = jnp.full_like(state.hazards, 50.0)
    for hazards, cost in ((away.at[0].set(state.pose[:2]), 1.0), (away, 0.0)):
        state, step = task.step(state._replace(hazards=hazards), jnp.zeros(2))
        assert step.cost[0] == step.obs[task.config.observation["previous_cost"]] == cost


def test_ranges_hold_along_an_episode():
    task = make("SimpleEnv", max_steps=300)
    key_reset, key_actions = jax.random.split(jax.random.key(1))
    state, _ = task.reset(key_reset)
    actions = jax.random.uniform(key_actions, (300, 2), minval=-1.0)
    _, steps = jax.lax.scan(task.step, state, actions)
    for part in task.observation_table():
        if part.range is not None:
            values = np.asarray(steps.obs)[:, part.start : part.stop]
            assert part.range[0] - 1e-6 <= values.min() <= values.max() <= part.range[1] + 1e-6, part.name


def test_what_a_wrapper_appends_comes_after_the_rest():
    task = make("DynamicEnv")
    extra = (
        Feature("budget", 1, "", (-1.0, 1.0), "share of the limit left"),
        Feature("pair", 2, "s", None, "two times"),
    )
    table = task.observation_table(extra)
    assert table[:-2] == task.observation_table()
    assert [(part.name, part.start, part.stop) for part in table[-2:]] == [("budget", 45, 46), ("pair", 46, 48)]
    assert "| 45:46 | `budget` | – | −1 to 1 | share of the limit left |" in slice_table(table)


def test_a_variant_has_its_own_table():
    table = make("SimpleEnv", lidar_bins=8, lidar_range=2.5, button_timer=4).observation_table()
    lidar = next(part for part in table if part.name == "buttons_lidar")
    assert lidar.stop - lidar.start == 8
    assert all(text in lidar.meaning for text in ("1 − r/2.5 m", "8 sectors of 45°", "the 4 observations"))


@pytest.mark.parametrize("name", TASKS)
def test_the_page_has_the_table(name):
    """`tqpo tasks --observation NAME` prints it."""
    assert f"\n### {name}\n\n{slice_table(make(name).observation_table())}\n" in PAGE.read_text()


def test_a_late_cost_is_that_of_the_step_before():
    """`late_cost` shows in each observation what the other shows one step earlier, and changes nothing else."""
    usual, late = (make("SimpleEnv", late_cost=flag, max_steps=300) for flag in (False, True))
    place = next(part.start for part in usual.observation_table() if part.name == "previous_cost")
    actions = jax.random.uniform(jax.random.key(1), (300, 2), minval=-0.2)

    @jax.jit
    def seen(key):
        def walk(task):
            return jax.lax.scan(task.step, task.reset(key)[0], actions)[1]

        return walk(usual), walk(late)

    ours, theirs = jax.vmap(seen)(jax.random.split(jax.random.key(0), 8))
    cost = np.asarray(ours.cost)[..., 0]
    assert cost.sum() > 20
    np.testing.assert_array_equal(np.asarray(ours.obs)[:, :, place], cost)
    np.testing.assert_array_equal(np.asarray(theirs.obs)[:, 1:, place], cost[:, :-1])
    np.testing.assert_array_equal(theirs.cost, ours.cost)
    others = np.arange(ours.obs.shape[-1]) != place
    np.testing.assert_array_equal(np.asarray(theirs.obs)[..., others], np.asarray(ours.obs)[..., others])
