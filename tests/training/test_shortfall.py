"""A constraint that is not met: why, and what to type next."""

import jobs
import numpy as np
import pytest

from tqpo import store
from tqpo.training import shortfall
from tqpo.training.shortfall import advice, bound_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One iteration long, and never trained: the tests replace its metrics."""
    job = jobs.small_job(steps=200, seeds=(0,), snapshots=1)
    with store.create(tmp_path_factory.mktemp("shortfall") / "run", job.prepare().describe()) as folder:
        return folder


def evaluation(word, kind="quantile"):
    asked = {"name": "cost", "kind": kind, "cost_limit": 15.0, "safety": 0.9}
    found = {"value": 50.0, "low": 40.0, "high": 57.5}
    judged = {"verdict": {"word": word}, "episode_cost_quantile": found, "episode_cost_mean": found}
    return {"constraints": [asked], "pooled": {"constraints": [judged]}}


def said(run, monkeypatch, multiplier, safe, **kind):
    monkeypatch.setattr(type(run), "metrics", lambda _: {"multiplier": np.array(multiplier), "safety_prob": safe})
    return advice(run, evaluation("misses", **kind))


def test_nothing_is_said_of_a_constraint_that_is_met_or_undecided(run):
    assert advice(run, evaluation("meets")) == advice(run, evaluation("cannot tell yet")) == []


def test_a_multiplier_at_its_bound_and_a_level_out_of_reach(run, monkeypatch):
    lines = said(run, monkeypatch, [1.0, 19.0, 20.0, 20.0], np.array([0.1, 0.3, 0.43, 0.2]))
    assert lines[0].startswith("cost ≤ 15 is not met: λ at its bound 20 at the end of training. At best 43% of recent")
    options = [" ".join(line.split()[:2]) for line in lines[2:-1]]
    assert options == ["--algo budget", "--set max_multiplier=80", "--cost-limit 57.5"]
    assert lines[-1] == f"More in {shortfall.PAGE}"


def test_a_multiplier_that_still_rises_wants_more_steps(run, monkeypatch):
    lines = said(run, monkeypatch, [1.0, 2.0, 3.0, 4.0], np.array([0.1, 0.95, 0.5, 0.6]))
    assert lines[0].endswith("λ still rising at the end of training.")  # the level was reached once
    assert [" ".join(line.split()[:2]) for line in lines[2:-1]] == ["--algo budget", "--steps 400", "--cost-limit 57.5"]


def test_every_algorithm_with_a_multiplier_has_a_bound(run):
    del run
    bounds = {name: bound_of(jobs.small_job(algo=name).prepare().config) for name in ("tqpo", "ppo-lag", "budget")}
    assert bounds == {"tqpo": 20.0, "ppo-lag": 5.0, "budget": pytest.approx(54.598, abs=1e-3)}
