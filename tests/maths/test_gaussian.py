import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tqpo.maths import gaussian

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 10_000)


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


@quick
@given(seeds)
def test_log_prob_and_entropy_against_scipy(seed):
    mean, log_std, x = draw(seed, 3, 5, 2)
    normal = stats.norm(mean, np.exp(log_std))
    assert np.allclose(gaussian.log_prob(mean, log_std, x), normal.logpdf(x).sum(-1), rtol=1e-4, atol=1e-4)
    assert np.allclose(gaussian.entropy(jnp.array(log_std)), normal.entropy().sum(-1), rtol=1e-5, atol=1e-5)


@quick
@given(seeds)
def test_kl_is_the_mean_log_ratio(seed):
    """Gauss–Hermite quadrature of E_p[log p − log q], exact for the quadratic inside."""
    mean_p, log_std_p, mean_q, log_std_q = 0.5 * draw(seed, 4, 1)
    node, weight = np.polynomial.hermite_e.hermegauss(8)
    x = mean_p + np.exp(log_std_p) * node
    gap = stats.norm.logpdf(x, mean_p, np.exp(log_std_p)) - stats.norm.logpdf(x, mean_q, np.exp(log_std_q))
    want = (weight * gap).sum() / weight.sum()
    got = gaussian.kl(*map(jnp.array, (mean_p, log_std_p, mean_q, log_std_q)))
    assert got >= -1e-6
    assert np.isclose(got, want, rtol=1e-4, atol=1e-5)


def test_kl_to_itself_is_zero():
    mean, log_std = jnp.array(draw(0, 2, 5))
    assert gaussian.kl(mean, log_std, mean, log_std) == 0


def test_samples_have_the_distribution():
    mean, log_std = jnp.array([1.0, -2.0]), jnp.array([0.5, -1.0])
    x = gaussian.sample(jax.random.key(0), jnp.tile(mean, (20_000, 1)), log_std)
    for i in range(2):
        assert stats.kstest(x[:, i], stats.norm(mean[i], np.exp(log_std[i])).cdf).pvalue > 0.01
