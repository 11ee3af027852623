import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tqpo.maths import weibull

quick = settings(max_examples=40, deadline=None)
LEVELS = (jnp.arange(25) + 0.5) / 25
positive = st.floats(0.2, 4.0)


@quick
@given(scale=st.floats(0.1, 50.0), shape=positive, level=st.floats(0.01, 0.99))
def test_against_scipy(scale, shape, level):
    reference = stats.weibull_min(shape, scale=scale)
    x = reference.ppf(level)
    assert np.isclose(weibull.quantile(level, scale, shape), x, rtol=1e-4)
    assert np.isclose(weibull.log_pdf(x, scale, shape), reference.logpdf(x), rtol=1e-3, atol=1e-3)


@quick
@given(scale=st.floats(0.1, 50.0), shape=positive)
def test_tail_loss_is_zero_exactly_at_its_own_quantiles(scale, shape):
    quantiles = weibull.quantile(LEVELS, scale, shape)
    loss = jax.value_and_grad(weibull.tail_loss, argnums=(0, 1))
    value, slope = loss(jnp.array(scale), jnp.array(shape), quantiles, LEVELS)
    assert value < 1e-9
    assert max(map(abs, slope)) < 1e-3
    assert loss(jnp.array(2 * scale), jnp.array(shape), quantiles, LEVELS)[0] > 0.1  # ½ log²2 = 0.24


def test_tail_loss_sees_only_the_tail_by_hand():
    """Scale 1, shape 1: at level τ the fit is log(−log(1 − τ)), the target log 1; 0.7 and 0.9 count."""
    levels, quantiles = jnp.array([0.1, 0.7, 0.9]), jnp.array([[1.0, 1.0, 1.0]])
    want = 0.25 * (np.log(-np.log(0.3)) ** 2 + np.log(-np.log(0.1)) ** 2)
    assert np.isclose(weibull.tail_loss(jnp.ones(1), jnp.ones(1), quantiles, levels), want)
    spoiled = jnp.array([[1e-9, 1.0, 1.0]])  # below the tail: no influence
    assert np.isclose(weibull.tail_loss(jnp.ones(1), jnp.ones(1), spoiled, levels), want)


def test_tail_loss_leaves_its_targets_alone():
    slope = jax.grad(weibull.tail_loss, argnums=2)(jnp.ones(1), jnp.ones(1), jnp.ones((1, 25)), LEVELS)
    assert not slope.any()


def test_tail_loss_survives_quantiles_that_underflowed():
    slope = jax.grad(weibull.tail_loss, argnums=(0, 1))(jnp.ones(1), jnp.ones(1), jnp.zeros((1, 25)), LEVELS)
    assert np.isfinite(slope).all()


def test_density_ratio_by_change_of_variable():
    """Cost to go W tomorrow and γW today (c = 0), a Weibull of scale γβ: the densities agree, ℓ = 0."""
    z, gamma = jnp.array([0.5, 1.0, 2.0]), 0.9
    now, later = (gamma * jnp.ones(3), 1.5 * jnp.ones(3)), (jnp.ones(3), 1.5 * jnp.ones(3))
    assert np.allclose(weibull.log_density_ratio(z, 0.0, now, later, gamma), 0, atol=1e-6)
    assert weibull.log_density_ratio(z, 1.0, now, later, gamma)[:2].tolist() == [0, 0]  # nothing left to pay


@quick
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=3))
def test_weights_stay_between_a_half_and_three_halves(ratios):
    weights = weibull.density_ratio_weight(jnp.array(ratios), jnp.zeros(len(ratios), bool))
    assert ((weights >= 0.5) & (weights <= 1.5)).all()


def test_weights_by_hand():
    """ℓ = (−1, 1): mean 0, std 1, so ±1/5. One outlier of 101 lies 10 std out: 2 is clipped to ½."""
    assert np.allclose(weibull.density_ratio_weight(jnp.array([-1.0, 1.0]), jnp.zeros(2, bool)), [0.8, 1.2])
    assert np.allclose(weibull.density_ratio_weight(jnp.array([-1.0, 1.0]), jnp.array([True, False])), [1, 1.2])
    outlier = jnp.zeros(101).at[0].set(7.0)
    assert weibull.density_ratio_weight(outlier, jnp.zeros(101, bool))[0] == 1.5
    assert (weibull.density_ratio_weight(jnp.ones(5), jnp.zeros(5, bool)) == 1).all()
