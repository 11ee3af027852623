"""Episodes on environments with known answers, in JAX and on the host; summaries that JSON can hold."""

import functools
import json
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Bandit, Chain, Counter, Poison, TwoArms
from results import LIMIT, Always, summarised

from tqpo import envs, networks
from tqpo.algorithms import rollout
from tqpo.algorithms.settings import Constraint
from tqpo.errors import ConfigError, EnvError, RenderError
from tqpo.evaluation import episodes, host_episodes, summary
from tqpo.evaluation.episodes import ActorPolicy, Totals, run_episodes, run_policies
from tqpo.evaluation.host_episodes import run_twin
from tqpo.host import batch
from tqpo.host.probe import make_own
from tqpo.maths import normalize
from tqpo.types import Array, Step

KEY = jax.random.key(7)


class Noisy(eqx.Module):
    """An action that is pure noise of this size; its carry counts the steps."""

    size: Array

    def init(self):
        return jnp.zeros((), int)

    def act(self, obs, carry, key, deterministic):
        noise = jnp.zeros(1) if deterministic else self.size * jax.random.normal(key, (1,))
        return noise, carry + 1


class Echo(eqx.Module):
    """Acts by the previous reward, which it only learns through `feedback`."""

    def init(self):
        return jnp.zeros(())

    def act(self, obs, carry, key, deterministic):
        return carry[None] / 10, carry

    def feedback(self, carry, reward):
        return reward


class Asked(NamedTuple):
    """Reward: the action, and 1 more each step. So an echo of a tenth gives 0·.1 + 1, then .1 + 2, …"""

    max_steps: int = 3
    min_steps: int = 3
    cost_names: tuple[str, ...] = ("cost",)

    def reset(self, key):
        return jnp.zeros((), int), jnp.zeros(1)

    def step(self, state, action):
        reward = action[0] + state + 1
        return state + 1, Step(jnp.zeros(1), reward, jnp.zeros(1), jnp.array(False), state + 1 >= self.max_steps)


class OnHost:
    """A JAX environment behind the host's interface."""

    def __init__(self, env):
        self.env = env

    def reset(self, key):
        self.state, obs = self.env.reset(key)
        return np.asarray(obs)

    def step(self, action):
        self.state, step = self.env.step(self.state, jnp.asarray(action))
        return jax.tree.map(np.asarray, tuple(step))


def on_host(env):
    return functools.partial(OnHost, env)


def same(a: Totals, b: Totals):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


def test_an_episode_stops_counting_when_it_ends():
    """Counter lasts L = 2, 3 or 4 steps with reward 0, 1, …: return L(L−1)/2, costs L and 2L."""
    totals = run_episodes(Counter(), Noisy(jnp.ones(())), KEY, 60)
    length = totals.lengths
    assert set(length) == {2, 3, 4}
    np.testing.assert_array_equal(totals.returns, length * (length - 1) / 2)
    np.testing.assert_array_equal(totals.costs, np.stack([length, 2 * length], 1))


def test_what_comes_after_the_end_may_be_garbage():
    class Ends(Poison):
        """Terminates just before its rewards stop being numbers; another one in the batch goes on."""

        def step(self, state, action):
            state, step = super().step(state, action)
            return state, step._replace(terminated=state == self.bad)

    totals = run_episodes(Ends(bad=5, max_steps=30), Always([0.5]), KEY, 3)
    np.testing.assert_allclose(totals.returns, 2.5)


def test_batches_do_not_change_the_episodes():
    policy, told = Noisy(jnp.ones(())), []
    whole = run_episodes(TwoArms(), policy, KEY, 50, batch=50)
    parts = run_episodes(TwoArms(), policy, KEY, 50, batch=16, progress=lambda *x: told.append(x))
    same(whole, parts)
    assert told == [(16, 50), (32, 50), (48, 50), (50, 50)]
    assert len(whole.returns) == 50


def test_policies_run_together_as_they_run_alone(monkeypatch):
    monkeypatch.setattr(episodes, "usual_batch", lambda _=1: 16)
    policies, told = {"quiet": Noisy(jnp.asarray(0.1)), "loud": Noisy(jnp.asarray(2.0))}, []
    keys = {"quiet": KEY, "loud": jax.random.key(8)}
    for env in (TwoArms(), Counter()):
        together = run_policies(env, policies, keys, 50, progress=lambda *x: told.append(x))
        for name, totals in together.items():
            same(totals, run_episodes(env, policies[name], keys[name], 50))
    assert told[:2] == [(16, 100), (32, 100)]
    assert told[-1] == (100, 100)


def test_sampled_and_deterministic():
    sampled = run_episodes(TwoArms(), Noisy(jnp.ones(())), KEY, 400)
    mean = run_episodes(TwoArms(), Noisy(jnp.ones(())), KEY, 400, deterministic=True)
    assert 0.4 < sampled.returns.mean() < 0.6
    assert mean.returns.sum() == 0


def test_actions_are_clipped():
    """Reward −(a − obs/2)² of an action that is clipped to 1."""
    totals = run_episodes(Bandit(), Always([50.0]), KEY, 20)
    assert set(np.round(totals.returns, 4)) == {-0.25, -2.25}


def test_the_reward_reaches_a_policy_that_asks_for_it():
    """Rewards 1, 2 + 0.1·1, 3 + 0.1·2.1."""
    expected = 1 + 2.1 + 3.21
    assert run_episodes(Asked(), Echo(), KEY, 2).returns == pytest.approx(expected)
    assert run_twin(on_host(Asked()), Echo(), KEY, 2).returns == pytest.approx(expected)


def test_host_and_jax_run_the_same_episodes():
    policy, told = Noisy(jnp.ones(())), []
    for env in (Counter(), TwoArms()):
        here = run_twin(on_host(env), policy, KEY, 12, batch=5, progress=lambda *x: told.append(x))
        same(run_episodes(env, policy, KEY, 12), here)
    assert told[:3] == [(5, 12), (10, 12), (12, 12)]
    same(run_episodes(Chain(), Always([0.0]), KEY, 2), run_twin(on_host(Chain()), Always([0.0]), KEY, 2))


def test_workers_change_nothing():
    policy = Noisy(jnp.ones(()))
    same(
        run_episodes(TwoArms(), policy, KEY, 6),
        run_twin(on_host(TwoArms()), policy, KEY, 6, workers=1),
    )


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_an_actor_does_as_in_training(kind):
    """The deterministic actor against `rollout` with zero noise, the LSTM's memory, previous action and reward included."""
    env = Chain(n=6)
    spec = networks.NetworkSpec(kind=kind, hidden=(8, 8))
    actor = networks.make_network(jax.random.key(1), spec, env.obs_size, env.action_size, {}).actor
    moments = normalize.merge(normalize.init(env.obs_size), jax.random.normal(KEY, (50, env.obs_size)) + 1)
    policy = ActorPolicy(actor, moments)

    def decide(obs, memory, prev_action, prev_reward, noise):
        x = normalize.normalize(moments, obs)
        mean, _, memory, _ = networks.act(actor, x, memory, prev_action, prev_reward)
        return rollout.Decision(mean, jnp.zeros(len(obs)), memory, None)

    runner = rollout.start(
        jax.random.split(jax.random.fold_in(KEY, 0))[0], env, 1, networks.initial_memory(actor, (1,))
    )
    start = episodes.begin(env, policy, KEY, 0)
    runner = runner._replace(obs=start.obs[None], env_state=jax.tree.map(lambda x: x[None], start.env_state))
    _, seen = rollout.rollout(KEY, env, decide, runner, 5)
    now, actions = start, []
    for _ in range(5):
        action, _ = policy.act(now.obs, now.carry, KEY, True)
        actions.append(action)
        now, _ = episodes.advance(env, policy, True, now)
    np.testing.assert_allclose(seen.batch.action[:, 0], np.array(actions), rtol=1e-5)


def test_a_task_and_its_twin():
    """The same starts and the same noise: the MuJoCo twin runs the same episodes."""
    from tqpo.envs import mujoco as twin

    env = envs.make("SimpleEnv", max_steps=20)
    spec = networks.NetworkSpec(hidden=(8,))
    actor = networks.make_network(KEY, spec, env.obs_size, env.action_size, {}).actor
    policy = ActorPolicy(actor, normalize.init(env.obs_size))
    totals = run_episodes(env, policy, KEY, 3)
    assert totals.costs.shape == (3, 3)
    assert set(totals.lengths) == {20}
    judged = run_twin(functools.partial(twin.MujocoTask, env.config), policy, KEY, 3)
    np.testing.assert_allclose(totals.returns, judged.returns, atol=1e-3)
    np.testing.assert_array_equal(totals.costs, judged.costs)


def test_noise_on_the_host_is_the_episodes_own():
    """Whatever the number of environments: the energy of an episode is that of its actions."""
    env = make_own("fakes:long", {"limit": 3}, "fakes:energy")
    whole, _ = host_episodes.run_episodes(env, Noisy(jnp.ones(())), KEY, 5, at_once=5)
    parts, _ = host_episodes.run_episodes(env, Noisy(jnp.ones(())), KEY, 5, at_once=2)
    assert len(np.unique(whole.costs[:, 2])) == 5
    np.testing.assert_allclose(whole.costs, parts.costs, rtol=1e-6)


def test_an_episode_without_an_end_is_an_error(monkeypatch):
    monkeypatch.setattr(batch, "ENDLESS", 30)
    with pytest.raises(EnvError, match="has not ended after 30 steps: give the environment a time limit"):
        host_episodes.run_episodes(make_own("fakes:Endless"), Always([0.0]), KEY, 1)


def test_a_film_has_a_frame_of_every_step(monkeypatch):
    env = make_own("fakes:Drawn")
    frames, seconds = host_episodes.film(env, Always([0.0]), KEY)
    assert [int(frame[0, 0, 0]) for frame in frames] == [0, 1, 2, 3, 4, 5]
    assert seconds == 1 / 20
    monkeypatch.setattr(host_episodes, "LONGEST", 3)
    assert len(host_episodes.film(env, Always([0.0]), KEY)[0]) == 4
    with pytest.raises(RenderError, match='has no render_mode "rgb_array"'):
        host_episodes.film(make_own("fakes:Counter"), Always([0.0]), KEY)
    with pytest.raises(ConfigError, match="there is no single environment to film"):
        host_episodes.film(make_own("fakes:vector"), Always([0.0]), KEY)


def test_a_summary_is_json_and_complete():
    document = json.loads(
        json.dumps(summary.document([summarised(label="tqpo", settings={"physics": "jax"})]), allow_nan=False)
    )
    assert document["schema"] == 1
    (one,) = document["evaluations"]
    assert [s["seed"] for s in one["seeds"]] == [0, 1, 2]
    assert one["pooled"]["episodes"] == 600
    assert one["constraints"] == [{"channel": 0, "name": "cost", "kind": "quantile", "cost_limit": 15.0, "safety": 0.9}]
    costs = np.array([s["episode_costs"] for s in one["seeds"]])[..., 0].ravel()
    pooled = one["pooled"]["constraints"][0]
    assert pooled["safe_episodes"] == (costs <= 15).sum()
    assert pooled["episode_cost_quantile"]["value"] == np.quantile(costs, 0.9, method="inverted_cdf")
    assert pooled["safety_prob"]["low"] < 0.9 < pooled["safety_prob"]["high"]
    assert one["over_seeds"]["return"]["low"] <= one["over_seeds"]["return"]["value"]
    assert one["verdict"]["word"] == "cannot tell yet"
    assert "cost limit of 15" in one["verdict"]["sentence"]


@pytest.mark.parametrize(("rate", "word"), [(0.98, "meets"), (0.7, "misses")])
def test_verdicts_pooled_and_per_seed(rate, word):
    judged = summarised(rate=rate)
    assert judged["verdict"]["word"] == word
    assert {s["constraints"][0]["verdict"]["word"] for s in judged["seeds"]} == {word}
    said = {"meets": "3 meet the level", "misses": "3 miss it"}
    assert judged["verdict"]["seeds"] == f"Of the 3 seeds on their own, {said[word]}."


def test_the_worst_constraint_decides():
    strict = Constraint(channel=1, limit=2.0, safety=0.95)
    judged = summarised(rate=0.98, constraints=(LIMIT, strict))
    assert [c["verdict"]["word"] for c in judged["pooled"]["constraints"]] == ["meets", "misses"]
    assert judged["verdict"]["word"] == "misses"
    assert "limit of 2" in judged["verdict"]["sentence"]


def test_small_and_unconstrained_summaries():
    lone = summarised(seeds=1, n=3)
    assert lone["verdict"]["seeds"] == ""
    assert lone["over_seeds"]["return"]["low"] is None
    assert lone["pooled"]["constraints"][0]["episode_cost_quantile"]["high"] is None
    assert summarised(constraints=())["verdict"] is None


def test_wrong_arguments():
    bad = Totals(np.array([np.nan]), np.zeros((1, 1)), np.ones(1))
    for call in (
        lambda: run_episodes(Counter(), Always([0.0]), KEY, 0),
        lambda: summarised(confidence=1.5),
        lambda: summary.summarise({0: bad}, (), ("cost",), deterministic=True),
    ):
        with pytest.raises(ConfigError):
            call()
