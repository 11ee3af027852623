"""A budget on the host: what a batch of environments shows, and what a loaded policy must be told."""

import numpy as np
import pytest

import tqpo
from tqpo import store
from tqpo.errors import ActionError, ConfigError
from tqpo.host.batch import EnvBatch
from tqpo.output import conclude
from tqpo.training.job import Job

LIMIT = 2.0
SMALL = {"n_envs": 2, "n_steps": 32, "epochs": 1, "minibatches": 2, "hidden": (8, 8)}


def env_of(task):
    return Job(task=task, algo="budget", cost_limit=LIMIT, settings=SMALL).prepare().env


def test_a_batch_shows_what_is_left():
    """The features are those of the costs that the batch itself gave, and begin anew with each episode."""
    env = env_of("fakes:Counter")
    budget, size = env.budget, env.budget.size
    spent, t, ends = np.zeros((3, 1)), np.zeros(3, int), 0
    with EnvBatch(env, 3, 0) as batch:
        first = batch.reset()
        assert first.shape == (3, env.obs_size)
        np.testing.assert_allclose(first[:, -size:], budget.features(spent, t))
        for _ in range(20):
            step = batch.step(np.zeros((3, 1), np.float32))
            spent, t = spent + step.cost[:, :1], t + 1
            np.testing.assert_allclose(step.next_obs[:, -size:], budget.features(spent, t))
            ends += int(step.ended.sum())
            spent[step.ended], t[step.ended] = 0.0, 0
            np.testing.assert_allclose(step.obs[:, -size:], budget.features(spent, t))
    assert ends > 5


def test_time_is_shown_where_the_length_is_known():
    assert env_of("fakes:Counter").budget.horizon is None
    assert env_of("fakes:long").budget.horizon == 50


def test_a_policy_must_be_told_its_costs(tmp_path):
    settings = {"steps": 128, "episodes": 4, "snapshots": 1, "quiet": True, "settings": SMALL}
    tqpo.train("fakes:Counter", algo="budget", cost_limit=LIMIT, out=tmp_path / "run", **settings)
    policy = tqpo.load(tmp_path / "run")
    assert policy.obs_size == 2
    obs = np.array([0.5, 0.0])
    fresh = policy.act(obs, deterministic=True)
    with pytest.raises(ActionError, match=r"call tell\(cost\) after every step"):
        policy.act(obs, deterministic=True)
    policy.tell(5.0)
    assert policy.act(obs, deterministic=True) != fresh  # the same observation with its budget gone
    for wrong, message in ((-1.0, "not negative"), ({"energy": 1.0}, "cost is missing")):
        with pytest.raises(ActionError, match=message):
            policy.tell(wrong)
    with pytest.raises(ActionError, match="one cost, as there were observations"):
        policy.tell([1.0, 2.0])
    policy.reset()
    with pytest.raises(ActionError, match="no action yet"):
        policy.tell(1.0)
    assert policy.act(obs, deterministic=True) == fresh
    with pytest.raises(ConfigError, match="this run has no dial"):
        policy.at(0.95)


def test_a_film_shows_the_policy_its_budget(tmp_path):
    settings = {"steps": 128, "episodes": 4, "snapshots": 1, "quiet": True, "settings": SMALL}
    tqpo.train("fakes:Drawn", algo="budget", cost_limit=LIMIT, out=tmp_path / "run", **settings)
    film = conclude.write_episode(store.open_run(tmp_path / "run"), tmp_path / "film.gif")
    assert film.read_bytes()[:6] == b"GIF89a"
