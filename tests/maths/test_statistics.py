"""Intervals against SciPy, against each other and by simulation; the verdict's words."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tqpo.errors import ConfigError
from tqpo.maths import quantile, statistics
from tqpo.maths.statistics import clopper_pearson, episodes_needed, mean_interval, quantile_interval, verdict

LEVELS = st.floats(0.02, 0.98)


@pytest.mark.parametrize("n", [1, 7, 100, 1000])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_clopper_pearson_is_scipys_exact_interval(n, confidence):
    for k in {0, 1, n // 3, n - 1, n}:
        ours = clopper_pearson(k, n, confidence)
        theirs = stats.binomtest(k, n).proportion_ci(confidence, method="exact")
        assert ours.value == k / n
        np.testing.assert_allclose((ours.low, ours.high), theirs, rtol=1e-9, atol=1e-12)


@given(st.integers(1, 400), st.data())
@settings(max_examples=60, deadline=None)
def test_more_safe_episodes_and_less_confidence_never_lower_the_lower_bound(n, data):
    k = data.draw(st.integers(0, n - 1))
    low, high = data.draw(st.floats(0.5, 0.9)), data.draw(st.floats(0.9, 0.999))
    one, more = clopper_pearson(k, n), clopper_pearson(k + 1, n)
    assert one.low < more.low
    assert one.high < more.high or one.high == 1
    narrow, wide = clopper_pearson(k, n, low), clopper_pearson(k, n, high)
    assert wide.low <= narrow.low <= narrow.value <= narrow.high <= wide.high


@pytest.mark.parametrize(("n", "p"), [(20, 0.9), (200, 0.95), (50, 0.5)])
def test_clopper_pearson_covers(n, p):
    """Exactly: the binomial weights of all outcomes whose interval holds p sum to at least the confidence."""
    k = np.arange(n + 1)
    held = [clopper_pearson(int(i), n).low <= p <= clopper_pearson(int(i), n).high for i in k]
    assert stats.binom.pmf(k, n, p)[held].sum() >= 0.95


DISTRIBUTIONS = {
    "uniform": (lambda rng, shape: rng.random(shape), lambda p: p),
    "cost": (lambda rng, shape: rng.poisson(8, shape), lambda p: stats.poisson.ppf(p, 8)),  # ties
    "two values": (lambda rng, shape: 1.0 * (rng.random(shape) < 0.08), lambda p: float(p > 0.92)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(("n", "level"), [(60, 0.9), (400, 0.95)])
def test_the_order_statistic_interval_covers(name, n, level):
    draw, true = DISTRIBUTIONS[name]
    found = [quantile_interval(x, level) for x in draw(np.random.default_rng(3), (600, n))]
    covered = np.mean([i.low <= true(level) <= i.high for i in found])
    assert covered >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 600)  # three standard errors of the simulation


def test_ranks_of_the_order_statistic_interval_by_definition():
    """l is the largest rank with Pr[B < l] ≤ α/2, u the smallest with Pr[B ≥ u] ≤ α/2."""
    for n, level in itertools.product((30, 59, 1000), (0.1, 0.5, 0.9, 0.95)):
        below = stats.binom.cdf(np.arange(-1, n + 1), n, level)  # below[r] = Pr[B < r], r = 0 … n + 1
        low = max(r for r in range(n + 2) if below[r] <= 0.025)
        high = min(r for r in range(n + 2) if 1 - below[r] <= 0.025)
        found = quantile_interval(np.arange(1, n + 1), level)
        assert found.low == (low if low >= 1 else -math.inf)
        assert found.high == (high if high <= n else math.inf)


def test_a_small_sample_cannot_bound_a_high_quantile():
    assert quantile_interval(np.arange(20), 0.95).high == math.inf
    assert math.isfinite(quantile_interval(np.arange(200), 0.95).high)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=300), LEVELS, st.integers(0, 30))
@settings(max_examples=200, deadline=None)
def test_quantile_and_probability_tell_the_same(costs, level, limit):
    costs = np.array(costs)
    probability = clopper_pearson(int((costs <= limit).sum()), len(costs))
    if abs(probability.low - level) > 1e-9:  # a tie is decided by the last digit
        assert (quantile_interval(costs, level).high <= limit) == (probability.low >= level)
    if abs(probability.high - level) > 1e-9:
        assert (quantile_interval(costs, level).low > limit) == (probability.high < level)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200), LEVELS)
@settings(max_examples=50, deadline=None)
def test_the_point_estimate_is_the_librarys_quantile(costs, level):
    ours = quantile_interval(np.array(costs), level).value
    with jax.enable_x64(True):
        assert ours == float(quantile.empirical_quantile(jnp.array(costs), level))
    if abs(level * len(costs) - round(level * len(costs))) > 1e-6:
        assert ours == np.quantile(costs, level, method="inverted_cdf")


@pytest.mark.parametrize("name", ["normal", "exponential"])
def test_the_bootstrap_interval_of_the_mean_covers(name):
    rng = np.random.default_rng(5)
    samples, true = (rng.normal(3, 2, (400, 60)), 3.0) if name == "normal" else (rng.exponential(1, (400, 60)), 1.0)
    found = [mean_interval(x, resamples=500, seed=i) for i, x in enumerate(samples)]
    covered = np.mean([i.low <= true <= i.high for i in found])
    assert 0.90 <= covered <= 0.985


def test_the_bootstrap_interval_is_scipys_up_to_the_draw():
    x = np.random.default_rng(0).exponential(2, 100)
    ours = mean_interval(x, resamples=20_000)
    theirs = stats.bootstrap((x,), np.mean, n_resamples=20_000, method="BCa", rng=1).confidence_interval
    np.testing.assert_allclose((ours.low, ours.high), theirs, atol=0.02)


def test_a_seed_fixes_the_bootstrap():
    x = np.random.default_rng(0).normal(size=50)
    assert mean_interval(x, seed=1) == mean_interval(x, seed=1) != mean_interval(x, seed=2)


def test_means_of_degenerate_samples():
    assert mean_interval(np.full(9, 2.5)) == (2.5, 2.5, 2.5)
    assert mean_interval(np.array([4.0])) == (4.0, -math.inf, math.inf)


def test_iqm_drops_a_quarter_on_each_side():
    seeds = np.array([100.0, 2, 3, 4, -100])  # of five, one goes on each side
    assert statistics.iqm(seeds) == 3
    found = statistics.iqm_interval(seeds)
    assert found.value == 3
    assert found.low < 2
    assert found.high > 4
    assert statistics.iqm_interval(seeds[:1]) == (100.0, -math.inf, math.inf)


@pytest.mark.parametrize(
    ("safe", "n", "word"),
    [(947, 1000, "meets"), (850, 1000, "misses"), (905, 1000, "cannot tell yet"), (0, 0, "cannot tell yet")],
)
def test_verdict(safe, n, word):
    found = verdict(safe, n, 0.9)
    assert found.word == word
    assert found.sentence.endswith(".")
    if n:
        assert f"{safe} of {n:,}" in found.sentence
        assert "95% confidence" in found.sentence
        assert "90%" in found.sentence


def test_verdict_says_how_many_more_episodes_settle_it():
    found = verdict(910, 1000, 0.9)
    assert found.word == "cannot tell yet"
    assert "more episodes" in found.sentence
    needed = 1000 + found.more_episodes
    assert verdict(math.ceil(0.91 * needed), needed, 0.9).word == "meets"
    assert verdict(math.floor(0.91 * (needed - 30)), needed - 30, 0.9).word == "cannot tell yet"


def test_a_share_on_the_level_is_never_settled():
    assert episodes_needed(0.9, 0.9) is None
    assert "too close to 90%" in verdict(900, 1000, 0.9).sentence


def test_even_perfect_episodes_need_a_number():
    """1 − (α/2)^{1/n} ≤ 0.1 needs n ≥ ln 0.025/ln 0.9 = 35.01."""
    assert episodes_needed(1.0, 0.9) == 36
    assert verdict(35, 35, 0.9).more_episodes == 1
    assert "about 1 more episode would" in verdict(35, 35, 0.9).sentence
    assert verdict(36, 36, 0.9).word == "meets"


@given(st.integers(1, 2000), st.data())
@settings(max_examples=150, deadline=None)
def test_the_words_never_contradict_the_printed_bounds(n, data):
    k, level = data.draw(st.integers(0, n)), data.draw(st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99]))
    found = verdict(k, n, level)
    low, high = (float(x.rstrip("%")) / 100 for x in statistics.percentages(found.probability, level))
    assert low <= found.probability.low + 1e-9
    assert high >= found.probability.high - 1e-9
    assert (low >= level - 1e-12) == (found.word == "meets")
    assert (high < level) == (found.word == "misses")


def test_wrong_arguments():
    for call in (
        lambda: clopper_pearson(5, 4),
        lambda: clopper_pearson(1, 4, 1.0),
        lambda: quantile_interval(np.ones(3), 1.0),
        lambda: verdict(1, 2, 1.2),
    ):
        with pytest.raises(ConfigError):
            call()


@pytest.mark.parametrize(
    ("cost", "limit", "text"),
    [
        (5.57, 15, "5.6"),
        (5.0, 15, "5"),
        (0.0312, 0.04, "0.0312"),
        (1234.5, 2000, "1,234"),
        (0.25, 0, "0.25"),
        (7.234, 9, "7.23"),
    ],
)
def test_costs_have_as_many_digits_as_their_limit_needs(cost, limit, text):
    assert statistics.cost_text(cost, limit) == text


@given(st.floats(0.5, 0.99), st.integers(10, 1000), st.integers(100, 100_000))
def test_what_is_held_back_is_so_many_standard_errors(level, window, episodes):
    """Of two shares by SciPy's binomial; more is held back with fewer episodes, and never all of it."""
    errors = [stats.binom(n, level).std() / n for n in (window, episodes)]
    found = statistics.held_back(level, window, episodes)
    np.testing.assert_allclose(found, min(0.6 * sum(errors) / (1 - level), 0.8))
    assert statistics.held_back(level, window, 2 * episodes) <= found <= 0.8
