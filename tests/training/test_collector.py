"""Batches from environments on the host: nothing is lost, nothing is seen twice, and learning works."""

import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tqpo import networks
from tqpo.algorithms import rollout
from tqpo.algorithms.presets import preset
from tqpo.errors import ConfigError
from tqpo.evaluation.host_episodes import run_episodes
from tqpo.host.probe import make_own
from tqpo.host.spec import HostOptions
from tqpo.maths import normalize
from tqpo.training.collector import Collector, Lines
from tqpo.training.policies import policies_of
from tqpo.training.program import Group, init_group, run
from tqpo.types import Batch

SMALL = {"n_envs": 3, "n_steps": 8, "minibatches": 1, "epochs": 1, "cost_limit": 15.0}


MODES = (None, "SameStep", "NextStep", "Disabled")  # ours, and those of vectors of the user's own


def numbered(number: int, cut) -> rollout.Rollout:
    """A step that is known by its number."""
    n = len(cut)
    row = np.full(n, float(number), np.float32)
    no = np.zeros(n, bool)
    batch = Batch(row, row, row, row, row, np.array(cut), no, row)
    return rollout.Rollout(batch, no, row, row, None, None, None)


KINDS = st.sampled_from(["step", "end", "nothing", "lost"])


@given(st.lists(st.lists(KINDS, min_size=2, max_size=2), min_size=1, max_size=60), st.integers(1, 5))
def test_a_batch_is_the_next_steps_of_each_environment(steps, size):
    """Against lists: what is lost takes with it the steps of its episode that still wait."""
    lines, waiting = Lines(2), [[], []]  # (number, is an end)
    for number, kinds in enumerate(steps):
        kinds_ = np.array(kinds)
        lines.add(numbered(number, kinds_ == "end"), np.isin(kinds_, ["step", "end"]), kinds_ == "lost")
        for line, kind in zip(waiting, kinds, strict=True):
            if kind in ("step", "end"):
                line.append((number, kind == "end"))
            while kind == "lost" and line and not line[-1][1]:
                line.pop()
        assert lines.ready(size) == all(len(line) >= size for line in waiting)
        if lines.ready(size):
            taken = lines.take(size)
            np.testing.assert_array_equal(taken.batch.obs.T, [[n for n, _ in line[:size]] for line in waiting])
            waiting = [line[size:] for line in waiting]


def counters(mode):
    return make_own("fakes:Counter") if mode is None else make_own("fakes:vector", {"mode": mode})


def group_of(env, seeds=(0,), **changes):
    config = preset("fast", "ppo", **{**SMALL, **changes})
    return Group(env, "ppo", (config,) * len(seeds), seeds)


def collector_of(env, seeds=(0,), **changes):
    group = group_of(env, seeds, **changes)
    return Collector(env, "ppo", group.configs[0].learner, seeds, 0), init_group(group)


@pytest.mark.parametrize("mode", MODES)
def test_batches_follow_each_other(mode):
    collector, state = collector_of(counters(mode), (0, 1))
    with collector:
        seen = [collector.collect(state.learner) for _ in range(3)]
    joined = jax.tree.map(lambda *x: np.concatenate(x, 1), *(s._replace(memory=None) for s in seen))  # [R, 3T, B, …]
    batch, first = joined.batch, joined.first
    assert batch.obs.shape == (2, 24, 3, 2)
    cut = batch.terminated | batch.truncated
    np.testing.assert_array_equal(first[:, 1:], cut[:, :-1])
    assert first[:, 0].all()
    follows = (batch.next_obs[:, :-1] == batch.obs[:, 1:]).all(-1)
    np.testing.assert_array_equal(follows, ~cut[:, :-1])
    np.testing.assert_array_equal(batch.obs[..., 1][first], 0.0)
    np.testing.assert_array_equal(joined.prev_reward[:, 1:], np.where(first[:, 1:], 0.0, batch.reward[:, :-1]))
    names = batch.obs[..., 0][first]
    assert len(np.unique(names)) == len(names)  # no episode twice


def test_the_mode_does_not_show():
    batches = []
    for mode in MODES:
        collector, state = collector_of(counters(mode))
        with collector:
            batches.append([collector.collect(state.learner).batch for _ in range(2)])
    for other in batches[1:]:
        for a, b in zip(batches[0], other, strict=True):
            np.testing.assert_array_equal(a.obs, b.obs)
            np.testing.assert_array_equal(a.truncated, b.truncated)


def test_a_recurrent_policy_is_recorded_as_it_acted():
    lstm = networks.NetworkSpec(kind="lstm", hidden=(8,))
    collector, state = collector_of(counters(None), network=lstm, segment=4)
    with collector:
        collector.collect(state.learner)
        seen = jax.tree.map(lambda x: x[0], collector.collect(state.learner))
    core = jax.tree.map(lambda x: x[0], state.learner)
    obs = normalize.normalize(core.moments, jnp.asarray(seen.batch.obs))
    for segment in range(2):
        at = slice(4 * segment, 4 * segment + 4)
        context = networks.Context(seen.prev_action[at], seen.prev_reward[at], seen.first[at])
        memory = jax.tree.map(lambda x, s=segment: x[s], seen.memory)
        again = networks.unroll(core.network, obs[at], context, memory)
        np.testing.assert_allclose(again.heads["value"], seen.outputs["value"][at], atol=1e-5)
    cut = seen.batch.terminated | seen.batch.truncated
    onward = np.where(cut[:-1], 0.0, seen.next_outputs["value"][:-1] - seen.outputs["value"][1:])
    np.testing.assert_allclose(onward, 0.0, atol=1e-5)


def test_environments_on_the_host_cannot_begin_anew_early():
    with pytest.raises(ConfigError, match="restart_share"):
        collector_of(counters(None), restart_share=0.5)


def test_a_lost_episode_does_not_count():
    """Episodes last 20 steps and cost 20; those of environment 0 that fail in their third step are left out."""
    fakes.Faulty.made = 0
    env = make_own("fakes:faulty", {"fault": "raises", "times": 3}, None, HostOptions())
    config = preset("fast", "ppo", **{**SMALL, "n_steps": 2})
    faults = []
    _, metrics = run(Group(env, "ppo", (config,), (0,)), 24, on_faults=faults.extend)
    assert len(faults) == 2
    ended = metrics["episodes"].sum()
    assert ended == 6
    assert metrics["episode_cost_sum"].sum() == 20 * ended
    assert metrics["safety_prob"][-1, 0, 0] == 0  # all of them cost more than 15


@pytest.mark.parametrize("algorithm", ["tqpo"])
def test_a_choice_is_learned(algorithm):
    env = make_own("fakes:Target")
    small = {"n_envs": 4, "n_steps": 64, "minibatches": 4, "epochs": 4, "learning_rate": 3e-3, "cost_limit": 0.5}
    config = preset("fast", algorithm, host=True, **small)
    group = Group(env, algorithm, (config,), (0,))
    state, metrics = run(group, 12)
    assert metrics["return_mean"][0, 0] < 0.7
    assert metrics["return_mean"][-1, 0] > 0.85
    policy = jax.tree.map(lambda x: x[0], policies_of(state, group))
    totals, reports = run_episodes(env, policy, jax.random.key(0), 50, deterministic=True)
    assert (totals.returns.sum(), totals.costs.sum(), reports) == (50, 0, [])


def test_every_episode_that_is_begun_is_counted():
    """Counter's episodes last 2, 3, 4, 2, … steps in each environment."""
    group = group_of(counters(None))
    policy = jax.tree.map(lambda x: x[0], policies_of(init_group(group), group))
    for mode in MODES:
        totals, _ = run_episodes(counters(mode), policy, jax.random.key(1), 7, at_once=2)
        np.testing.assert_array_equal(totals.lengths, [2, 3, 4, 2, 2, 3, 4])
        np.testing.assert_array_equal(totals.costs[:, 0], totals.lengths)
        np.testing.assert_array_equal(totals.returns, [1, 3, 6, 1, 1, 3, 6])
