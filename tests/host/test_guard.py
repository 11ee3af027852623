"""Environments on the host: costs, spaces, autoreset modes, and what happens when one goes wrong."""

import multiprocessing

import fakes
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Sequence, Tuple
from hypothesis import given
from hypothesis import strategies as st

from tqpo.errors import ConfigError, EnvError
from tqpo.host import costs, reference
from tqpo.host.batch import Hosts
from tqpo.host.spaces import Border, ContractError
from tqpo.host.spec import AUTORESETS, Hosting, make_own
from tqpo.types import Env

QUICK = Hosting(timeout=0.3)


def spec_of(task, cost_fn=None, hosting=QUICK, **settings):
    return make_own(f"fakes:{task}", settings, cost_fn, hosting)


def walk(spec, count=3, steps=40, seed=0, action=0.0):
    """Ticks of constant actions; the hosts are closed."""
    with Hosts(spec, count, seed) as hosts:
        first = hosts.reset()
        ticks = [hosts.tick(np.full((count, spec.action_size), action, np.float32)) for _ in range(steps)]
        return first, ticks, hosts.take_reports()


def transitions(first, ticks, env):
    """The valid (obs, next_obs, reward, cost, terminated, truncated) of one environment, in order."""
    found, obs = [], first[env]
    for t in ticks:
        if t.valid[env]:
            row = (obs, t.next_obs[env], t.reward[env], t.cost[env], t.terminated[env], t.truncated[env])
            found.append(np.concatenate([np.ravel(x) for x in row]))
        obs = t.obs[env]
    return np.array(found)


class TestReferences:
    def test_a_name_gives_what_it_names(self):
        assert reference.find("fakes:choice") is fakes.choice
        assert reference.name_of(fakes.choice) == "fakes:choice"
        assert reference.name_of("fakes:choice") == "fakes:choice"

    def test_a_function_without_a_name_lives_as_long_as_the_program(self):
        name = reference.name_of(lambda obs, action, next_obs, info: 1.0)
        assert reference.find(name)(0, 0, 0, {}) == 1.0
        with pytest.raises(ConfigError, match="it lived in the program that trained"):
            reference.find(reference.LOCAL + "gone-7")

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
            reference.find(text)

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
        first, ticks, _ = walk(spec_of("Parts"), steps=2)
        at, kind, on = [0.5] * 4, [1.0, 0.0, 0.0], [1.0, 0.0]
        np.testing.assert_array_equal(first[0], at + kind + on)
        np.testing.assert_array_equal(ticks[0].next_obs[0], [*at, 0.0, 1.0, 0.0, *on])

    @given(st.floats(-1, 1), st.floats(-5, 5), st.floats(0.1, 5))
    def test_actions_are_scaled_to_the_bounds(self, a, low, width):
        border = Border(Box(-1, 1, (1,)), Box(low, low + width, (1,), np.float64))
        given = border.action(np.array([a]))
        np.testing.assert_allclose(given, low + (a + 1) / 2 * width, atol=1e-9)
        assert np.all((given >= low - 1e-9) & (given <= low + width + 1e-9))

    def test_a_choice_is_its_number(self):
        border = Border(Box(-1, 1, (1,)), Discrete(3, start=10))
        assert border.action(np.array([0.0, 0.0, 1.0])) == 12

    def test_spaces_that_cannot_be_used_are_named(self):
        with pytest.raises(EnvError, match="needs finite bounds"):
            spec_of("unbounded")
        with pytest.raises(EnvError, match="must be Box or Discrete"):
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
        found = costs.named(None, info, own=False)
        vector = costs.channels(found, ("cost", *named))
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
        _, ticks, _ = walk(spec, steps=3)  # action 0 is 2 in [-2, 6]
        np.testing.assert_allclose(ticks[0].cost[0], first)

    def test_a_missing_cost_is_an_error_before_training(self):
        with pytest.raises(
            EnvError, match='fakes:costless, its first step: no cost in this step: give info\\["cost"\\]'
        ):
            spec_of("costless")
        with pytest.raises(EnvError, match="cost_fn returned no cost"):
            spec_of("costless", "fakes:nothing")


class TestAutoreset:
    @pytest.mark.parametrize("task", ["Counter", "SixTuple", "long"])
    def test_every_mode_gives_the_same_transitions(self, task):
        seen = []
        for mode in AUTORESETS:
            first, ticks, _ = walk(spec_of(task, hosting=Hosting(autoreset=mode)))
            seen.append([transitions(first, ticks, env)[:25] for env in range(3)])
        np.testing.assert_array_equal(seen[0], seen[1])
        np.testing.assert_array_equal(seen[0], seen[2])
        names = np.array(seen[0])[:, :, 0]
        if task == "Counter":
            assert len(np.unique(names)) > 20  # episodes differ

    @pytest.mark.parametrize("mode", AUTORESETS)
    @pytest.mark.parametrize("cost_fn", [None, "fakes:energy"])
    def test_a_vector_of_the_users_own(self, mode, cost_fn):
        first, ticks, _ = walk(spec_of("vector", cost_fn, mode=mode))
        ours = walk(spec_of("Counter", cost_fn))
        for env in range(3):
            mine, other = transitions(first, ticks, env)[:25], transitions(*ours[:2], env)[:25]
            np.testing.assert_array_equal(mine, other)

    def test_own_vectors_of_dicts(self):
        first, ticks, _ = walk(spec_of("vector", mode="SameStep", env="Parts"), steps=12)
        ours = walk(spec_of("Parts"), steps=12)
        np.testing.assert_array_equal(transitions(first, ticks, 1), transitions(*ours[:2], 1))

    def test_processes_give_the_same_transitions(self):
        first, ticks, _ = walk(spec_of("Counter", hosting=Hosting(vector="async")), count=2)
        ours = walk(spec_of("Counter"), count=2)
        for env in range(2):
            np.testing.assert_array_equal(transitions(first, ticks, env), transitions(*ours[:2], env))
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
        """The first environment of the batch is the third made, after two that looked for the spec."""
        spec = spec_of("faulty", fault=fault, times=3)
        _, ticks, reports = walk(spec, count=2, steps=6)
        lost = np.array([t.lost for t in ticks])
        valid = np.array([t.valid for t in ticks])
        np.testing.assert_array_equal(np.argwhere(lost), [[2, 0]])  # the third step of environment 0
        np.testing.assert_array_equal(valid, ~lost)
        assert ticks[2].obs[0, 1] == 0  # a new episode
        assert ticks[5].next_obs[0, 1] == 3
        assert len(reports) == 1
        assert reports[0].startswith("environment 0, step 3 (step 3 of its episode): ")
        assert "Traceback" in reports[0]

    @pytest.mark.parametrize("fault", ["raises", "nan obs"])
    def test_too_many_are_an_error_that_says_where(self, fault):
        spec = spec_of("faulty", fault=fault, hosting=Hosting(restarts=2))
        with pytest.raises(EnvError, match=r"environment 0, step 9 .*") as error:
            walk(spec, count=2, steps=30)
        assert "2 restarts are allowed (--env-restarts)" in str(error.value)

    @pytest.mark.parametrize("fault", AT_ONCE)
    def test_a_broken_contract_is_an_error_at_once(self, fault):
        spec = spec_of("Faulty", fault=fault)
        with pytest.raises(EnvError, match=rf"environment 0, step 3 \(step 3 of its episode\): {AT_ONCE[fault]}"):
            walk(spec, count=2, steps=30)

    @pytest.mark.parametrize("mode", AUTORESETS)
    def test_a_fault_in_any_autoreset_mode(self, mode):
        spec = spec_of("faulty", fault="raises", at=2, times=3, limit=3, hosting=Hosting(autoreset=mode))
        first, ticks, reports = walk(spec, count=2, steps=20)
        assert len(reports) == 1
        times = transitions(first, ticks, 0)[:, 1]
        np.testing.assert_array_equal(times[:10], [0, 0, 1, 2, 0, 1, 2, 0, 1, 2])  # one step, lost, then whole episodes

    def test_an_environment_that_cannot_be_built(self):
        with pytest.raises(EnvError, match="fakes:unbuildable: it cannot be built: OSError: no licence file"):
            spec_of("unbuildable")

    @pytest.mark.parametrize("fault", ["raises", "missing cost"])
    def test_in_a_process_too(self, fault):
        spec = spec_of("faulty", fault=fault, hosting=Hosting(vector="async", restarts=1))
        with pytest.raises(EnvError, match="environment 0, step"):
            walk(spec, count=2, steps=30)
        assert multiprocessing.active_children() == []

    def test_a_process_that_dies_is_replaced(self, tmp_path):
        spec = spec_of("stubborn", path=str(tmp_path / "died"), hosting=Hosting(vector="async"))
        _, ticks, reports = walk(spec, count=2, steps=8)
        np.testing.assert_array_equal([t.lost.all() for t in ticks], np.arange(8) == 3)
        assert "its process ended with exit status 7; all 2 environments begin new episodes" in reports[0]
        assert multiprocessing.active_children() == []

    def test_a_process_that_keeps_dying_is_an_error(self):
        spec = spec_of("faulty", fault="dies", hosting=Hosting(vector="async", restarts=1))
        with pytest.raises(EnvError, match="its process ended with exit status 7"):
            walk(spec, count=2, steps=30)
        assert multiprocessing.active_children() == []

    def test_a_process_that_does_not_answer_is_killed(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tqpo.host.batch.GRACE", 0.5)
        spec = spec_of("sleepy", path=str(tmp_path / "slept"), hosting=Hosting(vector="async", timeout=1.0))
        _, ticks, reports = walk(spec, count=2, steps=8)
        assert sum(t.lost.all() for t in ticks) == 1
        assert "gave no answer within 1.5 s" in reports[0]
        assert multiprocessing.active_children() == []

    def test_a_vector_of_the_users_own_is_built_anew(self):
        spec = spec_of("vector", env="EarlyFaulty")
        _, ticks, reports = walk(spec, count=2, steps=8)
        np.testing.assert_array_equal([t.lost.all() for t in ticks], np.arange(8) == 2)
        assert reports[0].startswith("the vector, step 3: ValueError: a broken spring")


@pytest.mark.parametrize("wrong", [{"vector": "threads"}, {"timeout": 0.0}, {"restarts": -1}, {"autoreset": "Never"}])
def test_wrong_options(wrong):
    with pytest.raises(ConfigError):
        Hosting(**wrong)
