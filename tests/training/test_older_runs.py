"""Runs that 0.1.0 wrote: they load, act, evaluate and go on (tests/data/0.1.0)."""

import csv
import pathlib
import shutil
import subprocess

import jax
import jobs
import numpy as np
import pytest

import tqpo
from tqpo import store
from tqpo.training.evaluations import add_evaluation, evaluations_of
from tqpo.training.job import prepared_of

WRITTEN_WITH = "0.10.2"  # JAX
DATA = pathlib.Path(__file__).parents[1] / "data" / "0.1.0"


@pytest.fixture
def copied(tmp_path):
    def copy(name):
        shutil.copytree(DATA / name, tmp_path / name)
        return tmp_path / name

    return copy


def columns(path):
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def test_a_finished_run_is_whole_and_acts():
    with store.open_run(DATA / "finished") as run:
        run.verify()
        assert run.finished
    for seed in (0, 1):
        policy = tqpo.load(DATA / "finished", seed)
        action = policy.act(np.zeros(policy.obs_size))
        assert action.shape == (2,)
        assert np.all(np.abs(action) <= 1)


def test_a_finished_run_is_evaluated_to_the_same_episodes(copied):
    path = copied("finished")
    with store.open_run(path, write=True) as run:
        before = evaluations_of(run)[0]
        after = add_evaluation(run, 30, "jax", deterministic=False)
    for old, new in zip(before["seeds"], after["seeds"], strict=True):
        np.testing.assert_allclose(new["returns"], old["returns"], atol=1e-2)
        assert new["episode_costs"] == old["episode_costs"]


def test_a_stopped_run_goes_on_to_the_same_end(copied):
    path = copied("stopped")
    done = subprocess.run(
        jobs.command("train", "--resume", str(path), "--episodes", "0", "--quiet"),
        env=jobs.environment() | {"XLA_FLAGS": ""},  # the numbers are those of a program that is optimised
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours, theirs = columns(path / "metrics.csv"), columns(DATA / "whole-metrics.csv")
    assert ours["iteration"].tolist() == theirs["iteration"].tolist()
    close = 3e-3 if jax.__version__ == WRITTEN_WITH else 2e-2  # other programs and another JAX round differently
    for name in ("return_mean", "multiplier", "safety_prob", "episode_cost_mean", "cost_return_quantile"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=close, atol=close, err_msg=name)


def test_a_run_with_settings_that_are_gone_is_not_trained_on(copied):
    """λ of the finished run moved by `log_gain`, which is no more: it evaluates, but going on would be another training."""
    config = store.open_run(DATA / "finished").config
    assert config["derived"]["algorithm"]["dual"]["log_gain"] != 0
    assert not prepared_of(config).matches(config)
    assert prepared_of(store.open_run(DATA / "stopped").config).matches(store.open_run(DATA / "stopped").config)


def test_a_preset_that_is_gone_or_has_changed_does_not_matter():
    config = store.open_run(DATA / "stopped").config
    config = config | {"job": config["job"] | {"preset": "tuned"}}
    algorithm = prepared_of(config).config
    assert (algorithm.dual.gain, algorithm.learner.network.hidden, algorithm.constraints[0].margin) == (
        0.1,
        (8, 8),
        0.0,
    )
