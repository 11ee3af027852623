"""`tqpo.train`, `tqpo.load`, `tqpo.evaluate`."""

import pathlib

import jobs
import numpy as np
import pytest

import tqpo
from tqpo import store
from tqpo.errors import ActionError, ConfigError
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
    action = policy.act(obs)
    assert action.shape == (2,)
    np.testing.assert_array_equal(action, tqpo.load(run, seed=0).act(obs))
    samples = {tuple(policy.act(obs, deterministic=False)) for _ in range(5)}
    assert len(samples) == 5
    assert all(abs(x) <= 1 for sample in samples for x in sample)
    with pytest.raises(ActionError, match=r"obs of shape \(3,\): this policy takes 61 finite numbers"):
        policy.act(np.zeros(3))
    with pytest.raises(ConfigError, match="seed = 9: this run has 0, 1"):
        tqpo.load(run, seed=9)


def test_evaluate_says_how_safe(run):
    found = tqpo.evaluate(run, episodes=10, deterministic=True)
    assert found["deterministic"]
    assert "of 20 episodes" in found["verdict"]["sentence"]


def test_evaluate_keeps_what_the_command_keeps_and_renews_the_report(run):
    tqpo.evaluate(run, episodes=11)
    folder = store.open_run(run)
    assert folder.finished
    folder.verify()
    assert evaluations_of(folder)[0]["pooled"]["episodes"] == 22
    assert "of 22 episodes" in (run / "report.html").read_text("utf-8")


def test_an_unknown_field_of_a_job_is_named(tmp_path):
    with pytest.raises(ConfigError, match="a job has task, algo"):
        tqpo.train("SimpleEnv", out=tmp_path / "x", saftey=0.9)


def test_there_is_nothing_else_in_the_package():
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = tqpo.trian


def test_the_changelog_begins_with_this_version():
    text = (pathlib.Path(__file__).parents[1] / "CHANGELOG.md").read_text("utf-8")
    assert text.split("## ")[1].startswith(f"{tqpo.__version__} (")
