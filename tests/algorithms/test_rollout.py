"""Rollouts: fresh starts, batches that cut episodes, what a memory sees; episode sums carried across batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Bandit, Chain, Counter

from tqpo import networks
from tqpo.algorithms import episodes, learner, rollout
from tqpo.algorithms.rollout import Decision
from tqpo.algorithms.settings import Constraint
from tqpo.networks import Head, NetworkSpec

B, T = 5, 12


def counting_policy(obs, memory, prev_action, prev_reward, noise):
    """Its memory counts the steps of an episode; its outputs are what it was shown."""
    shown = jnp.concatenate([obs, prev_action, prev_reward[:, None], memory[:, None]], -1)
    return Decision(noise, noise[:, 0], memory + 1, shown)


def roll(n_steps=T, runner=None, key=0, **options):
    env = Counter()
    start_key, roll_key = jax.random.split(jax.random.key(key))
    if runner is None:
        runner = rollout.start(start_key, env, B, jnp.zeros(B))
    program = jax.jit(lambda k, r: rollout.rollout(k, env, counting_policy, r, n_steps, **options))
    return program(roll_key, runner)


def test_pool_size():
    assert rollout.pool_size(12, 1000, 1000) == 12
    assert rollout.pool_size(12, 1001, 1000) == 24
    assert rollout.pool_size(3, 1, 1000) == 3
    assert rollout.pool_size(2, 10, 1) == 20
    assert rollout.pool_size(2, 10, 4) == 6  # ends at steps 0, 4, 8 and no more


def test_every_episode_is_whole_and_new():
    _, seen = roll()
    obs, first = np.asarray(seen.batch.obs), np.asarray(seen.first)
    cut = np.asarray(seen.batch.terminated | seen.batch.truncated)
    names = set()
    for b in range(B):
        t = 0
        while t < T:
            name = obs[t, b, 0]
            assert name not in names, "a fresh start was used twice"
            names.add(name)
            length = 2 + int(3 * name)
            for i in range(min(length, T - t)):
                np.testing.assert_allclose(obs[t + i, b], [name, i])
                assert first[t + i, b] == (i == 0)
                assert cut[t + i, b] == (i == length - 1)
                np.testing.assert_allclose(seen.batch.next_obs[t + i, b], [name, i + 1])  # before any reset
            t += length


def test_episodes_go_on_across_batches():
    runner, one = roll(5)
    runner, two = roll(7, runner, key=1)
    obs = np.concatenate([one.batch.obs, two.batch.obs])  # [12, B, 2]
    first = np.concatenate([one.first, two.first])
    assert not two.first[0].all(), "no episode was cut: the test shows nothing"
    for t in range(1, 12):
        goes_on = ~first[t]
        np.testing.assert_allclose(obs[t, goes_on, 0], obs[t - 1, goes_on, 0])
        np.testing.assert_allclose(obs[t, goes_on, 1], obs[t - 1, goes_on, 1] + 1)


def test_what_a_memory_sees_starts_from_zero():
    _, seen = roll()
    shown = seen.outputs
    prev_action, prev_reward, memory = shown[..., 2:3], shown[..., 3], shown[..., 4]
    np.testing.assert_array_equal(prev_action, seen.prev_action)
    np.testing.assert_array_equal(prev_reward, seen.prev_reward)
    np.testing.assert_array_equal(memory, seen.batch.obs[..., 1])  # steps since the episode began
    later = ~np.asarray(seen.first[1:])
    np.testing.assert_array_equal(seen.prev_action[1:][later], seen.batch.action[:-1][later])
    np.testing.assert_array_equal(seen.prev_reward[1:][later], seen.batch.reward[:-1][later])
    assert not seen.prev_action[np.asarray(seen.first)].any()


def test_memory_is_kept_at_each_segment():
    _, seen = roll(segment=4)
    np.testing.assert_array_equal(seen.memory, seen.batch.obs[::4, :, 1])  # [3, B]
    _, whole = roll()
    np.testing.assert_array_equal(seen.batch.obs, whole.batch.obs)


@pytest.mark.parametrize("look_ahead", [False, True])
def test_next_outputs(look_ahead):
    _, seen = roll(look_ahead=look_ahead)
    terminated, truncated = np.asarray(seen.batch.terminated), np.asarray(seen.batch.truncated)
    assert truncated.any()
    where = ~terminated if look_ahead else ~(terminated | truncated)
    after = np.concatenate([seen.batch.next_obs, seen.batch.action, seen.batch.reward[..., None]], -1)
    np.testing.assert_allclose(seen.next_outputs[..., :4][where], after[where])
    np.testing.assert_allclose(seen.next_outputs[..., 4][where], seen.batch.next_obs[..., 1][where])


def test_actions_reach_the_environment_clipped_and_the_batch_as_drawn():
    runner = rollout.start(jax.random.key(0), Bandit(), 2, None)
    loud = lambda obs, *_: Decision(jnp.full((2, 1), 3.0), jnp.zeros(2), None, None)  # noqa: E731
    _, seen = rollout.rollout(jax.random.key(1), Bandit(), loud, runner, 4)
    np.testing.assert_allclose(seen.batch.action, 3.0)
    np.testing.assert_allclose(seen.batch.reward, -((1 - seen.batch.obs[..., 0] / 2) ** 2))


def test_episode_costs_are_carried_across_batches():
    """Lengths 2, 3, 4 at cost 1 and 2 a step, reward 0 + 1 + …; batches of 5 and 7 cut them."""
    runner, one = roll(5)
    _, two = roll(7, runner, key=1)
    state = episodes.init(B, 2, window=6)
    add = jax.jit(episodes.add, static_argnums=4)
    total, ends = np.zeros((B, 3)), []
    for seen in (one, two):
        batch, cut = seen.batch, seen.batch.terminated | seen.batch.truncated
        earlier = state
        state, finished, after = add(state, batch.reward, batch.cost, cut, B * 12)
        before, new = episodes.cost_before(earlier, after, cut), []
        for t, b in np.ndindex(*cut.shape):
            np.testing.assert_array_equal(before[t, b], total[b, 1:])
            total[b] += [batch.reward[t, b], *batch.cost[t, b]]
            np.testing.assert_array_equal(after[t, b], total[b, 1:])
            if cut[t, b]:
                new.append(total[b].copy())
                total[b] = 0
        np.testing.assert_allclose(finished.totals[np.asarray(finished.mask)], new)
        ends += new
    np.testing.assert_allclose(state.running, total)
    np.testing.assert_allclose(state.recent.values.T, ends[-6:])
    assert set(state.recent.values[1].tolist()) <= {2.0, 3.0, 4.0}
    constraints = (Constraint(limit=3.0, safety=0.5), Constraint(channel=1, kind="mean", limit=5.0))
    found = episodes.estimate(state, constraints)
    costs = np.array(ends[-6:])[:, 1]
    assert found.quantile[0] == np.quantile(costs, 0.5, method="inverted_cdf")
    np.testing.assert_allclose(found.mean, [costs.mean(), 2 * costs.mean()], rtol=1e-6)
    np.testing.assert_allclose(found.safety_prob, [(costs <= 3).mean(), (2 * costs <= 5).mean()], rtol=1e-6)
    np.testing.assert_allclose(found.bounded, [found.quantile[0], found.mean[1]])
    metrics = episodes.metrics(state, finished, constraints, found)
    assert metrics["episodes"] == len(new)
    np.testing.assert_allclose(metrics["episode_cost_sum"], np.sum(new, 0)[1:])
    assert metrics["safe_episodes"][0] == sum(e[1] <= 3 for e in new)


def test_statistics_of_no_episode_are_zero():
    found = episodes.estimate(episodes.init(B, 2, 6), (Constraint(),))
    assert found.n_episodes == 0
    assert all(np.isfinite(x).all() for x in found)


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
@pytest.mark.parametrize(("bootstrap", "restart"), [(True, 0.0), (False, 0.0), (True, 0.4), (False, 0.4)])
def test_values_after_a_step(kind, bootstrap, restart):
    """next_values is V(next_obs), at a truncated step too if time-outs are bootstrapped, at a restart, and in the last row."""
    config = learner.LearnerConfig(
        network=NetworkSpec(kind, (8, 8), "torch"),
        n_envs=B,
        n_steps=T,
        segment=3,
        bootstrap_timeouts=bootstrap,
        restart_share=restart,
        restart_steps=2,
    )
    env = Counter()
    state = learner.init(jax.random.key(0), env, config, {"value": Head(), "costs": Head((2,))})
    _, seen = jax.jit(lambda s: learner.collect(s, env, config))(state)
    batch, network, memory = seen.rollout.batch, state.network, networks.initial_memory(state.network.actor, (B,))
    policy = jax.jit(learner.make_policy(network, state.moments, record=True))
    context = seen.rollout
    for t in range(T):
        if memory is not None:
            memory = jax.tree.map(lambda x: jnp.where(context.first[t][:, None], 0.0, x), memory)  # noqa: B023
        zero = jnp.zeros_like(batch.action[t])
        now = policy(batch.obs[t], memory, context.prev_action[t], context.prev_reward[t], zero)
        memory = now.memory
        then = policy(batch.next_obs[t], memory, batch.action[t], batch.reward[t], zero)
        for name in ("value", "costs"):
            np.testing.assert_allclose(seen.values[name][t], now.outputs[name], rtol=1e-4, atol=1e-5)
            usable = ~np.asarray(seen.ended[t])
            np.testing.assert_allclose(
                seen.next_values[name][t][usable], then.outputs[name][usable], rtol=1e-4, atol=1e-5
            )
    assert (seen.ended != seen.cut).any() == (bootstrap or restart > 0)
    assert (seen.whole != seen.cut).any() == (restart > 0)


def test_an_environment_that_begins_anew_finishes_no_episode():
    """Two of five environments begin anew every third step, in turn; the others' episodes are as they were."""
    env = Chain(5, truncates=True)
    marks = rollout.cuts(jnp.array(0), env, B, T, 0.4, 3)
    assert marks.most == marks.after.sum() == 2 * (T // 3)
    np.testing.assert_array_equal(np.flatnonzero(marks.after[:, 0]), [2, 5, 8, 11])
    np.testing.assert_array_equal(np.flatnonzero(marks.after[:, 1]), [1, 4, 7, 10])
    config = learner.LearnerConfig(
        network=NetworkSpec("mlp", (8,), "torch"), n_envs=B, n_steps=T, restart_share=0.4, restart_steps=3
    )
    state = learner.init(jax.random.key(0), env, config, {"value": Head()})
    state, seen = jax.jit(lambda s: learner.collect(s, env, config))(state)
    np.testing.assert_array_equal(np.asarray(seen.cut)[:, :2], marks.after[:, :2])
    np.testing.assert_array_equal(np.asarray(seen.rollout.first)[1:, :2], marks.after[:-1, :2])
    assert not seen.whole[:, :2].any()
    assert seen.finished.mask.sum() == seen.whole.sum() == 3 * (T // 5)
    np.testing.assert_array_equal(seen.finished.totals[np.asarray(seen.finished.mask), 0], 5.0)  # a reward of 1 a step


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_as_many_episodes_end_in_one_rollout_as_in_the_next(share):
    """Ten environments, episodes of 20 steps, rollouts of four: the first episodes are cut off and do not count."""
    env, n_envs, n_steps = Chain(20, truncates=True), 10, 4
    shape = {"n_envs": n_envs, "n_steps": n_steps, "restart_share": share, "restart_steps": 6}
    config = learner.LearnerConfig(network=NetworkSpec("mlp", (8,), "torch"), **shape)
    state = learner.init(jax.random.key(0), env, config, {"value": Head()})
    collect = jax.jit(lambda s: learner.collect(s, env, config))
    finished, cut = [], []
    for i in range(15):
        state, seen = collect(state._replace(iteration=jnp.array(i)))
        finished.append(int(seen.finished.mask.sum()))
        cut.append(int((seen.cut & ~seen.whole).sum()))
        np.testing.assert_array_equal(seen.finished.totals[np.asarray(seen.finished.mask), 0], 20.0)
    whole = round(n_envs * (1 - share))
    assert finished[:4] == [0] * 4  # none can be whole before step 20
    assert sum(finished[5:10]) == whole, "each environment ends one episode of 20 steps in five rollouts"
    assert finished[5:10] == finished[10:]
    assert max(finished[5:10]) - min(finished[5:10]) <= 1
    assert (sum(cut[5:]) > 0) == (share > 0)


class Named(Chain):
    """A chain whose obs begins with a random name for each episode."""

    def reset(self, key):
        return (key, jnp.zeros((), int)), self.observe((key, 0))

    def observe(self, state):
        return jnp.stack([jax.random.uniform(state[0]), jnp.asarray(state[1], float)])

    def step(self, state, action):
        t, step = super().step(state[1], action)
        return (state[0], t), step._replace(obs=self.observe((state[0], t)))


class Telling(Named):
    """And it says which episodes may end."""

    def may_end(self, state, steps):
        return state[1] + steps >= self.n


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_starts_that_are_not_needed_need_not_be_drawn(share):
    """A hundred environments, episodes of 20 steps, rollouts of four, two runs side by side: only few can end in each."""
    shape = {"n_envs": 100, "n_steps": 4, "restart_share": share, "restart_steps": 6}
    config = learner.LearnerConfig(network=NetworkSpec("mlp", (8,), "torch"), **shape)

    def batches(env):
        keys = jax.random.split(jax.random.key(0))
        states = jax.vmap(lambda key: learner.init(key, env, config, {"value": Head()}))(keys)
        collect = jax.jit(jax.vmap(lambda s: learner.collect(s, env, config)))
        for i in range(12):
            states, seen = collect(states._replace(iteration=jnp.full(2, i)))
            yield seen.rollout.batch

    for told, untold in zip(*(batches(kind(20, True, obs_size=2)) for kind in (Telling, Named)), strict=True):
        jax.tree.map(np.testing.assert_array_equal, told, untold)


def test_whole_batches_and_endless_episodes_are_not_cut():
    iteration = jnp.array(0)
    assert not rollout.cuts(iteration, Chain(T, truncates=True), B, T).happen
    assert not rollout.cuts(iteration, Chain(2**31 - 1, truncates=True), B, T).happen
    assert not rollout.cuts(iteration, Chain(3, truncates=True), B, T, 0.4, 3).happen, "episodes are short anyway"


@pytest.mark.parametrize(
    ("truncates", "bootstrap", "follows"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_bootstrap_at_the_last_step(truncates, bootstrap, follows):
    """δ at an episode's last step is r + γV(s') − V(s) after a time-out that is bootstrapped, else r − V(s)."""
    config = learner.LearnerConfig(
        network=NetworkSpec("mlp", (8,), "torch"), n_envs=2, n_steps=8, bootstrap_timeouts=bootstrap
    )
    env = Chain(4, truncates)
    state = learner.init(jax.random.key(0), env, config, {"value": Head()})
    _, seen = jax.jit(lambda s: learner.collect(s, env, config))(state)
    advantage, target = learner.reward_targets(seen, config)
    v, v_next = seen.values["value"], seen.next_values["value"]
    expected = 1 + config.discount * v_next[3] * follows - v[3]
    np.testing.assert_allclose(advantage[3], expected, rtol=1e-5)
    np.testing.assert_allclose(target, advantage + v, rtol=1e-5)


def test_each_epoch_takes_every_step_once_in_an_order_of_its_own():
    config = learner.LearnerConfig(epochs=3, minibatches=4)
    order = np.asarray(learner._order(jax.random.key(0), 40, config))
    assert order.shape == (12, 10)
    epochs = order.reshape(3, 40)
    np.testing.assert_array_equal(np.sort(epochs, 1), np.tile(np.arange(40), (3, 1)))
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert not any(np.array_equal(epoch, np.arange(40)) for epoch in epochs)


@pytest.mark.parametrize(("n_envs", "share"), [(1, 0.6), (2, 0.9), (5, 0.999)])
def test_one_environment_at_least_ends_its_episodes_by_itself(n_envs, share):
    marks = rollout.cuts(jnp.array(0), Chain(20, truncates=True), n_envs, 4, share, 3)
    assert (~marks.again).sum() == 1
