"""The surrogate's sign and size, on a problem with a closed form.

Policy a ~ N(θ, σ²), cost C = a + noise, so C ~ N(θ, s²) with s² = σ² + ρ². Then q(θ) = θ + z·s with z = Φ⁻¹(1
− ε), ∇q = 1, f(q) = φ(z)/s, and F(x; θ) = Φ((x − θ)/s). The score is ∇log π = (a − θ)/σ².
`quantile_advantage` drops f, so its policy gradient is −(scale/ε)·f(q)·∇q.
"""

import jax
import numpy as np
import pytest
from scipy import stats

from tqpo.algorithms.tqpo import exceedance, quantile_advantage
from tqpo.maths import distribution

THETA, SIGMA, NOISE = 0.7, 0.5, 1.2
SPREAD = np.hypot(SIGMA, NOISE)
SAMPLES = 400_000


def problem(outage_prob):
    z = stats.norm.ppf(1 - outage_prob)
    quantile, density = THETA + z * SPREAD, stats.norm.pdf(z) / SPREAD
    return quantile, density


@pytest.fixture(scope="module")
def samples():
    """Actions' scores, by differentiating the library's own log-density, and their costs."""
    rng = np.random.default_rng(0)
    action = rng.normal(THETA, SIGMA, SAMPLES).astype(np.float32)
    log_std = np.log([SIGMA])
    score = jax.vmap(jax.grad(lambda theta, a: distribution.log_prob(theta[None], log_std, a[None])), (None, 0))(
        THETA, action
    )
    return np.asarray(score, float), action + rng.normal(0, NOISE, SAMPLES)


def estimate(advantage, score):
    terms = np.asarray(advantage, float) * score
    return terms.mean(), terms.std() / np.sqrt(len(terms))


@pytest.mark.parametrize("outage_prob", [0.05, 0.1, 0.5])
def test_surrogate_gradient_is_minus_density_times_quantile_gradient(samples, outage_prob):
    score, cost = samples
    quantile, density = problem(outage_prob)
    mean, error = estimate(quantile_advantage(cost, quantile, outage_prob, scale=0.1), score)
    want = -0.1 / outage_prob * density * 1.0  # −(scale/ε)·f(q)·∇q
    assert abs(mean - want) < 4 * error
    assert abs(want) > 10 * error  # the check can tell the sign


@pytest.mark.parametrize("outage_prob", [0.05, 0.1, 0.5])
def test_finite_differences_of_the_distribution_agree(outage_prob):
    """∇F(q) = −f(q)·∇q, which the surrogate estimates up to scale/ε."""
    quantile, density = problem(outage_prob)
    step = 1e-5
    up, down = (stats.norm.cdf(quantile, THETA + sign * step, SPREAD) for sign in (1, -1))
    assert np.isclose((up - down) / (2 * step), -density, rtol=1e-6)


@pytest.mark.parametrize("outage_prob", [0.05, 0.1, 0.5])
def test_the_printed_sign_points_the_other_way(samples, outage_prob):
    """Paper Eqs. 11 and 16 print −λ·I(C ≤ q): ascending that *raises* the quantile."""
    score, cost = samples
    quantile, density = problem(outage_prob)
    printed = -0.1 / outage_prob * (cost <= quantile)
    mean, error = estimate(printed, score)
    want = -0.1 / outage_prob * density
    assert abs(mean - want) > 10 * error
    assert abs(mean + want) < 4 * error


def test_a_baseline_keeps_the_mean_and_cuts_the_variance(samples):
    """With p = Pr[C ≥ q] = ε the estimate's difference has mean zero, and the variance falls."""
    score, cost = samples
    outage_prob = 0.5  # where a baseline matters most: the indicator is on for half of the samples
    quantile, _ = problem(outage_prob)
    plain = np.asarray(quantile_advantage(cost, quantile, outage_prob))
    based = np.asarray(quantile_advantage(cost, quantile, outage_prob, baseline=np.full(cost.shape, outage_prob)))
    shift, error = estimate(based - plain, score)
    assert abs(shift) < 4 * error
    assert (based * score).var() < 0.6 * (plain * score).var()
    assert np.isclose(exceedance(cost, quantile).mean(), outage_prob, atol=0.01)
