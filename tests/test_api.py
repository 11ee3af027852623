"""`tqpo.train`, `tqpo.load`, `tqpo.evaluate`."""

import functools
import pathlib
import shutil

import jax
import jobs
import numpy as np
import pytest

import tqpo
from tqpo import store
from tqpo.errors import ActionError, ConfigError
from tqpo.evaluation.episodes import ActorPolicy
from tqpo.evaluation.loaded import LoadedPolicy
from tqpo.maths.normalize import Moments
from tqpo.networks import NetworkSpec, make_network
from tqpo.training.evaluations import evaluations_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("api") / "run"
    small = {"steps": jobs.STEPS, "settings": jobs.SETTINGS, "task_settings": jobs.TASK, "snapshots": 2}
    asked = {"safety": 0.8, "cost_limit": 5.0}
    found = tqpo.train("SimpleEnv", out=out, seeds=2, episodes=20, report=True, quiet=True, **asked, **small)
    assert (found["pooled"]["episodes"], found["deterministic"]) == (40, False)
    return out


def test_a_report_is_written_where_it_is_asked_for(run):
    assert {"report.html", "episode.gif", "plots"} <= {path.name for path in run.iterdir()}
    folder = store.open_run(run)
    assert folder.finished
    folder.verify()
    assert [e["deterministic"] for e in evaluations_of(folder)] == [False, True]


def test_a_loaded_policy_acts(run):
    policy = tqpo.load(run)
    obs = np.zeros(policy.obs_size)
    action = policy.act(obs, deterministic=True)
    assert action.shape == (2,)
    np.testing.assert_array_equal(action, tqpo.load(run, seed=0).act(obs, deterministic=True))
    samples = {tuple(policy.act(obs, deterministic=False)) for _ in range(5)}
    assert len(samples) == 5
    assert all(abs(x) <= 1 for sample in samples for x in sample)
    with pytest.raises(ActionError, match=r"obs of shape \(3,\): this policy takes 61 finite numbers"):
        policy.act(np.zeros(3))
    with pytest.raises(ConfigError, match="seed = 9: this run has 0, 1"):
        tqpo.load(run, seed=9)


def test_what_was_judged_is_what_acts(run, tmp_path):
    """By default the kind of action that the verdict, which is the first evaluation's, is about."""
    sampled = tqpo.load(run)
    obs = np.zeros(sampled.obs_size)
    assert (sampled.deterministic, len({tuple(sampled.act(obs)) for _ in range(5)})) == (False, 5)
    shutil.copytree(run, tmp_path / "mean")
    with store.open_run(tmp_path / "mean", write=True) as folder:
        folder.write_json("evaluation.json", {"schema": 1, "evaluations": evaluations_of(folder)[1:]})
    mean = tqpo.load(tmp_path / "mean")
    assert (mean.deterministic, len({tuple(mean.act(obs)) for _ in range(5)})) == (True, 1)
    np.testing.assert_array_equal(mean.act(obs), sampled.act(obs, deterministic=True))
    assert len({tuple(mean.act(obs, deterministic=False)) for _ in range(5)}) == 5


def test_predict_is_as_in_stable_baselines(run):
    policy = tqpo.load(run)
    batch = np.random.default_rng(0).normal(size=(3, policy.obs_size))
    actions, state = policy.predict(batch, deterministic=True)
    assert (actions.shape, state) == ((3, 2), None)  # an MLP remembers nothing
    one, _ = policy.predict(batch[1], state=None, episode_start=None, deterministic=True)
    np.testing.assert_allclose(one, actions[1], atol=1e-6)
    assert len({tuple(a) for a in policy.predict(np.zeros((5, policy.obs_size)))[0]}) == 5  # samples, each its own


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_predict_on_a_batch_is_act_on_each(kind):
    """Memory and budgets of several environments at once, one of which begins a new episode."""
    spec, budget = NetworkSpec(kind, (8,)), {"channels": [0], "limits": [4.0], "horizon": 9, "cost_names": ["cost"]}
    actor = make_network(jax.random.key(0), spec, 7, 2, {}).actor
    moments = Moments(jax.numpy.zeros(7), jax.numpy.ones(7), jax.numpy.ones(()))
    make = functools.partial(LoadedPolicy, ActorPolicy(actor, moments), description={"budget": budget})
    together, alone, state = make(), [make(), make()], None
    rng = np.random.default_rng(1)
    for t in range(4):
        obs, costs, rewards = rng.normal(size=(2, 3)), rng.uniform(0, 3, 2), rng.normal(size=2)
        start = np.array([False, t == 2])
        actions, state = together.predict(obs, state, start, deterministic=True, reward=rewards)
        if t == 2:
            alone[1].reset()
        for i, policy in enumerate(alone):
            expected = policy.act(obs[i], deterministic=True, reward=0.0 if t == 0 or start[i] else rewards[i])
            np.testing.assert_allclose(actions[i], expected, atol=1e-6)
            policy.tell(costs[i])
        together.tell(costs)
    together.predict(obs, state)
    with pytest.raises(ActionError, match=r"call tell\(cost\)"):
        together.predict(obs, state)


def test_evaluate_says_how_safe(run):
    found = tqpo.evaluate(run, episodes=20, deterministic=True)
    assert found["deterministic"]
    assert "of 40 episodes" in found["verdict"]["sentence"]


def test_evaluate_keeps_what_the_command_keeps_and_renews_the_report(run):
    for episodes in (21, 11):  # the fewer are given back, the run keeps the more
        assert tqpo.evaluate(run, episodes=episodes)["pooled"]["episodes"] == 2 * episodes
        folder = store.open_run(run)
        assert folder.finished
        folder.verify()
        assert evaluations_of(folder)[0]["pooled"]["episodes"] == 42
        assert "of 42 episodes" in (run / "report.html").read_text("utf-8")


def test_a_result_shows_itself_in_short(run):
    found = tqpo.evaluate(run, episodes=11)
    text = repr(found)
    assert isinstance(found, dict)
    assert found["verdict"]["sentence"] in text
    assert f"return {found['pooled']['return']['value']:.4g} (" in text
    assert "Pr[cost ≤ 5] " in text
    assert len(text) < 600
    html = found._repr_html_()
    assert "Verdict" in html
    assert "<svg" in html
    assert ":root" not in html  # its style keeps to itself
    side_by_side = tqpo.compare(run, run)
    assert len(side_by_side) == 2
    assert "<table" in side_by_side._repr_html_()
    assert repr(side_by_side).count("Pr[cost ≤ 5]") == 2


def test_the_package_lists_its_words():
    words = {"compare", "evaluate", "load", "report", "resume", "train"}
    assert words <= set(dir(tqpo))
    assert all(callable(getattr(tqpo, word)) for word in words)


def test_a_function_is_called_after_each_chunk_and_may_stop(tmp_path):
    seen = []

    def on_chunk(step, metrics):
        seen.append((step, metrics["return_mean"].shape))
        return len(seen) == 3

    small = {"steps": jobs.STEPS, "settings": jobs.SETTINGS, "task_settings": jobs.TASK, "snapshots": 1}
    tqpo.train("SimpleEnv", out=tmp_path / "run", seeds=2, episodes=20, quiet=True, on_chunk=on_chunk, **small)
    assert seen == [(200, (1, 2)), (400, (1, 2)), (600, (1, 2))]
    tqpo.resume(tmp_path / "run", episodes=20, quiet=True, on_chunk=lambda step, _: seen.append(step))
    assert seen[3:] == [200 * n for n in range(4, jobs.ITERATIONS + 1)]
    assert tqpo.report(tmp_path / "run", tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"saftey": 0.9}, r"did you mean safety\?\); a job has task, algo"),
        ({"safety": "0.9"}, "safety = '0.9': a number"),
        ({"steps": "1e5"}, "steps = '1e5': a number"),
        ({"constraints": "cost:limit=14,safety=0.9"}, "a list of such texts"),
    ],
)
def test_a_wrong_field_of_a_job_is_named(wrong, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        tqpo.train("SimpleEnv", out=tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_not_judged_again_and_compare_takes_runs(run):
    before = tqpo.evaluate(run, episodes=22)
    assert tqpo.resume(run)["pooled"] == before["pooled"]
    for wrong in ((), ([run, run],)):
        with pytest.raises(ConfigError, match=r"compare\(run, run, …\)"):
            tqpo.compare(*wrong)


def test_there_is_nothing_else_in_the_package():
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = tqpo.trian


def test_the_changelog_begins_with_this_version():
    text = (pathlib.Path(__file__).parents[1] / "CHANGELOG.md").read_text("utf-8")
    assert text.split("## ")[1].startswith(f"{tqpo.__version__} (")
