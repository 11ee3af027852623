"""Environments on the host: costs, spaces, autoreset modes, and what happens when one goes wrong."""

import multiprocessing
import os
import signal
import subprocess
import sys

import fakes
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Sequence, Tuple
from hypothesis import given
from hypothesis import strategies as st

from tqpo import references
from tqpo.errors import ConfigError, EnvError
from tqpo.host import costs
from tqpo.host.batch import EnvBatch
from tqpo.host.probe import make_own
from tqpo.host.spaces import Border, ContractError
from tqpo.host.spec import HostOptions
from tqpo.types import Env

QUICK = HostOptions(timeout=0.3)
MODES = ("SameStep", "NextStep", "Disabled")


def spec_of(task, cost_fn=None, options=QUICK, **settings):
    return make_own(f"fakes:{task}", settings, cost_fn, options)


def walk(spec, count=3, steps=40, seed=0, action=0.0):
    """First observations, steps with constant actions, and reports; the environments are closed."""
    with EnvBatch(spec, count, seed) as envs:
        first = envs.reset()
        taken = [envs.step(np.full((count, spec.action_size), action, np.float32)) for _ in range(steps)]
        return first, taken, envs.take_reports()


def transitions(first, steps, env):
    """The valid (obs, next_obs, reward, cost, terminated, truncated) of one environment, in order."""
    rows, obs = [], first[env]
    for t in steps:
        if t.valid[env]:
            row = (obs, t.next_obs[env], t.reward[env], t.cost[env], t.terminated[env], t.truncated[env])
            rows.append(np.concatenate([np.ravel(x) for x in row]))
        obs = t.obs[env]
    return np.array(rows)


def by_hand(env, seed, steps=25):
    """The same of a Gymnasium environment, stepped and reset as its documentation says; cost 1 or that of a six-tuple."""
    rows, (obs, _) = [], env.reset(seed=seed)
    for _ in range(steps):
        next_obs, reward, *cost, terminated, truncated, info = env.step(np.array([2.0], np.float32))
        channels = [cost[0], info["cost_hazards"]] if cost else [info["cost"]]
        rows.append(np.concatenate([np.ravel(x) for x in (obs, next_obs, reward, channels, terminated, truncated)]))
        obs = env.reset()[0] if terminated or truncated else next_obs
    return np.array(rows)


class TestReferences:
    def test_a_name_gives_what_it_names(self):
        assert references.find("fakes:choice") is fakes.choice
        assert references.name_of(fakes.choice) == "fakes:choice"
        assert references.name_of("fakes:choice") == "fakes:choice"

    def test_a_function_without_a_name_lives_as_long_as_the_program(self):
        name = references.name_of(lambda obs, action, next_obs, info: 1.0)
        assert references.find(name)(0, 0, 0, {}) == 1.0
        with pytest.raises(ConfigError, match="it lived in the program that trained"):
            references.find(references.LOCAL + "gone-7")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("nowhere:make", "start from the folder that holds nowhere.py, or put that on PYTHONPATH"),
            ("fakes:nobody", "module fakes has no nobody"),
            ("fakes:np.pi", "is float: name a function or a class"),
            ("fakes", "write module:name"),
        ],
    )
    def test_a_wrong_name_says_what_is_wrong(self, text, message):
        with pytest.raises(ConfigError, match=message):
            references.find(text)

    def test_an_unknown_gymnasium_id(self):
        with pytest.raises(ConfigError, match="gym:Pendulumm-v1"):
            make_own("gym:Pendulumm-v1")


class TestSpaces:
    def test_the_spec_is_found_by_looking(self):
        spec = spec_of("long", limit=50)
        assert not isinstance(spec, Env)
        assert (spec.obs_size, spec.action_size, spec.discrete, spec.max_steps) == (2, 1, False, 50)
        assert spec_of("choice").discrete
        assert spec_of("choice").action_size == 4

    def test_a_dict_of_observations_is_flattened(self):
        first, steps, _ = walk(spec_of("Parts"), steps=2)
        at, kind, on = [0.5] * 4, [1.0, 0.0, 0.0], [1.0, 0.0]
        np.testing.assert_array_equal(first[0], at + kind + on)
        np.testing.assert_array_equal(steps[0].next_obs[0], [*at, 0.0, 1.0, 0.0, *on])

    @given(st.floats(-1, 1), st.floats(-5, 5), st.floats(0.1, 5))
    def test_actions_are_scaled_to_the_bounds(self, a, low, width):
        border = Border(Box(-1, 1, (1,)), Box(low, low + width, (1,), np.float64))
        given = border.action(np.array([a]))
        np.testing.assert_allclose(given, low + (a + 1) / 2 * width, atol=1e-9)
        assert np.all((given >= low - 1e-9) & (given <= low + width + 1e-9))

    def test_a_choice_is_its_number(self):
        border = Border(Box(-1, 1, (1,)), Discrete(3, start=10))
        assert border.action(np.array([0.0, 0.0, 1.0])) == 12

    @pytest.mark.parametrize("space", [Box(np.array([[-1, 0], [2, 3]], np.float32), 5.0), Discrete(4, start=7)])
    def test_a_batch_of_actions_is_the_actions(self, space):
        border = Border(Box(-1, 1, (1,)), space)
        actions = np.random.default_rng(0).uniform(-1.5, 1.5, (6, border.action_size)).astype(np.float32)
        batch = border.action(actions)
        assert batch.dtype == space.dtype
        for row, action in zip(batch, actions, strict=True):
            np.testing.assert_array_equal(row, border.action(action))
            assert space.contains(border.action(action))

    def test_spaces_that_cannot_be_used_are_named(self):
        with pytest.raises(EnvError, match="needs finite bounds"):
            spec_of("unbounded")
        with pytest.raises(EnvError, match="must be Box, Discrete or MultiDiscrete"):
            Border(Box(-1, 1, (1,)), Tuple([Discrete(2)]))
        with pytest.raises(EnvError, match="has no fixed size"):
            Border(Sequence(Discrete(2)), Discrete(2))


class TestCosts:
    @given(st.dictionaries(st.sampled_from("abcd"), st.floats(0, 100), min_size=1))
    def test_without_a_total_the_total_is_the_sum(self, named):
        vector = costs.channels(named, costs.names_of(named))
        np.testing.assert_allclose(vector, [sum(named.values()), *named.values()], rtol=1e-5, atol=1e-9)

    @given(st.floats(0, 100), st.dictionaries(st.sampled_from("abcd"), st.floats(0, 100)))
    def test_a_total_that_is_given_stays(self, total, named):
        info = {"cost": total} | {f"cost_{k}": v for k, v in named.items()}
        vector = costs.channels(costs.read(None, None, None, None, info), ("cost", *named))
        np.testing.assert_allclose(vector, [total, *named.values()], rtol=1e-5, atol=1e-9)

    def test_a_named_cost_must_be_there_in_every_step(self):
        with pytest.raises(ContractError, match="no cost b in this step"):
            costs.channels({"a": 1.0}, ("cost", "a", "b"))
        with pytest.raises(ContractError, match="a cost c that the first step did not have"):
            costs.channels({"a": 1.0, "c": 1.0}, ("cost", "a"))

    @pytest.mark.parametrize(
        ("task", "cost_fn", "names", "first"),
        [
            ("Counter", None, ("cost",), [1.0]),
            ("SixTuple", None, ("cost", "hazards"), [2.0, 2.0]),
            ("Named", None, ("cost", "energy", "noise"), [5.0, 4.0, 1.0]),
            ("ByDict", None, ("cost", "energy"), [5.0, 1.0]),
            ("Counter", "fakes:energy", ("cost", "time", "energy"), [5.0, 1.0, 4.0]),
        ],
    )
    def test_every_source(self, task, cost_fn, names, first):
        spec = spec_of(task, cost_fn)
        assert spec.cost_names == names
        _, steps, _ = walk(spec, steps=3)  # action 0 is 2 in [-2, 6]
        np.testing.assert_allclose(steps[0].cost[0], first)

    def test_a_missing_cost_is_an_error_before_training(self):
        with pytest.raises(
            EnvError, match='fakes:costless, its first step: no cost in this step: give info\\["cost"\\]'
        ):
            spec_of("costless")
        with pytest.raises(EnvError, match="cost_fn returned no cost"):
            spec_of("costless", "fakes:nothing")


class TestAutoreset:
    @pytest.mark.parametrize("task", ["Counter", "SixTuple", "long"])
    def test_transitions_are_those_of_the_environment(self, task):
        first, steps, _ = walk(spec_of(task), seed=5)
        assert all(step.valid.all() for step in steps)
        seen = [transitions(first, steps, env)[:25] for env in range(3)]
        np.testing.assert_array_equal(seen, [by_hand(getattr(fakes, task)(), 5 + env) for env in range(3)])
        if task == "Counter":
            assert len(np.unique(np.array(seen)[:, :, 0])) > 20  # episodes differ

    def test_an_environment_may_reuse_its_observation(self):
        first, steps, _ = walk(spec_of("Reusing"))
        ours = walk(spec_of("Counter"))
        np.testing.assert_array_equal(transitions(first, steps, 1), transitions(*ours[:2], 1))

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("cost_fn", [None, "fakes:energy"])
    def test_a_vector_of_the_users_own(self, mode, cost_fn):
        first, steps, _ = walk(spec_of("vector", cost_fn, mode=mode))
        ours = walk(spec_of("Counter", cost_fn))
        for env in range(3):
            mine, other = transitions(first, steps, env)[:25], transitions(*ours[:2], env)[:25]
            np.testing.assert_array_equal(mine, other)

    @pytest.mark.parametrize("mode", MODES)
    def test_own_vectors_of_dicts(self, mode):
        first, steps, _ = walk(spec_of("vector", mode=mode, env="Parts"), steps=12)
        ours = walk(spec_of("Parts"), steps=12)
        mine, other = transitions(first, steps, 1), transitions(*ours[:2], 1)
        np.testing.assert_array_equal(mine, other[: len(mine)])
        assert len(mine) >= 9

    def test_a_vector_must_be_as_it_says(self):
        with pytest.raises(EnvError, match='metadata has no "autoreset_mode"'):
            spec_of("modeless")
        with pytest.raises(EnvError, match="asked for num_envs = 3 and made 2"):
            walk(spec_of("stingy"))

    def test_processes_give_the_same_transitions(self):
        """With a cost function that has no name to import it by."""
        reference_ = references.name_of(lambda obs, action, next_obs, info: 1.0 + next_obs[1] - obs[1])
        first, steps, _ = walk(spec_of("Counter", reference_, HostOptions(vector="async")), count=2)
        ours = walk(spec_of("Counter", reference_), count=2)
        for env in range(2):
            np.testing.assert_array_equal(transitions(first, steps, env), transitions(*ours[:2], env))
        assert (steps[0].cost == 2.0).all()
        assert multiprocessing.active_children() == []


RESTARTED = ["raises", "exits", "nan obs", "nan reward", "inf cost", "hangs"]
AT_ONCE = {
    "missing cost": "no cost in this step",
    "negative cost": "cost = -1.0: a cost must not be negative",
    "text cost": "cost = 'much': a cost must be a number",
    "wrong shape": r"an observation of shape \(3,\); its space says \(2,\)",
    "array reward": r"a reward of shape \(2,\)",
    "four values": "step returned 4 values",
}


class TestFaults:
    @pytest.fixture(autouse=True)
    def _fresh(self):
        fakes.Faulty.made = 0

    @pytest.mark.parametrize("fault", RESTARTED)
    def test_a_fault_costs_an_episode_and_restarts_its_environment(self, fault):
        """The first environment of the batch is the second made, after one that looked for the spec."""
        spec = spec_of("faulty", fault=fault, times=2)
        _, steps, reports = walk(spec, count=2, steps=6)
        lost = np.array([t.lost for t in steps])
        valid = np.array([t.valid for t in steps])
        np.testing.assert_array_equal(np.argwhere(lost), [[2, 0]])  # the third step of environment 0
        np.testing.assert_array_equal(valid, ~lost)
        assert steps[2].obs[0, 1] == 0  # a new episode
        assert steps[5].next_obs[0, 1] == 3
        assert len(reports) == 1
        assert reports[0].startswith("environment 0, step 3 (step 3 of its episode): ")
        assert "Traceback" in reports[0]

    @pytest.mark.parametrize("fault", ["raises", "nan obs"])
    def test_too_many_are_an_error_that_says_where(self, fault):
        spec = spec_of("faulty", fault=fault, options=HostOptions(restarts=2))
        with pytest.raises(EnvError, match=r"environment 0, step 9 .*") as error:
            walk(spec, count=2, steps=30)
        assert "2 restarts are allowed (--env-restarts)" in str(error.value)

    @pytest.mark.parametrize("fault", AT_ONCE)
    def test_a_broken_contract_is_an_error_at_once(self, fault):
        spec = spec_of("Faulty", fault=fault)
        with pytest.raises(EnvError, match=rf"environment 0, step 3 \(step 3 of its episode\): {AT_ONCE[fault]}"):
            walk(spec, count=2, steps=30)

    def test_a_fault_between_whole_episodes(self):
        spec = spec_of("faulty", fault="raises", at=2, times=2, limit=3)
        first, steps, reports = walk(spec, count=2, steps=20)
        assert len(reports) == 1
        times = transitions(first, steps, 0)[:, 1]
        np.testing.assert_array_equal(times[:10], [0, 0, 1, 2, 0, 1, 2, 0, 1, 2])  # one step, lost, then whole episodes

    def test_an_environment_that_cannot_be_built(self):
        with pytest.raises(EnvError, match="fakes:unbuildable: it cannot be built: OSError: no licence file"):
            spec_of("unbuildable")

    @pytest.mark.parametrize("fault", ["raises", "missing cost"])
    def test_in_a_process_too(self, fault):
        spec = spec_of("faulty", fault=fault, options=HostOptions(vector="async", restarts=1))
        with pytest.raises(EnvError, match="environment 0, step"):
            walk(spec, count=2, steps=30)
        assert multiprocessing.active_children() == []

    def test_a_process_that_dies_is_replaced(self, tmp_path):
        """It alone: the other goes on."""
        spec = spec_of("stubborn", path=str(tmp_path / "died"), options=HostOptions(vector="async"))
        _, steps, reports = walk(spec, count=2, steps=8)
        lost = np.array([t.lost for t in steps])
        np.testing.assert_array_equal(lost.sum(1), np.arange(8) == 3)
        np.testing.assert_array_equal([t.valid for t in steps], ~lost)
        dead = int(lost[3].argmax())
        assert steps[3].obs[dead, 1] == 0  # a new episode
        assert [step.next_obs[1 - dead, 1] for step in steps] == list(range(1, 9))
        assert reports == [f"environment {dead}: its process ended with exit status 7; another begins a new episode"]
        assert multiprocessing.active_children() == []

    def test_a_process_that_is_killed_says_by_what(self):
        with EnvBatch(spec_of("long", options=HostOptions(vector="async")), 1, 0) as envs:
            envs.reset()
            (process,) = multiprocessing.active_children()
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            assert envs.step(np.zeros((1, 1), np.float32)).lost.all()
            assert "its process died of SIGKILL" in envs.take_reports()[0]
            assert envs.step(np.zeros((1, 1), np.float32)).valid.all()
        assert multiprocessing.active_children() == []

    def test_ctrl_c_does_not_reach_a_process(self):
        with EnvBatch(spec_of("long", options=HostOptions(vector="async")), 1, 0) as envs:
            envs.reset()
            (process,) = multiprocessing.active_children()
            os.kill(process.pid, signal.SIGINT)
            assert envs.step(np.zeros((1, 1), np.float32)).valid.all()
            assert envs.take_reports() == []

    def test_a_process_that_keeps_dying_is_an_error(self):
        spec = spec_of("faulty", fault="dies", options=HostOptions(vector="async", restarts=1))
        with pytest.raises(EnvError, match="its process ended with exit status 7"):
            walk(spec, count=2, steps=30)
        assert multiprocessing.active_children() == []

    def test_a_process_that_does_not_answer_is_killed(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tqpo.host.batch.GRACE", 0.5)
        spec = spec_of("sleepy", path=str(tmp_path / "slept"), options=HostOptions(vector="async", timeout=1.0))
        _, steps, reports = walk(spec, count=2, steps=8)
        assert sum(int(t.lost.sum()) for t in steps) == 1
        (report,) = reports
        assert "gave no answer within 1.5 s" in report
        assert multiprocessing.active_children() == []

    @pytest.mark.parametrize("mode", MODES)
    def test_a_vector_of_the_users_own_is_built_anew(self, mode):
        spec = spec_of("vector", env="EarlyFaulty", mode=mode)
        _, steps, reports = walk(spec, count=2, steps=8)
        np.testing.assert_array_equal([t.lost.all() for t in steps], np.arange(8) == 2)
        (report,) = reports
        assert report.startswith("the vector, step 3: ValueError: a broken spring")

    def test_a_vector_that_fails_while_it_resets_keeps_the_episodes_that_ended(self):
        """Episodes last 2 and 3 steps; the reset after the first end raises once."""
        fakes.Unsteady.failed = False
        first, steps, reports = walk(spec_of("unsteady"), count=2, steps=6)
        assert [step.lost.tolist() for step in steps[:3]] == [[False, False], [False, True], [False, False]]
        assert [step.valid.tolist() for step in steps[:3]] == [[True, True], [True, False], [True, True]]
        assert steps[1].truncated.tolist() == [True, False]
        assert steps[1].obs[:, 1].tolist() == [0, 0]  # both begin anew
        assert transitions(first, steps, 0)[:, 1].tolist() == [0, 1, 0, 1, 0, 1]
        assert len(reports) == 1
        assert "a loose wire" in reports[0]

    def test_a_vector_that_keeps_failing_is_an_error(self):
        spec = spec_of("vector", env="AlwaysFaulty", options=HostOptions(restarts=1))
        with pytest.raises(
            EnvError, match=r"(?s)the vector, step 6: ValueError: a broken spring.*1 restarts are allowed"
        ):
            walk(spec, count=2, steps=8)


def test_what_a_worker_process_imports_is_light():
    code = "import sys, tqpo.host.workers, tqpo.host.reference; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("wrong", [{"vector": "threads"}, {"timeout": 0.0}, {"restarts": -1}])
def test_wrong_options(wrong):
    with pytest.raises(ConfigError):
        HostOptions(**wrong)
