"""The sequential test against quadrature, exact enumeration and simulation."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from tqpo.errors import ConfigError
from tqpo.maths import sequential


@pytest.mark.parametrize(("k", "n", "q"), [(18, 20, 0.8), (95, 100, 0.9), (3, 10, 0.5), (0, 4, 0.6), (40, 40, 0.9)])
def test_the_evidence_is_the_mixture_of_likelihood_ratios(k, n, q):
    a, b = sequential.prior(q)
    prior = stats.beta(a, b)

    def ratio(theta):
        return (theta / q) ** k * ((1 - theta) / (1 - q)) ** (n - k) * prior.pdf(theta) / prior.sf(q)

    expected, _ = integrate.quad(ratio, q, 1)
    assert math.exp(sequential.evidence(k, n, q, (a, b))) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("p", [0.9, 0.85])
def test_the_evidence_does_not_grow_on_average_where_the_claim_is_false(p):
    """E[M_n] under p ≤ q by summing over all k."""
    n = 60
    k = np.arange(n + 1)
    mean = np.sum(stats.binom.pmf(k, n, p) * np.exp(sequential.evidence(k, n, 0.9, sequential.prior(0.9))))
    assert mean == pytest.approx(1, rel=1e-9) if p == 0.9 else mean < 1


@pytest.mark.parametrize("level", [0.05, 0.5, 0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("rate", [0.3, 0.9, 0.97, 1.0])
@pytest.mark.parametrize("n", [5, 40, 3000])
def test_what_is_ruled_out_is_an_interval_up_to_its_low_end(level, rate, n):
    k, beta = round(rate * n), sequential.prior(level)
    low = sequential.interval(k, n, level, 0.95).low
    q = np.linspace(0.001, k / n - 1e-9, 400)
    against = sequential.evidence(k, n, q, beta)
    assert np.all(np.diff(against) <= 1e-9 * np.abs(against[1:]) + 1e-9)
    assert np.all((against >= math.log(20)) == (q <= low))


def test_a_level_is_certified_when_the_low_end_reaches_it_and_refuted_when_the_high_end_falls_below_it():
    rng = np.random.default_rng(0)
    for p in (0.8, 0.88, 0.92, 0.97):
        outcomes = rng.random(4000) < p
        word, k, n = sequential.decide(outcomes, 0.9, 0.95)
        assert (k, n) == (outcomes[:n].sum(), n)
        found = sequential.interval(k, n, 0.9, 0.95)
        before = sequential.interval(k - int(outcomes[n - 1]), n - 1, 0.9, 0.95)
        assert (word == "certified") == (found.low >= 0.9)
        assert (word == "refuted") == (found.high <= 0.9)
        assert before.low < 0.9 < before.high


def test_deciding_in_parts_is_deciding_at_once():
    outcomes = np.random.default_rng(1).random(5000) < 0.92
    whole, so_far = sequential.decide(outcomes, 0.9, 0.95), None
    for part in np.array_split(outcomes, 37):
        so_far = sequential.decide(part, 0.9, 0.95, so_far)
        if so_far.word != "undecided":
            break
    assert so_far == whole


def test_boundaries_are_where_it_decides():
    enough, few = sequential.boundaries(0.9, 0.95, 300)
    for n in (1, 30, 81, 82, 150, 300):
        for k in range(n + 1):
            found = sequential.interval(k, n, 0.9, 0.95)
            assert (k >= enough[n - 1]) == (found.low >= 0.9)
            assert (k <= few[n - 1]) == (found.high <= 0.9)


def test_false_certificates_and_coverage_at_every_time():
    """At the level itself, the worst case: by exact recursion over the counts of all paths, not by simulation."""
    for level in (0.8, 0.9, 0.97):
        enough, few = sequential.boundaries(level, 0.95, 1500)
        for stops in (lambda k, n: k >= enough[n - 1], lambda k, n: k <= few[n - 1]):  # noqa: B023
            mass, stopped = np.ones(1), 0.0  # Pr[k successes and not stopped]
            for n in range(1, 1501):
                mass = np.append(mass, 0) * (1 - level) + np.append(0, mass) * level
                out = stops(np.arange(n + 1), n)
                stopped += mass[out].sum()
                mass = np.where(out, 0, mass)
            assert 0.005 < stopped <= 0.05


def test_more_needed_is_where_the_same_rate_would_tell():
    more = sequential.more_needed(912, 1000, 0.9, 0.95)
    n = 1000 + more
    assert sequential.interval(round(0.912 * n), n, 0.9, 0.95).low == pytest.approx(0.9, abs=2e-4)
    assert sequential.more_needed(900, 1000, 0.9, 0.95) is None
    assert sequential.more_needed(0, 0, 0.9, 0.95) == 82


def test_the_front_is_safest_first_with_rising_returns():
    assert sequential.front([0.95, 0.99, 0.9, 0.97], [5, 4, 7, 3]) == [1, 0, 2]
    assert sequential.front([0.9, 0.9], [1, 2]) == [1]
    assert sequential.fixed_sequence([1, 0, 2, 3], lambda i: i != 2) == [1, 0]


@pytest.mark.parametrize(("level", "confidence", "name"), [(0, 0.9, "safety"), (0.9, 1, "confidence")])
def test_levels_are_probabilities(level, confidence, name):
    with pytest.raises(ConfigError, match=f"{name} = "):
        sequential.interval(1, 2, level, confidence)
