"""A job and what follows from it; settings of now held against those of an older file."""

import copy

import jobs
import pytest

from tqpo.errors import ConfigError, StoreError
from tqpo.training.job import Job, Prepared, agree, plain, prepared_of, seeds_of, together

NOW = {"gain": 0.1, "network": {"hidden": [64, 64], "kind": "mlp"}, "constraints": [{"limit": 15.0, "margin": 0.0}]}
DEFAULTS = {"gain": 0.5, "network": {"hidden": [32], "kind": "mlp"}, "constraints": [{"limit": 1.0, "margin": 0.0}]}


def old(change) -> dict:
    settings = copy.deepcopy(NOW)
    change(settings)
    return settings


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda s: None, True),
        (lambda s: s.update(gone=7), True),  # this version no longer has it
        (lambda s: s["network"].update(gone={"x": 1}), True),
        (lambda s: s["network"].pop("kind"), True),  # younger than the file, and now at its default
        (lambda s: s["constraints"][0].pop("margin"), True),
        (lambda s: s.pop("gain"), False),  # younger, and no longer at its default
        (lambda s: s["network"].pop("hidden"), False),
        (lambda s: s.update(gain=0.2), False),
        (lambda s: s["constraints"][0].update(limit=16.0), False),
        (lambda s: s["constraints"].append({"limit": 15.0, "margin": 0.0}), False),
        (lambda s: s.update(network=None), False),
    ],
)
def test_settings_of_an_older_file(change, same):
    assert agree(old(change), NOW, DEFAULTS) == same


def test_a_run_of_another_version_is_still_its_job():
    prepared = jobs.small_job().prepare()
    config = plain(prepared.describe())
    assert prepared.matches(config)
    del config["derived"]["algorithm"]["learner"]["discount"], config["derived"]["task"]["hazard_radius"]
    del config["job"]["vector"]
    config["job"]["gone"] = config["job"]["settings"]["gone"] = config["derived"]["algorithm"]["gone"] = 1
    assert prepared.matches(config)
    assert prepared_of(config).job == prepared.job
    config["derived"]["algorithm"]["learner"]["epochs"] += 1
    assert not prepared.matches(config)
    with pytest.raises(StoreError, match="not that of a training job"):
        Job.from_description({"cells": []})


def test_seeds():
    assert seeds_of(3) == (0, 1, 2)
    assert seeds_of(2, first=5) == (5, 6)
    assert seeds_of([4, 1]) == (4, 1)
    with pytest.raises(ConfigError, match="seeds = 0: at least 1"):
        seeds_of(0)


def test_several_jobs_are_one_group():
    first, second = (jobs.small_job(safety=safety).prepare() for safety in (0.8, 0.9))
    group = together([first, second])
    assert group.seeds == (0, 1, 0, 1)
    assert [c.constraints[0].safety for c in group.configs] == [0.8, 0.8, 0.9, 0.9]


def test_what_follows_from_a_job():
    prepared: Prepared = jobs.small_job(algo="ppo-lag").prepare()
    assert (prepared.iterations, prepared.iteration_steps) == (jobs.ITERATIONS, 200)
    assert prepared.snapshot_iterations == [10, 12]
    assert not prepared.on_host
    assert [c.kind for c in prepared.config.constraints] == ["mean"]
    assert [c.kind for c in prepared.asked] == ["quantile"]  # safety and cost_limit ask for a probability
    assert prepared.goal == "90%"


@pytest.mark.parametrize(("safety", "episodes"), [(0.5, 384), (0.9, 384), (0.95, 768), (0.99, 3840), (0.9999, 10_000)])
def test_candidates_of_a_stricter_level_are_looked_at_for_longer(safety, episodes):
    """So many that about 38 of them are unsafe where the level is just kept."""
    assert Job(task="SimpleEnv", safety=safety).prepare().selection_episodes == episodes


@pytest.mark.parametrize(
    ("task", "algo", "share", "steps"),
    [
        ("SimpleEnv", "budget", 0.5, 100),
        ("DynamicEnv", "budget", 0.2, 100),
        ("DynamicEnv", "budget-blind", 0.2, 100),
        ("DynamicEnv", "budget-no-restarts", 0.0, 100),
        ("DynamicEnv", "budget-dial", 0.6, 60),
        ("GremlinEnv", "budget", 0.0, 100),
        ("GremlinEnv", "budget-dial", 0.5, 200),
    ],
)
def test_a_task_changes_a_preset_but_not_what_makes_a_variant(task, algo, share, steps):
    learner = Job(task=task, algo=algo).prepare().config.learner
    assert (learner.restart_share, learner.restart_steps) == (share, steps)
