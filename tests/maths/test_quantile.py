import collections
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tqpo.maths import quantile

quick = settings(max_examples=40, deadline=None)
quantile_jit = jax.jit(quantile.empirical_quantile)


@pytest.mark.parametrize("n", [10, 20, 100, 1000])
@pytest.mark.parametrize("safety", [0.5, 0.7, 0.8, 0.9, 0.95, 0.99])
def test_usual_levels_give_the_order_statistic_numpy_gives(n, safety):
    values = np.random.default_rng(n).normal(size=n).astype(np.float32)
    want = np.quantile(values.astype(float), safety, method="inverted_cdf")
    assert quantile_jit(values, safety) == np.float32(want)
    assert quantile_jit(values, 1 - jnp.float32(1 - safety)) == np.float32(want)  # 1 − ε, rounded in float32


@quick
@given(data=st.data(), per_mille=st.integers(1, 999))
def test_is_the_smallest_value_with_enough_mass(data, per_mille):
    """Few distinct values, so ties are common; a mask hides some. The level is exact as a fraction."""
    values = np.array(data.draw(st.lists(st.integers(0, 6), min_size=40, max_size=40)), np.float32)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=40, max_size=40)))
    mask[data.draw(st.integers(0, 39))] = True
    n = int(mask.sum())
    want = sorted(values[mask])[math.ceil(Fraction(per_mille, 1000) * n) - 1]
    assert quantile_jit(values, per_mille / 1000, mask) == want


@quick
@given(per_mille=st.integers(0, 1000))
def test_agrees_with_numpy_where_its_product_is_not_rounded_up(per_mille):
    values = np.random.default_rng(0).normal(size=128)  # 128·p is exact in binary whenever p is
    level = per_mille / 1024
    assert quantile_jit(values, level) == np.float32(np.quantile(values, level, method="inverted_cdf"))


def test_double_precision(x64):
    values = jnp.arange(1.0, 101.0)
    assert [float(quantile.empirical_quantile(values, p)) for p in (0.07, 0.55, 0.9, 0.95)] == [7, 55, 90, 95]


def test_levels_may_be_an_array_and_runs_a_batch():
    values = jnp.arange(1.0, 11.0)
    assert quantile.empirical_quantile(values, jnp.array([0.1, 0.5, 1.0])).tolist() == [1, 5, 10]
    rows = jax.vmap(quantile.empirical_quantile)(jnp.stack([values, 2 * values]), jnp.array([0.5, 0.9]))
    assert rows.tolist() == [5, 18]


def test_nothing_to_count_gives_zero():
    none = jnp.zeros(3, bool)
    assert quantile.empirical_quantile(jnp.ones(3), 0.9, none) == 0
    assert quantile.safety_probability(jnp.ones(3), 2.0, none) == 0


def test_safety_probability_counts_the_limit_as_safe():
    costs, mask = jnp.array([15.0, 16.0, 0.0, 99.0]), jnp.array([True, True, True, False])
    assert quantile.safety_probability(costs, 15.0) == 0.5
    assert jnp.isclose(quantile.safety_probability(costs, 15.0, mask), 2 / 3)


def huber_by_loops(quantiles, targets, levels, kappa):
    total = []
    for q, level in zip(quantiles, levels, strict=True):
        for y in targets:
            u = y - q
            huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
            total.append(abs(level - (u < 0)) * huber / kappa)
    return np.mean(total)


@quick
@given(seed=st.integers(0, 1000), kappa=st.sampled_from([0.1, 1.0, 3.0]))
def test_quantile_huber_against_loops(seed, kappa):
    rng = np.random.default_rng(seed)
    quantiles, targets = rng.normal(size=(4, 5)), 2 * rng.normal(size=(4, 3))
    levels = (np.arange(5) + 0.5) / 5
    rows = zip(quantiles, targets, strict=True)
    want = np.mean([huber_by_loops(q, y, levels, kappa) for q, y in rows])
    got = quantile.quantile_huber_loss(jnp.array(quantiles), jnp.array(targets), jnp.array(levels), kappa)
    assert np.isclose(got, want, rtol=1e-5)


def test_quantile_huber_is_least_at_the_quantile():
    """Regression onto samples of U(0, 1) finds the level itself."""
    samples, levels = jnp.linspace(0, 1, 1001), jnp.array([0.1, 0.5, 0.9])
    slope = jax.grad(quantile.quantile_huber_loss)(levels, samples, levels, 1e-3)
    assert jnp.abs(slope).max() < 1e-3


push = jax.jit(quantile.window_push)


@quick
@given(
    batches=st.lists(st.lists(st.tuples(st.integers(-9, 9), st.booleans()), min_size=6, max_size=6), max_size=8),
    size=st.sampled_from([1, 4, 10]),
)
def test_window_is_a_bounded_queue(batches, size):
    window, queue = quantile.window_init(size), collections.deque(maxlen=size)
    for batch in batches:
        values, mask = zip(*batch, strict=True)
        window = push(window, jnp.array(values, float), jnp.array(mask))
        queue.extend(v for v, ok in batch if ok)
    assert window.count == len(queue)
    assert window.values[quantile.window_mask(window)].tolist() == list(queue)


def test_window_ignores_what_the_mask_hides_even_nan():
    window = push(quantile.window_init(3), jnp.array([1.0, jnp.nan]), jnp.array([True, False]))
    assert window.values.tolist() == [0, 0, 1]


def test_windows_batch():
    windows = jax.vmap(lambda _: quantile.window_init(3))(jnp.arange(2))
    new, mask = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[True, True], [False, True]])
    windows = jax.vmap(quantile.window_push)(windows, new, mask)
    assert quantile.window_mask(windows).tolist() == [[False, True, True], [False, False, True]]
    q = jax.vmap(quantile.empirical_quantile, (0, None, 0))(windows.values, 0.5, quantile.window_mask(windows))
    assert q.tolist() == [1, 4]


@quick
@given(st.lists(st.integers(0, 60), min_size=40, max_size=40), st.integers(0, 60))
def test_at_the_safe_share_the_quantile_marks_the_unsafe(costs, limit):
    """At level Pr[C ≤ d], I(C > q̂) = I(C > d), whatever the costs: what `tqpo.aimed_level` rests on."""
    costs = np.array(costs, float)
    share = quantile.safety_probability(costs, limit)
    q = float(quantile.empirical_quantile(costs, share))
    if share > 0:  # with none safe no quantile lies below the limit
        np.testing.assert_array_equal(costs > q, costs > limit)
