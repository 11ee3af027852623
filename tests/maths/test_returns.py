import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tqpo.maths import returns

quick = settings(max_examples=40, deadline=None)


def gae_by_definition(rollout, discount, lam):
    """A_t = Σ_l (γλ)^l·δ_{t+l}, each sum written out to the end of its episode."""
    rewards, values, next_values, ended, cut = rollout
    steps, batch = rewards.shape
    advantage = np.zeros_like(rewards)
    for t in range(steps):
        for b in range(batch):
            for i in range(t, steps):
                bootstrap = 0.0 if ended[i, b] else discount * next_values[i, b]
                delta = rewards[i, b] + bootstrap - values[i, b]
                advantage[t, b] += (discount * lam) ** (i - t) * delta
                if cut[i, b]:
                    break
    return advantage


def random_rollout(seed, steps=9, batch=3):
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, steps, batch))
    ended = rng.random((steps, batch)) < 0.2
    return rewards, values, next_values, ended, ended | (rng.random((steps, batch)) < 0.2)


@quick
@given(seed=st.integers(0, 10_000), discount=st.floats(0, 1), lam=st.floats(0, 1))
def test_gae_against_its_definition(seed, discount, lam):
    rollout = random_rollout(seed)
    want = gae_by_definition(rollout, discount, lam)
    got = jax.jit(returns.gae)(*map(jnp.array, rollout), discount, lam)
    assert np.allclose(got, want, atol=1e-5)


def test_gae_with_lambda_one_is_return_minus_value():
    rewards, values, _, _, cut = random_rollout(0)
    cut[-1] = True
    advantage = returns.gae(*map(jnp.array, (rewards, values, np.roll(values, -1, 0), cut, cut)), 0.9, 1.0)
    to_go = np.zeros((len(rewards) + 1, rewards.shape[1]))
    for t in reversed(range(len(rewards))):
        to_go[t] = rewards[t] + 0.9 * ~cut[t] * to_go[t + 1]
    assert np.allclose(advantage, to_go[:-1] - values, atol=1e-5)


def test_gae_of_cost_channels_is_channel_by_channel():
    rollouts = [random_rollout(seed) for seed in (1, 2)]
    costs, values, next_values = (np.stack([r[i] for r in rollouts], -1) for i in range(3))  # [T, B, 2]
    ended, cut = rollouts[0][3:]
    both = returns.gae(*map(jnp.array, (costs, values, next_values, ended, cut)), 0.9, 0.8)
    for i, rollout in enumerate(rollouts):
        alone = returns.gae(*map(jnp.array, (*rollout[:3], ended, cut)), 0.9, 0.8)
        assert np.allclose(both[..., i], alone, atol=1e-6)


def test_gae_of_quantiles_takes_one_cost_for_all_of_them():
    cost, values, next_values, ended, cut = random_rollout(3)
    values, next_values = np.stack([values] * 4, -1), np.stack([next_values] * 4, -1)  # [T, B, 4]
    got = returns.gae(*map(jnp.array, (cost[..., None], values, next_values, ended, cut)), 0.9, 0.8)
    assert got.shape == values.shape
    assert np.allclose(got, got[..., :1])


def test_truncation_bootstraps_and_termination_does_not():
    """r = 1, V = 2, V' = 10, γ = ½: δ = 1 + 5 − 2 = 4 at a time-out, 1 − 2 = −1 at an end."""
    one = jnp.ones((2, 1))
    cut = jnp.array([[True], [False]])
    arguments = (one, 2 * one, 10 * one)
    assert returns.gae(*arguments, jnp.zeros((2, 1), bool), cut, 0.5, 1.0)[0, 0] == 4
    assert returns.gae(*arguments, cut, cut, 0.5, 1.0)[0, 0] == -1


@quick
@given(seed=st.integers(0, 10_000), split=st.sampled_from([1, 5, 11]))
def test_episode_sums_carry_across_batches(seed, split):
    rng = np.random.default_rng(seed)
    x, cut = rng.integers(0, 3, (12, 2)).astype(np.float32), rng.random((12, 2)) < 0.3
    accumulate = jax.jit(returns.accumulate_episodes)
    carry, first = accumulate(jnp.zeros(2), jnp.array(x[:split]), jnp.array(cut[:split]))
    _, second = accumulate(carry, jnp.array(x[split:]), jnp.array(cut[split:]))
    sums = np.concatenate([first, second])
    for b in range(2):
        ends = np.flatnonzero(cut[:, b])
        want = [part.sum() for part in np.split(x[:, b], ends + 1)][: len(ends)]
        assert sums[ends, b].tolist() == want


def test_episode_sums_of_channels():
    x, cut = jnp.ones((3, 2, 2)), jnp.array([[True, False]] * 3)
    carry, sums = returns.accumulate_episodes(jnp.zeros((2, 2)), x, cut)
    assert carry.tolist() == [[0, 0], [3, 3]]
    assert sums[:, 0].tolist() == [[1, 1]] * 3
