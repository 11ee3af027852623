"""Learning: probe tasks with known answers, and the two arms that tell a mean from a quantile."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Bandit, Chain, Choice, Gambles, Remember, TwoArms

from tqpo import networks
from tqpo.algorithms.presets import preset
from tqpo.algorithms.settings import field_names
from tqpo.envs import make
from tqpo.envs.budget import Budget, Budgeted
from tqpo.maths import normalize
from tqpo.networks import NetworkSpec
from tqpo.training import program

SEEDS = (0, 1)
SIZES = {  # what the tests below count on, whatever a preset is tuned to
    "n_envs": 64,
    "n_steps": 8,
    "epochs": 4,
    "minibatches": 2,
    "normalize_advantage": False,
    "indicator_scale": 0.1,
    "margin": 0.0,
    "segment": 4,
    "learning_rate": 1e-2,
    "episode_window": 512,
    "cost_scale": 1.0,
    "cost_limit": 1.0,
    "step_window": 512,
    "step_stride": 1,
    "max_multiplier": float("inf"),
    "gain": 0.1,
    "max_step": 10.0,
    "delta": 0.1,
}


def learn(env, algorithm, iterations, kind="mlp", **changes):
    """The trained states and the mean return of each iteration's episodes, [iterations, seeds]."""
    known = field_names(preset("fast", algorithm)) | {"cost_limit", "margin"}
    sizes = {k: v for k, v in (SIZES | {"iterations": iterations}).items() if k in known}
    config = preset("fast", algorithm, network=NetworkSpec(kind, (16, 16)), **(sizes | changes))
    group = program.Group(env, algorithm, (config,) * len(SEEDS), tuple(SEEDS))
    state, metrics = program.run(group, iterations, chunk=iterations)
    return state.learner, metrics, metrics["return_sum"] / np.maximum(metrics["episodes"], 1)


def heads(learned, obs):
    """What the heads say about observations [N, O], per seed."""

    def one(learned):
        return networks.read_heads(learned.network, normalize.normalize(learned.moments, obs), None)

    return jax.vmap(one)(learned)


@pytest.mark.parametrize("algorithm", ["ppo", "tqpo"])
def test_bandit(algorithm):
    """The best action is half the observation; what is left to lose is the policy's own noise."""
    learned, _, returns = learn(Bandit(), algorithm, 60)
    assert (returns[0] < -0.5).all()
    assert (returns[-5:].mean(0) > -0.1).all()

    def mean(learned, obs):
        return networks.act(learned.network.actor, normalize.normalize(learned.moments, obs), None, obs, obs[:, 0])[0]

    obs = jnp.array([[-1.0], [1.0]])
    np.testing.assert_allclose(jax.vmap(mean, (0, None))(learned, obs), np.broadcast_to(obs / 2, (2, 2, 1)), atol=0.15)


@pytest.mark.parametrize("kind", ["mlp", pytest.param("lstm", marks=pytest.mark.slow)])
def test_discrete_choice(kind):
    """Chance gets a third of them right."""
    _, metrics, returns = learn(Choice(), "tqpo", 40, kind)
    np.testing.assert_allclose(returns[0], 1 / 3, atol=0.1)
    assert (returns[-5:].mean(0) > 0.9).all()
    np.testing.assert_allclose(metrics["entropy"][0], np.log(3), atol=0.05)
    assert (metrics["entropy"][-1] < 0.6).all()


@pytest.mark.slow
def test_fast_tqpo_learns_a_short_simple_env():
    """Episodes of 200 steps: what it earns rises from nothing, with nothing changed but the length."""
    group = program.Group(make("SimpleEnv", max_steps=200), "tqpo", (preset("fast", cost_limit=15.0),), (0,))
    _, metrics = program.run(group, 30, chunk=5)
    ended = metrics["episodes"][:, 0] > 0  # a rollout is shorter than an episode: at first none ends
    returns = metrics["return_sum"][ended, 0] / metrics["episodes"][ended, 0]
    assert np.abs(returns[:3]).max() < 0.3
    assert returns[-3:].mean() > 1.0


def test_values_of_a_chain():
    """Reward and cost 1 in each of 4 steps: V(t) = 1 + γ + … for 4 − t terms; costs count by cost_scale = 10."""
    learned, *_ = learn(Chain(4), "ppo-lag", 80, discount=0.9, cost_discount=0.8, cost_scale=10.0, cost_limit=100.0)
    obs = np.arange(4)[:, None] / 4
    found = heads(learned, obs)
    for seed in range(len(SEEDS)):
        expected = [sum(0.9**k for k in range(4 - t)) for t in range(4)]
        np.testing.assert_allclose(found["value"][seed], expected, rtol=0.05)
        expected = [sum(0.8**k for k in range(4 - t)) / 10 for t in range(4)]
        np.testing.assert_allclose(found["cost_value"][seed, :, 0], expected, rtol=0.05)


def test_values_beyond_a_time_out():
    """Reward 1 for ever, cut every 4 steps, all steps alike: V = 1/(1 − γ) = 5, since time-outs are bootstrapped."""
    learned, *_ = learn(Chain(4, truncates=True, blind=True), "ppo", 60, discount=0.8)
    np.testing.assert_allclose(heads(learned, np.zeros((1, 1)))["value"], 5.0, rtol=0.05)


def test_a_memory_remembers():
    """The sign was shown two steps before it pays: without a memory the return is 0."""
    _, _, returns = learn(Remember(), "tqpo", 60, "lstm", n_steps=12, segment=6, learning_rate=5e-3)
    assert (np.abs(returns[0]) < 0.15).all()
    assert (returns[-5:].mean(0) > 0.6).all()


@pytest.mark.parametrize("algorithm", ["ppo-lag", pytest.param("qcpo", marks=pytest.mark.slow), "tqpo"])
def test_two_arms(algorithm):
    """The mean constraint admits the risky arm, the quantile constraint forbids it.

    The risky arm pays 1 and costs 2 with probability 0.4: mean 0.8 below the limit 1, 0.9-quantile 2 above it.
    Pr[C ≤ 1] ≥ 0.9 holds when it is taken in at most 0.1/0.4 of the episodes. There TQPO's λ balances 1 = λ·0.4.
    """
    _, metrics, risky = learn(TwoArms(), algorithm, 150, gain=0.3, initial_multiplier=2.0)
    risky = risky[-50:].mean(0)
    safety = metrics["safety_prob"][-50:, :, 0].mean(0)
    if algorithm == "ppo-lag":
        assert (risky > 0.95).all()
        assert (safety < 0.7).all()
        np.testing.assert_allclose(metrics["multiplier"][-1], 0.0, atol=1e-6)
    else:
        assert (risky < 0.4).all()
        assert (safety > 0.85).all()
    if algorithm == "tqpo":
        np.testing.assert_allclose(metrics["multiplier"][-50:].mean(), 2.5, atol=0.8)


def test_two_arms_with_a_budget():
    """The same problem: the chance constraint forbids the risky arm for `budget` too."""
    env = Budgeted(TwoArms(), Budget((0,), (1.0,), 1))
    _, metrics, risky = learn(env, "budget", 150)
    assert (risky[-50:].mean(0) < 0.4).all()
    assert (metrics["safety_prob"][-50:, :, 0].mean(0) > 0.85).all()


def test_a_budget_that_is_seen_earns_more_than_any_blind_policy():
    """Limit 2 at 95 %: no policy that cannot see its budget earns more than 1.75; seeing it allows 3.98 at 100 %."""
    env = Budgeted(Gambles(), Budget((0,), (2.0,), 10))
    numbers = {"n_steps": 10, "safety": 0.95, "cost_limit": 2.0, "learning_rate": 3e-3, "margin": 0.3}
    _, metrics, returns = learn(env, "budget", 400, **numbers)
    assert (metrics["safety_prob"][-50:, :, 0].mean(0) >= 0.95).all()
    assert (returns[-50:].mean(0) > 0.85 * 3.98).all()
