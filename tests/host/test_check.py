"""What `check-env` says of whole episodes, where it is known; and that no environment is waited for without end."""

import numpy as np
import pytest
from probes import Chain

from tqpo.errors import ConfigError, EnvError
from tqpo.host import batch
from tqpo.host.batch import EnvBatch
from tqpo.host.check import check_env, jax_totals
from tqpo.host.probe import make_own
from tqpo.host.spec import HostOptions


def found(task, **options):
    return {f.what: f for f in check_env(task, {}, None, HostOptions(**options), steps=100)}


def test_episodes_of_random_actions_are_shown_to_choose_a_limit_by():
    """Episodes of 2, 3 and 4 steps in turn: they cost 2, 3, 4 and return 1, 3, 6."""
    seen = found("fakes:Counter")
    level, _, text, advice = seen["episode cost"]
    assert (level, advice) == ("ok", "")
    assert "50% cost at most 3, 80% cost at most 4, 90% cost at most 4" in text
    assert text.endswith("the worst 4")
    assert " on average, 1 to 6, in " in seen["return"].text


def test_an_environment_without_an_end_is_refused_and_limited_by_max_steps(monkeypatch):
    monkeypatch.setattr("tqpo.host.check.ENDLESS", 200)
    assert found("fakes:Endless")["episodes"].level == "error"
    limited = found("fakes:Endless", max_steps=7)
    assert (limited["episodes"].level, "time-out after 7 steps" in limited["episodes"].text) == ("ok", True)
    assert limited["episode cost"].text.endswith("the worst 7")


def test_episodes_are_truncated_after_max_steps_and_not_before():
    spec = make_own("fakes:Endless", options=HostOptions(max_steps=5))
    assert spec.max_steps == 5
    with EnvBatch(spec, 2, seed=0) as envs:
        envs.reset()
        ends = [envs.step(np.zeros((2, 1))) for _ in range(12)]
    assert [t for t, step in enumerate(ends, 1) if step.truncated.all()] == [5, 10]
    assert not any(step.terminated.any() for step in ends)


def test_training_and_evaluation_do_not_wait_for_an_episode_without_an_end(monkeypatch):
    monkeypatch.setattr(batch, "ENDLESS", 30)
    with EnvBatch(make_own("fakes:Endless"), 2, seed=0) as envs:
        envs.reset()
        for _ in range(29):
            envs.step(np.zeros((2, 1)))
        with pytest.raises(EnvError, match=r"not ended after 30 steps: .* or truncate its episodes with --max-steps"):
            envs.step(np.zeros((2, 1)))


def test_vectors_end_their_own_episodes():
    with pytest.raises(ConfigError, match="makes vectors, which end their own episodes"):
        make_own("fakes:vector", options=HostOptions(max_steps=5))


def test_episodes_of_a_jax_environment_end_where_it_says():
    sums = jax_totals(Chain(4))  # reward and cost 1 in each of 4 steps
    np.testing.assert_array_equal(sums[:, :2], np.full((100, 2), 4.0))
