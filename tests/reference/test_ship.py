"""Policies that come with the package: made from a run, found by name, read but never written."""

import dataclasses

import jobs
import numpy as np
import pytest

import tqpo
from reference import ship
from tqpo import store
from tqpo.errors import ConfigError, StoreError
from tqpo.training import loop
from tqpo.training.evaluations import add_evaluation, evaluations_of
from tqpo.training.loop import Options


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two seeds under a limit that nobody breaks, and one under a limit that everybody may."""
    job = dataclasses.replace(jobs.small_job(), cost_limit=1000.0)
    with loop.train(job, tmp_path_factory.mktemp("ship") / "run", Options(quiet=True)) as folder:
        add_evaluation(folder, 60, "jax", deterministic=False)
        folder.finish()
    return folder.folder


@pytest.fixture(scope="module")
def shelf(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("shelf")
    ship.ship(run, out, episodes=40)
    return out


@pytest.mark.slow
def test_the_best_seed_is_shipped(run, shelf):
    scores = evaluations_of(store.open_run(run))[0]["seeds"]
    best = max(scores, key=lambda s: s["return"]["value"])["seed"]
    shipped = store.open_run(shelf / "SimpleEnv-90")
    assert shipped.finished
    shipped.verify()
    obs = np.linspace(-1, 1, tqpo.load(run).obs_size, dtype=np.float32)
    np.testing.assert_array_equal(tqpo.load(shelf / "SimpleEnv-90").act(obs), tqpo.load(run, seed=best).act(obs))
    assert [len(e["seeds"][0]["returns"]) for e in evaluations_of(shipped)] == [40, 40]
    assert sum(f.stat().st_size for f in (shelf / "SimpleEnv-90").rglob("*") if f.is_file()) < 1_000_000


@pytest.mark.slow
def test_found_by_name_and_left_as_it_is(shelf, monkeypatch, tmp_path):
    monkeypatch.setattr(store.run, "SHIPPED", shelf)
    monkeypatch.chdir(tmp_path)
    assert store.shipped() == ["SimpleEnv-90"]
    assert store.open_run("SimpleEnv-90").finished
    with pytest.raises(StoreError, match="comes with the package"):
        store.open_run("SimpleEnv-90", write=True)
    with pytest.raises(StoreError, match="or one of SimpleEnv-90"):
        store.open_run("SimpleEnv-91")
    (tmp_path / "SimpleEnv-90").mkdir()
    with pytest.raises(StoreError, match="is not a run"):  # a folder of the user's comes first
        store.open_run("SimpleEnv-90")


@pytest.mark.slow
def test_only_what_is_safe_is_shipped(run, tmp_path):
    source = store.open_run(run)
    found = evaluations_of(source)
    for seed in found[0]["seeds"]:
        seed["constraints"][0]["verdict"]["word"] = "misses"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ship, "evaluations_of", lambda _: found)
        with pytest.raises(ConfigError, match="no seed of"):
            ship.ship(run, tmp_path)
        patch.setattr(ship, "evaluations_of", lambda _: [])
        with pytest.raises(ConfigError, match="has no evaluation"):
            ship.ship(run, tmp_path)


def test_what_comes_with_the_package_is_whole():
    for name in store.shipped():
        folder = store.open_run(name)
        folder.verify()
        (sampled,) = [e for e in evaluations_of(folder) if not e["deterministic"]]
        assert sampled["pooled"]["constraints"][0]["safety_prob"]["high"] >= folder.config["job"]["safety"]
        assert tqpo.load(name).obs_size > 0
