"""The border to Gymnasium: its names, its checker, seeds, layouts, the vector contract and errors."""

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from tasks import most

import tqpo
from tqpo.envs import TASKS
from tqpo.envs.gymnasium import SafetyGymnasium, TaskEnv
from tqpo.errors import ActionError, ConfigError, LayoutError, RenderError, UnknownNameError

EACH = most(TASKS)
PHYSICS = ("jax", "mujoco")
SHORT = {"max_steps": 5}  # a DynamicEnv that ends soon
COSTS = {"SimpleEnv": {"hazards", "buttons"}, "DynamicEnv": {"hazards"}, "GremlinEnv": {"hazards", "gremlins"}}


def make(name: str, **arguments):
    return gymnasium.make(f"tqpo/{name}-v0", **arguments)


def vector(count: int = 3, **arguments):
    return gymnasium.make_vec("tqpo/DynamicEnv-v0", num_envs=count, **SHORT, **arguments)


def test_every_task_is_named():
    assert tuple(TASKS) == tqpo.TASKS


LIGHT = """
import sys
import tqpo
assert not {"jax", "numpy", "gymnasium"} & sys.modules.keys()
import gymnasium
gymnasium.make("tqpo.envs.gymnasium:tqpo/SimpleEnv-v0")
"""
IMPORTED = """
import gymnasium, sys
import tqpo
assert "jax" not in sys.modules
gymnasium.make("tqpo/SimpleEnv-v0")
gymnasium.make_vec("tqpo/SimpleEnv-v0", num_envs=2)
"""
WORKERS = """
import gymnasium
def make(name="tqpo.envs.gymnasium:tqpo/SimpleEnv-v0"):
    return gymnasium.make(name)
if __name__ == "__main__":
    envs = gymnasium.vector.AsyncVectorEnv([make] * 2, context="spawn")
    assert envs.single_action_space.shape == (2,)
    envs.close()
"""


@pytest.mark.parametrize("script", [LIGHT, IMPORTED, WORKERS], ids=["light", "imported", "workers"])
def test_the_tasks_have_names_in_a_fresh_process(script, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("physics", PHYSICS)
def test_check_env(name, physics):
    env = make(name, physics=physics)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=UserWarning)
        warnings.filterwarnings("ignore", message=".*Box observation space.*infinity")  # accelerations have no bound
        check_env(env.unwrapped)


@pytest.mark.parametrize("name", EACH)
def test_both_physics_start_equal(name):
    starts = [make(name, physics=physics).reset(seed=4) for physics in PHYSICS]
    np.testing.assert_allclose(starts[0][0], starts[1][0], atol=2e-6)
    assert starts[0][1]["layout"] == starts[1][1]["layout"]


@pytest.mark.parametrize("physics", PHYSICS)
def test_same_seed_same_episode_bit_for_bit(physics):
    def episode():
        env = make("SimpleEnv", physics=physics)
        env.action_space.seed(0)
        out = [env.reset(seed=7)[0]]
        for _ in range(60):
            obs, reward, *_, info = env.step(env.action_space.sample())
            out.append(np.append(obs, [reward, info["cost"]]))
        return [x.tobytes() for x in out]

    assert episode() == episode()


def test_episodes_of_one_seed_differ_from_each_other():
    env = make("DynamicEnv")
    first, second = env.reset(seed=1)[0], env.reset()[0]
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(env.reset(seed=1)[0], first)
    np.testing.assert_array_equal(env.reset()[0], second)


@pytest.mark.parametrize("name", COSTS)
def test_step_gives_the_costs_by_name(name):
    env = make(name)
    env.reset(seed=0)
    obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert obs.dtype == np.float32
    assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
    assert set(info) == {"cost"} | {f"cost_{source}" for source in COSTS[name]}


def test_six_values_for_safety_gymnasium():
    env = SafetyGymnasium(make("DynamicEnv"))
    env.reset(seed=0, options={"layout": {"robot": [0, 0, 0], "hazards": [[0.1, 0], [1, 1], [1, -1]]}})
    _, _, cost, terminated, truncated, info = env.step(np.zeros(2))
    assert cost == info["cost"] == info["cost_hazards"] == 1.0
    assert not terminated
    assert not truncated


# Layouts.


@pytest.mark.parametrize("name", EACH)
def test_layout_goes_round(name):
    env = make(name, physics="mujoco")
    layout = env.reset(seed=3)[1]["layout"]
    obs, info = env.reset(seed=99, options={"layout": layout})
    assert info["layout"] == layout
    np.testing.assert_array_equal(obs, env.reset(seed=3)[0])


def test_a_part_of_a_layout_may_be_given():
    _, info = make("SimpleEnv").reset(seed=0, options={"layout": {"robot": [0.25, -0.5, 1.0], "goal": 1}})
    assert info["layout"]["robot"] == [0.25, -0.5, 1.0]
    assert info["layout"]["goal"] == 1
    assert info["layout"]["buttons"] == [[-1.0, -1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": {"lava": [[0, 0]]}}, r"'lava'.*hazards"),
        ({"layout": {"hazards": [[0, 0]]}}, r"hazards.*\(3, 2\)"),
        ({"layout": {"robot": [0, np.nan, 0]}}, r"robot.*finite"),
        ({"layout": {"goal": 2}}, "goal=2.*0 to 1"),
        ({"layout": [1, 2]}, "dict"),
        ({"lay-out": {}}, r"'lay-out'.*layout"),
    ],
)
def test_bad_layouts_name_the_value(options, message):
    env = make("SimpleEnv")
    with pytest.raises(LayoutError, match=message):
        env.reset(seed=0, options=options)


# Errors.


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([0.1, 0.2, 0.3], r"\(3,\).*\(2,\)"),
        ([[0.1, 0.2]], r"\(1, 2\).*\(2,\)"),
        ([0.1, np.nan], "nan.*finite"),
        ([0.1, np.inf], "inf.*finite"),
        ([0.1, -1.5], r"-1\.5.*\[-1, 1\]"),
        ("left", "'left'"),
    ],
)
def test_bad_actions_name_the_value(action, message):
    env = make("DynamicEnv").unwrapped
    env.reset(seed=0)
    with pytest.raises(ActionError, match=message):
        env.step(action)


def test_lenient_actions_are_clipped():
    outcomes = []
    for action in ([3.0, -2.0], [1.0, -1.0]):
        env = make("DynamicEnv", strict=False)
        env.reset(seed=0)
        outcomes.append(env.step(action)[0])
    np.testing.assert_array_equal(*outcomes)


@pytest.mark.parametrize("physics", PHYSICS)
def test_step_needs_a_running_episode(physics):
    env = TaskEnv("DynamicEnv", physics=physics, **SHORT)
    with pytest.raises(ResetNeeded, match="before the first reset"):
        env.step(np.zeros(2))
    env.reset(seed=0)
    for t in range(5):
        *_, truncated, _ = env.step(np.zeros(2))
        assert truncated == (t == 4)
    with pytest.raises(ResetNeeded, match="after the end"):
        env.step(np.zeros(2))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"physics": "bullet"}, ConfigError, "'bullet'.*'jax', 'mujoco'"),
        ({"view": "3d"}, ConfigError, "view='3d'"),
        ({"wheels": 4}, ConfigError, "wheels"),
        ({"extents": 0.2}, LayoutError, r"0\.4 m does not fit"),
        ({"task": "Maze"}, UnknownNameError, "'Maze'.*SimpleEnv"),
    ],
)
def test_bad_settings_name_the_value(arguments, error, message):
    with pytest.raises(error, match=message):
        make("DynamicEnv", **arguments)


def test_3d_view_where_opengl_works():
    env = make("GremlinEnv", physics="mujoco", render_mode="rgb_array", view="3d")
    env.reset(seed=0)
    try:
        frame = env.render()
    except RenderError as error:
        pytest.skip(f"needs OpenGL: {error}")
    assert frame.shape == (480, 640, 3)
    assert frame.std() > 5.0
    env.close()


def test_3d_view_says_what_is_missing(monkeypatch):
    def fail(*_):
        raise RuntimeError("no display")

    monkeypatch.setattr("mujoco.Renderer", fail)
    env = make("GremlinEnv", physics="mujoco", render_mode="rgb_array", view="3d")
    env.reset(seed=0)
    with pytest.raises(RenderError, match=r"MUJOCO_GL.*no display"):
        env.render()


# The vector environment.


def test_vector_copies_are_single_environments():
    batch = vector()
    obs, info = batch.reset(seed=10)
    for i in range(3):
        alone, alone_info = make("DynamicEnv", **SHORT).reset(seed=10 + i)
        np.testing.assert_allclose(obs[i], alone, atol=1e-6)
        np.testing.assert_allclose(info["layout"]["hazards"][i], alone_info["layout"]["hazards"], atol=1e-6)
    assert obs.shape == batch.observation_space.shape
    assert batch.observation_space.contains(obs)


def actions(batch, scale: float = 1.0):
    return (scale * batch.action_space.sample()).astype(np.float32)


def test_next_step_autoreset():
    """The step that ends an episode gives its last observation; the next ignores its action and starts a new one."""
    batch = vector()
    assert batch.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    batch.reset(seed=0)
    for t in range(5):
        last, _, terminated, truncated, info = batch.step(actions(batch))
        assert not terminated.any()
        assert truncated.all() == (t == 4)
        assert info["_cost"].all()
    first, reward, terminated, truncated, info = batch.step(actions(batch))
    assert not reward.any()
    assert not (terminated | truncated).any()
    assert info["_layout"].all()
    assert not info["_cost"].any()
    assert not np.array_equal(first, last)
    again = vector()
    again.reset(seed=0)
    for _ in range(6):
        begun, *_ = again.step(actions(again, 0.0))  # whatever was done before, the second episode begins the same
    np.testing.assert_array_equal(begun, first)


def test_same_step_autoreset():
    """The step that ends an episode gives the first observation of the next; the last one is in `final_obs`."""
    kept, swapped = vector(), vector(autoreset_mode="SameStep")
    kept.reset(seed=0)
    swapped.reset(seed=0)
    for _ in range(5):
        action = actions(kept)
        last, reward, _, _, info_kept = kept.step(action)
        first, same_reward, _, truncated, info = swapped.step(action)
        np.testing.assert_array_equal(reward, same_reward)
    assert truncated.all()
    assert info["_final_obs"].all()
    for i in range(3):
        np.testing.assert_array_equal(info["final_obs"][i], last[i])
    np.testing.assert_array_equal(info["final_info"]["cost"], info_kept["cost"])
    assert info["final_info"]["_cost"].all()
    assert not info["_cost"].any()
    following, *_ = kept.step(actions(kept))
    np.testing.assert_array_equal(following, first)
    assert "final_obs" not in swapped.step(actions(swapped))[4]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_vector_does_what_gymnasium_does_with_single_environments(mode):
    ours = vector(autoreset_mode=mode)
    theirs = vector(vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    np.testing.assert_allclose(ours.reset(seed=2)[0], theirs.reset(seed=2)[0], atol=1e-6)
    for _ in range(13):
        action = np.zeros((3, 2), np.float32)
        (*mine, info), (*wanted, wanted_info) = ours.step(action), theirs.step(action)
        for a, b in zip(mine, wanted, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
        for key in ("_cost", "_layout", "_final_obs", "_final_info"):
            np.testing.assert_array_equal(info.get(key, [False] * 3), wanted_info.get(key, [False] * 3))
        if "final_obs" in info:
            np.testing.assert_allclose(np.stack(info["final_obs"]), np.stack(wanted_info["final_obs"]), atol=1e-5)
            assert info["final_info"].keys() == wanted_info["final_info"].keys()


def test_vector_resets_some_under_a_mask():
    batch = vector(autoreset_mode=AutoresetMode.DISABLED)
    before, _ = batch.reset(seed=0)
    after, info = batch.reset(options={"reset_mask": np.array([True, False, False])})
    assert not np.array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1:], before[1:])
    np.testing.assert_array_equal(info["_layout"], [True, False, False])
    for _ in range(5):
        batch.step(actions(batch))
    with pytest.raises(ResetNeeded, match=r"\[0, 1, 2\] are over"):
        batch.step(actions(batch))


def test_vector_takes_a_layout_and_checks_actions():
    batch = vector()
    with pytest.raises(ResetNeeded, match="before the first reset"):
        batch.step(np.zeros((3, 2)))
    _, info = batch.reset(seed=0, options={"layout": {"robot": [0.5, 0.5, 0.0]}})
    np.testing.assert_allclose(info["layout"]["robot"], np.tile([0.5, 0.5, 0.0], (3, 1)))
    with pytest.raises(ActionError, match=r"\(2,\).*\(3, 2\)"):
        batch.step(np.zeros(2))
    with pytest.raises(ConfigError, match="sync"):
        vector(physics="mujoco")


def test_vector_draws():
    batch = vector(2, render_mode="rgb_array")
    batch.reset(seed=0)
    frames = batch.render()
    assert [frame.shape for frame in frames] == [(528, 480, 3)] * 2


@pytest.mark.filterwarnings("ignore")  # of JAX about the fork, of Gymnasium about the error
def test_copies_in_forked_processes_are_refused_and_do_not_hang():
    batch = vector(2, vectorization_mode="async", vector_kwargs={"context": "fork"})
    batch.reset_async(seed=0)
    with pytest.raises(ConfigError, match=r'JAX does not survive a fork: .*\{"context": "spawn"\}'):
        batch.reset_wait(timeout=60)
    batch.close(terminate=True)


@pytest.mark.slow
def test_copies_in_spawned_processes_are_those_of_one_program():
    batch, one = vector(2, vectorization_mode="async", vector_kwargs={"context": "spawn"}), vector(2)
    np.testing.assert_allclose(batch.reset(seed=0)[0], one.reset(seed=0)[0], atol=1e-5)
    still = np.zeros((2, 2), np.float32)
    np.testing.assert_allclose(batch.step(still)[0], one.step(still)[0], atol=1e-5)
    batch.close()
