"""The tasks by hand: layouts with known lidar, reward and cost; the order within a step; contracts of every task."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tasks import most

from tqpo.envs import TASKS, Task, TaskConfig, make
from tqpo.envs import layout as layouts
from tqpo.envs.budget import Budget, Budgeted, BudgetState
from tqpo.envs.gymnasium import programs
from tqpo.errors import ConfigError, LayoutError, UnknownNameError
from tqpo.types import may_end

SIMPLE, DYNAMIC = Task(TASKS["SimpleEnv"]), Task(TASKS["DynamicEnv"])
AWAY = [[-1.2, 1.2], [1.2, 1.2], [-1.2, -1.2]]  # hazards out of the way
REST = np.zeros(2, np.float32)


def start(task: Task, **given):
    """State and observation of an episode from a layout placed by hand."""
    compiled = programs(task)
    layout = layouts.parse(given, compiled.sample(jax.random.key(0)), task.config)
    return compiled.start(layout, jax.random.key(1))


def step(task: Task, state, action=REST):
    return programs(task).step(state, action)


def part(task: Task, obs, name: str) -> np.ndarray:
    return np.asarray(obs)[task.config.observation[name]]


# Lidar: 16 bins of 22.5°, range 3 m.


def test_lidar_straight_ahead():
    # 1.5 m ahead: closeness (3 − 1.5)/3 = 0.5 at angle 0 = bin 0, fraction 0: all of it in bin 0 and, by 1 − 0, in
    # bin 15.
    _, obs = start(DYNAMIC, robot=[0, 0, 0], goal=[1.5, 0], hazards=AWAY)
    expected = np.zeros(16)
    expected[[0, 15]] = 0.5
    np.testing.assert_allclose(part(DYNAMIC, obs, "goal_lidar"), expected, atol=1e-6)


def test_lidar_in_the_middle_of_a_bin_turns_with_the_robot():
    # World angle 90°, heading 56.25°: 33.75° = 1.5 bins to the left. Closeness (3 − 0.6)/3 = 0.8 in bin 1, half in
    # bins 0 and 2.
    _, obs = start(DYNAMIC, robot=[0, 0, np.radians(56.25)], goal=[0, 0.6], hazards=AWAY)
    expected = np.zeros(16)
    expected[[0, 1, 2]] = 0.4, 0.8, 0.4
    np.testing.assert_allclose(part(DYNAMIC, obs, "goal_lidar"), expected, atol=1e-5)


def test_lidar_keeps_the_nearest_object_of_a_bin():
    # Both hazards at 45° = bin 2: 0.3·√2 and 0.9·√2 m away; the third is out of range at 3·√2 m.
    _, obs = start(DYNAMIC, robot=[0, 0, 0], goal=[1, 0], hazards=[[0.3, 0.3], [0.9, 0.9], [-3, -3]])
    near = 1.0 - 0.3 * np.sqrt(2.0) / 3.0
    lidar = part(DYNAMIC, obs, "hazards_lidar")
    assert lidar[2] == pytest.approx(near, abs=1e-5)
    assert np.all(np.delete(lidar, [1, 2, 3]) == 0.0)


def test_sensors_at_rest():
    # Heading 90°: the field (0, −0.5, 0) lies behind, at −x of the body.
    _, obs = start(DYNAMIC, robot=[0, 0, np.pi / 2], goal=[1, 0], hazards=AWAY)
    np.testing.assert_allclose(part(DYNAMIC, obs, "magnetometer"), [-0.5, 0, 0], atol=1e-6)
    np.testing.assert_allclose(part(DYNAMIC, obs, "accelerometer"), [0, 0, 9.81], atol=1e-5)
    assert not np.any(part(DYNAMIC, obs, "gyro"))
    assert not np.any(part(DYNAMIC, obs, "velocimeter"))


# Reward.


def test_reward_is_the_way_coasted_towards_the_goal():
    # 1 m/s ahead, no commands. Damping d = 0.01 taken implicitly: v ← v·m/(m + h·d), m = 5.18879e-3, h = 2e-3, so by
    # a factor r = 1/1.0038545 each step; the way is h·(r + r² + … + r¹⁰) = 0.002·9.7916 = 0.019583 m, all of it towards
    # the goal.
    r = 1.0 / (1.0 + 0.002 * 0.01 / 5.18879e-3)
    way = 0.002 * sum(r**k for k in range(1, 11))
    assert way == pytest.approx(0.019583, abs=1e-6)
    state, _ = start(DYNAMIC, robot=[0, 0, 0], goal=[1.0, 0], hazards=AWAY)
    state, out = step(DYNAMIC, state._replace(velocity=jnp.array([1.0, 0.0, 0.0])))
    assert float(out.reward) == pytest.approx(way, abs=1e-6)
    assert float(state.distance) == pytest.approx(1.0 - way, abs=1e-6)


def test_reaching_the_goal_area_pays_one_and_moves_it():
    # At rest 0.2 m from the centre: inside the radius of 0.3, no way made: reward 0 + 1.
    state, _ = start(DYNAMIC, robot=[0, 0, 0], goal=[0.2, 0], hazards=AWAY)
    after, out = step(DYNAMIC, state)
    assert float(out.reward) == pytest.approx(1.0, abs=1e-6)
    assert not np.allclose(after.goal, state.goal)
    assert float(after.distance) == pytest.approx(float(np.linalg.norm(after.goal)), abs=1e-6)  # the new reference
    assert float(step(DYNAMIC, after)[1].reward) == pytest.approx(0.0, abs=1e-6)


# Cost.


@pytest.mark.parametrize(("distance", "cost"), [(0.299, 1.0), (0.301, 0.0)])
def test_hazards_cost_within_their_radius(distance, cost):
    state, _ = start(SIMPLE, robot=[0, distance, 0.0], hazards=[[0, 0], [-1.2, 0], [1.2, 0]], goal=0)
    _, out = step(SIMPLE, state)
    np.testing.assert_array_equal(out.cost, [cost, cost, 0.0])
    assert part(SIMPLE, out.obs, "previous_cost") == cost


def test_a_wrong_button_costs_and_the_right_one_does_not():
    # Sphere (r 0.1) 0.15 m from a button (r 0.1): they overlap. Heading away from it, so the arrow does not matter.
    for goal, cost, reward in ((0, 1.0, 0.0), (1, 0.0, 1.0)):
        state, _ = start(SIMPLE, robot=[0.85, 1.0, np.pi], goal=goal)
        _, out = step(SIMPLE, state)
        np.testing.assert_array_equal(out.cost, [cost, 0.0, cost])
        assert round(float(out.reward)) == reward


def test_the_arrow_touches_too():
    # The arrow reaches 0.15 m ahead: 0.21 m from the button's centre the sphere is 0.01 m clear of it, and the arrow
    # overlaps by 0.04.
    for heading, cost in ((0.0, 1.0), (np.pi, 0.0)):
        state, _ = start(SIMPLE, robot=[0.79, 1.0, heading], goal=0)
        assert float(step(SIMPLE, state)[1].cost[0]) == cost


# Order within a step, timer, swap.


def test_timer_suspends_cost_and_blanks_the_lidar_for_ten_steps():
    here = [0.85, 1.0, np.pi]
    state, _ = start(SIMPLE, robot=here, goal=1)
    state, out = step(SIMPLE, state)  # presses the goal button: +1, swap to button 0, timer 10
    assert int(state.goal_button) == 0
    assert int(state.timer) == 10
    np.testing.assert_allclose(state.goal, [-1.0, -1.0])
    assert not np.any(part(SIMPLE, out.obs, "buttons_lidar"))
    costs, seen = [], []
    for _ in range(12):  # held against button 1, which is now wrong
        state = state._replace(pose=jnp.array(here, jnp.float32), velocity=jnp.zeros(3))
        state, out = step(SIMPLE, state)
        costs.append(float(out.cost[0]))
        seen.append(bool(np.any(part(SIMPLE, out.obs, "buttons_lidar"))))
    # The timer is 10, 9, …, 1 when the cost of the next ten steps is judged, then 0; it ticks before the observation.
    assert costs == [0.0] * 10 + [1.0] * 2
    assert seen == [False] * 9 + [True] * 3


def test_cost_is_judged_before_the_goal_sets_the_timer():
    # Robot (0.88, 0.85) overlaps both buttons, at (1, 1) and (1, 0.7): √(0.12² + 0.15²) = 0.192 < 0.2.
    state, _ = start(SIMPLE, robot=[0.88, 0.85, np.pi], buttons=[[1, 1], [1, 0.7]], goal=0)
    _, out = step(SIMPLE, state)
    assert float(out.cost[2]) == 1.0
    assert float(out.reward) > 0.9


def test_truncates_at_max_steps():
    state, _ = start(SIMPLE, robot=[0, 0.6, 0], goal=0)
    state, out = step(SIMPLE, state._replace(steps=jnp.array(998)))
    assert not out.truncated
    assert step(SIMPLE, state)[1].truncated


def test_new_goals_keep_their_distance():
    config = DYNAMIC.config
    keys = jax.random.split(jax.random.key(3), 200)
    layout = programs(DYNAMIC, batched=True).sample(keys)
    state, _ = programs(DYNAMIC, batched=True).start(layout, keys)
    state = state._replace(pose=state.pose.at[:, :2].set(state.goal))  # everyone has arrived
    after, out = programs(DYNAMIC, batched=True).step(state, np.zeros((200, 2), np.float32))
    assert np.all(out.reward > 0.9)
    assert not np.any(out.terminated)
    assert np.all(np.abs(after.goal) <= config.extents - config.goal_keepout + 1e-6)
    from_robot = np.linalg.norm(after.goal - after.pose[:, :2], axis=1)
    assert np.all(from_robot >= config.robot_keepout + config.goal_keepout - 1e-5)
    from_hazards = np.linalg.norm(after.goal[:, None] - after.hazards, axis=2)
    assert np.all(from_hazards >= config.hazard_keepout + config.goal_keepout - 1e-5)


# Contracts of every task.


@pytest.mark.parametrize("name", most(TASKS))
@pytest.mark.parametrize("double", [False, True])
def test_contract(name, double):
    """jit + vmap: shapes as declared, one floating type throughout, and a state whose type does not change."""
    with jax.enable_x64(double):
        task = make(name)
        keys = jax.random.split(jax.random.key(0), 3)
        state, obs = jax.eval_shape(jax.jit(jax.vmap(task.reset)), keys)
        action = jax.ShapeDtypeStruct((3, task.action_size), obs.dtype)
        after, out = jax.eval_shape(jax.jit(jax.vmap(task.step)), state, action)
    assert obs.shape == out.obs.shape == (3, task.obs_size)
    assert out.cost.shape == (3, len(task.cost_names))
    assert out.reward.shape == out.terminated.shape == out.truncated.shape == (3,)
    types = {x.dtype for x in jax.tree.leaves((state, out)) if jnp.issubdtype(x.dtype, jnp.floating)}
    assert types == {np.dtype("float64" if double else "float32")}
    described = [jax.tree.map(lambda x: (x.shape, x.dtype), s) for s in (state, after)]
    assert described[0] == described[1]


@pytest.mark.parametrize("name", most(TASKS))
def test_layouts_keep_all_keepouts(name):
    config = TASKS[name]
    keys = jax.random.split(jax.random.key(5), 1000)
    layout = jax.jit(jax.vmap(lambda key: layouts.sample(key, config)))(keys)
    kinds = [(layout.hazards, config.hazard_keepout)]
    if config.robot_area:
        low, high = np.reshape(config.robot_area, (2, 2))
        assert np.all((layout.robot[:, :2] >= low - 1e-6) & (layout.robot[:, :2] <= high + 1e-6))
    else:
        kinds.insert(0, (layout.robot[:, None, :2], config.robot_keepout))
    kinds += [(layout.buttons, config.button_keepout), (layout.gremlins[..., :2], config.gremlin_keepout)]
    if config.goal == "area":
        kinds.append((layout.goal[:, None], config.goal_keepout))
    places = np.concatenate([np.asarray(p) for p, _ in kinds], axis=1)  # [1000, objects, 2]
    keepouts = np.concatenate([np.full(p.shape[1], k) for p, k in kinds])
    gaps = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1) - (keepouts[:, None] + keepouts)
    apart = ~np.eye(len(keepouts), dtype=bool)
    if config.hazard_locations:  # fixed things are placed as told, if need be closer
        fixed = np.concatenate([[False], np.ones(config.hazards + config.buttons, bool)])
        apart &= ~(fixed[:, None] & fixed)
    assert np.all(gaps[:, apart] >= -1e-5)
    assert np.all(np.abs(places) <= config.extents - keepouts[:, None] + 1e-6) or config.hazard_locations
    if config.buttons:
        np.testing.assert_array_equal(layout.goal, np.asarray(layout.buttons)[np.arange(1000), layout.goal_button])


def test_variants_by_replace():
    config = dataclasses.replace(TASKS["DynamicEnv"], hazards=1, lidar_bins=8, max_steps=7)
    task = Task(config)
    assert task.obs_size == 3 + 8 + 3 + 8 + 3 + 3 + 1
    assert task.cost_names == ("cost", "hazards")
    assert task.max_steps == 7
    bare = Task(dataclasses.replace(config, hazards=0))
    assert bare.cost_names == ("cost",)
    assert hash(task) != hash(bare)


def test_infeasible_config_is_an_error():
    with pytest.raises(LayoutError, match=r"extents.*0\.4"):
        Task(TaskConfig(extents=0.3))
    with pytest.raises(LayoutError, match="reduce keepouts or the number of objects"):
        Task(TaskConfig(extents=1.0, hazards=8))
    with pytest.raises(LayoutError, match="more area than there is"):
        Task(TaskConfig(extents=1.0, hazards=60))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extents": -1.0}, "extents=-1.0"),
        ({"goal": "star"}, "goal='star' must be one of area, button, circle, run"),
        ({"buttons": 3}, "buttons=3 must be 2"),
        ({"hazard_locations": ((0.0, 0.0),)}, "hazard_locations.*3 places"),
        ({"wheels": 4}, "wheels"),
    ],
)
def test_bad_config_names_the_value(changes, message):
    with pytest.raises(ConfigError, match=message):
        make("SimpleEnv", **changes)


def test_unknown_task_names_those_there_are():
    with pytest.raises(UnknownNameError, match=r"'Maze'.*SimpleEnv"):
        make("Maze")


@pytest.mark.parametrize("name", ["SafetyPointButton1", "GremlinEnv"])  # 1 % and all of the tries succeed
def test_a_layout_is_the_same_alone_and_in_any_batch(name):
    config = TASKS[name]
    keys = jax.random.split(jax.random.key(3), 6)
    draw = jax.vmap(lambda key: layouts.draw_places(key, config))
    together = jax.jit(draw)(keys)
    nested = jax.jit(jax.vmap(draw))(keys.reshape(2, 3)).reshape(together.shape)
    alone = jax.jit(lambda key: layouts.draw_places(key, config))
    np.testing.assert_array_equal(nested, together)
    for key, places in zip(keys, together, strict=True):
        np.testing.assert_array_equal(alone(key), places)
    np.testing.assert_array_equal(alone(jax.random.key_data(keys[1])), together[1])


def test_a_task_says_which_of_its_episodes_may_end():
    told = Task(dataclasses.replace(TASKS["SafetyPointButton1"], max_steps=7))
    state, _ = start(DYNAMIC)  # of which only the steps are looked at
    limit = Budget(limits=(5.0,), channels=(0,))
    for steps in range(1, 9):
        for done in range(7):
            at = state._replace(steps=jnp.array(done))
            assert bool(may_end(told, at, steps)) == (done + steps >= 7)
            inside = BudgetState(at, jnp.zeros(1), jnp.array(done))
            assert bool(may_end(Budgeted(told, limit), inside, steps)) == (done + steps >= 7)
            assert may_end(Budgeted(told, limit, ends=True), inside, steps) is None
    assert may_end(DYNAMIC, state, 1) is None, "a new goal may find no room"
    assert may_end(SIMPLE, state, 1) is None, "all starts at once are quicker"


def test_a_layout_is_the_first_try_that_succeeds():
    config = TASKS["SafetyPointButton1"]
    key = jax.random.key(8)
    further, first = jax.random.split(key)
    nth = jnp.arange(1, 1_000)
    tries = jnp.concatenate([first[None], jax.vmap(lambda i: jax.random.fold_in(further, i))(nth)])
    places, ok = jax.jit(jax.vmap(lambda key: layouts.attempt(key, config)))(tries)
    assert ok.any()
    assert not ok[0], "else this shows nothing"
    np.testing.assert_allclose(layouts.draw_places(key, config), places[jnp.argmax(ok)], atol=1e-6)
