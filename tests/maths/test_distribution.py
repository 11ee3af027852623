import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from scipy import special, stats
from test_gaussian import draw, quick, seeds

from tqpo.maths import distribution, gaussian


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


def test_gaussian_as_before():
    mean, log_std, noise = draw(1, 5, 2), draw(2, 2), draw(3, 5, 2)
    action = distribution.sample(jnp.array(mean), jnp.array(log_std), jnp.array(noise))
    np.testing.assert_allclose(action, mean + np.exp(log_std) * noise, rtol=1e-5)
    found = distribution.log_prob(jnp.array(mean), jnp.array(log_std), action)
    np.testing.assert_allclose(found, gaussian.log_prob(mean, log_std, action), rtol=1e-5)
