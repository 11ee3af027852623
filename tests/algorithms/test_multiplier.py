import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tqpo.algorithms import dual, ppo, tqpo
from tqpo.algorithms.dual import Tilt
from tqpo.maths.quantile import window_init, window_push

quick = settings(max_examples=50, deadline=None)
DELTA = 0.1


def filled(values, size=100):
    return window_push(window_init(size), jnp.asarray(values, float), jnp.ones(len(values), bool))


def test_share_below_by_hand():
    assert tqpo.share_below(window_init(4), 15.0) == 0
    assert tqpo.share_below(filled([14.0, 15.0, 16.0, 3.0]), 15.0) == 0.5  # d itself is not below d


def test_share_below_of_two_constraints():
    windows = jax.tree.map(lambda *x: jnp.stack(x), filled([1.0, 2.0], 5), filled([1.0, 2.0, 3.0], 5))
    assert tqpo.share_below(windows, jnp.array([2.0, 4.0])).tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        (Tilt.ADAPTIVE, (0.6 / 1.1, 0.6 / 1.1)),
        (Tilt.NONE, (1, 1)),
        (Tilt.FIXED, (0.2, 0.8)),
        (Tilt.RELEASED, (0.1 / 1.1, 1)),
    ],
)
def test_every_kind_by_hand_at_a_share_of_one_half(kind, want):
    assert np.allclose(tqpo.tilt_rates(kind, 0.5, DELTA), want)


def test_kinds_share_one_program():
    kinds = jnp.array([int(k) for k in Tilt])
    together = jax.jit(jax.vmap(lambda k: jnp.stack(tqpo.tilt_rates(k, 0.25, DELTA))))(kinds)
    apart = jnp.stack([jnp.stack(tqpo.tilt_rates(k, 0.25, DELTA)) for k in Tilt])
    assert jnp.allclose(together, apart)


@quick
@given(share=st.floats(0, 1), delta=st.floats(0.01, 1))
def test_adaptive_tilt_stays_in_its_bounds(share, delta):
    up, down = tqpo.tilt_rates(Tilt.ADAPTIVE, share, delta)
    lowest = delta / (1 + delta)
    assert lowest - 1e-6 <= min(up, down) <= max(up, down) <= 1 + 1e-6
    assert np.isclose(up + down, (1 + 2 * delta) / (1 + delta), atol=1e-6)


def test_the_tilt_really_moves_while_its_window_fills_and_after():
    """The released window of 100 is read only beyond 100 entries: its tilt never moves."""
    window, ups = window_init(100), []
    for i in range(250):  # unsafe for 50 iterations, safe from then on
        window = window_push(window, jnp.array([30.0 if i < 50 else 5.0]), jnp.array([True]))
        ups.append(float(tqpo.tilt_rates(Tilt.ADAPTIVE, tqpo.share_below(window, 15.0), DELTA)[0]))
    assert np.allclose(ups[:50], 0.1 / 1.1)
    assert (np.diff(ups[49:150]) > 0).all()  # until the last unsafe one has left
    assert np.allclose(ups[149:], 1)
    released = tqpo.tilt_rates(Tilt.RELEASED, tqpo.share_below(window, 15.0), DELTA)
    assert np.allclose(released, (0.1 / 1.1, 1))


def test_step_by_hand():
    """q = 35, d = 15, c = 10: the excess is 2, times K = 0.1 and η₊ = 0.5; below d η₋ = 0.25 counts."""
    step = jax.jit(dual.multiplier_step)
    assert jnp.isclose(step(0.5, 35.0, 15.0, 0.5, 0.25, 0.1, 10.0), 0.6)
    assert jnp.isclose(step(0.5, 5.0, 15.0, 0.5, 0.25, 0.1, 10.0), 0.475)
    assert jnp.isclose(step(0.5, 1e6, 15.0, 1.0, 1.0, 0.1, 10.0), 1.5)  # at most 10 limits at once
    assert step(0.5, 1e6, 15.0, 1.0, 1.0, 0.1, 10.0, max_multiplier=1.25) == 1.25


@quick
@given(lam=st.floats(0, 100), q=st.floats(-1e4, 1e4), d=st.floats(0, 100), eta=st.floats(0, 1))
def test_multiplier_is_never_negative_and_moves_with_the_violation(lam, q, d, eta):
    new = dual.multiplier_step(lam, q, d, eta, eta, 0.1, 10.0)
    assert new >= 0
    assert (new >= jnp.float32(lam)) if q >= d else (new <= jnp.float32(lam))


def test_step_of_a_vector_is_entry_by_entry():
    lam, q, d = jnp.array([1.0, 2.0]), jnp.array([30.0, 3.0]), jnp.array([15.0, 5.0])
    together = dual.multiplier_step(lam, q, d, 0.3, 0.7, 0.1, 10.0)
    apart = [dual.multiplier_step(*entry, 0.3, 0.7, 0.1, 10.0) for entry in zip(lam, q, d, strict=True)]
    assert together.tolist() == [float(x) for x in apart]


def test_penalised_by_hand():
    """(4 + 1·(−1) + 2·(−3))/(1 + 3) = −0.75; with λ = 0 the reward's advantage is left alone."""
    adv = ppo.penalised(jnp.full((2, 3), 4.0), jnp.tile(jnp.array([-1.0, -3.0]), (2, 3, 1)), jnp.array([1.0, 2.0]))
    assert adv.shape == (2, 3)
    assert (adv == -0.75).all()
    assert ppo.penalised(jnp.array(4.0), jnp.array([-1.0]), jnp.zeros(1)) == 4


def test_tracking_by_hand():
    assert dual.track_quantile(10.0, 20.0, 0.25) == 12.5
    assert dual.track_quantile(10.0, 20.0, 1.0) == 20.0


def test_advantage_by_hand():
    """ε = 0.1 and scale 0.1: each trajectory at or above q loses 1, the others nothing."""
    costs = jnp.array([1.0, 5.0, 9.0])
    assert tqpo.quantile_advantage(costs, 5.0, 0.1).tolist() == [0, -1, -1]
    with_baseline = tqpo.quantile_advantage(costs, 5.0, 0.1, baseline=jnp.full(3, 0.25))
    assert with_baseline.tolist() == [0.25, -0.75, -0.75]
    assert jnp.allclose(tqpo.quantile_advantage(costs, 5.0, 0.05, scale=0.5), jnp.array([0, -10, -10]))
