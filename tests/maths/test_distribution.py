import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from tqpo.maths import distribution

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 10_000)


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


@quick
@given(seeds)
def test_gaussian_against_scipy(seed):
    mean, log_std, x = draw(seed, 3, 5, 2)
    normal = stats.norm(mean, np.exp(log_std))
    found = distribution.log_prob(jnp.array(mean), jnp.array(log_std), jnp.array(x))
    np.testing.assert_allclose(found, normal.logpdf(x).sum(-1), rtol=1e-4, atol=1e-4)
    entropy = distribution.entropy(jnp.array(mean), jnp.array(log_std))
    np.testing.assert_allclose(entropy, normal.entropy().sum(-1), rtol=1e-5, atol=1e-5)


def test_gaussian_samples_have_the_distribution():
    mean, log_std = jnp.array([1.0, -2.0]), jnp.array([0.5, -1.0])
    x = distribution.sample(mean, log_std, jax.random.normal(jax.random.key(0), (20_000, 2)))
    for i in range(2):
        assert stats.kstest(x[:, i], stats.norm(mean[i], np.exp(log_std[i])).cdf).pvalue > 0.01


@quick
@given(seeds)
def test_choice_against_scipy(seed):
    logits = 3 * draw(seed, 5, 4)
    p = special.softmax(logits, -1)
    choice = np.eye(4)[np.arange(5) % 4]
    found = distribution.log_prob(jnp.array(logits), None, jnp.array(choice))
    np.testing.assert_allclose(found, np.log((p * choice).sum(-1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(distribution.entropy(jnp.array(logits), None), stats.entropy(p, axis=-1), atol=1e-5)


def test_choices_are_drawn_with_their_probabilities():
    p = np.array([0.5, 0.3, 0.15, 0.05])
    noise = jax.random.normal(jax.random.key(0), (40_000, 4))
    chosen = distribution.sample(jnp.broadcast_to(jnp.log(p), noise.shape), None, noise)
    np.testing.assert_array_equal(chosen.sum(-1), 1.0)
    assert stats.chisquare(chosen.sum(0), 40_000 * p).pvalue > 1e-3


def test_no_noise_is_greedy():
    logits = jnp.array(draw(0, 6, 3))
    chosen = distribution.sample(logits, None, jnp.zeros_like(logits))
    np.testing.assert_array_equal(jnp.argmax(chosen, -1), jnp.argmax(logits, -1))


def test_extreme_noise_stays_finite():
    for z in (-40.0, 40.0):
        assert jnp.isfinite(distribution.sample(jnp.zeros(3), None, jnp.array([z, 0.0, 0.0]))).all()


@quick
@given(seeds)
def test_several_choices_are_independent(seed):
    logits, sizes = 3 * draw(seed, 5, 6), distribution.Choices((2, 3, 1))
    hot = np.concatenate([np.eye(n)[np.arange(5) % n] for n in sizes.sizes], -1)
    parts = np.split(logits, [2, 5], -1), np.split(hot, [2, 5], -1)
    expected = sum(np.log((special.softmax(a, -1) * b).sum(-1)) for a, b in zip(*parts, strict=True))
    np.testing.assert_allclose(distribution.log_prob(jnp.array(logits), sizes, jnp.array(hot)), expected, atol=1e-4)
    spread = sum(stats.entropy(special.softmax(a, -1), axis=-1) for a in parts[0])
    np.testing.assert_allclose(distribution.entropy(jnp.array(logits), sizes), spread, atol=1e-5)


def test_several_choices_are_drawn_with_their_probabilities():
    sizes, p = distribution.Choices((2, 3)), np.array([0.7, 0.3, 0.2, 0.5, 0.3])
    noise = jax.random.normal(jax.random.key(0), (40_000, 5))
    chosen = distribution.sample(jnp.broadcast_to(jnp.log(p), noise.shape), sizes, noise)
    for part in (slice(0, 2), slice(2, 5)):
        np.testing.assert_array_equal(chosen[:, part].sum(-1), 1.0)
        assert stats.chisquare(chosen[:, part].sum(0), 40_000 * p[part]).pvalue > 1e-3
    together = chosen[:, 0] @ chosen[:, 2:] / 40_000
    np.testing.assert_allclose(together, p[0] * p[2:], atol=0.01)
