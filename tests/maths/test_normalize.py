import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tqpo.maths import normalize

quick = settings(max_examples=40, deadline=None)


@quick
@given(seed=st.integers(0, 10_000), parts=st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_merging_parts_equals_the_whole(seed, parts):
    rng = np.random.default_rng(seed)
    moments, seen = normalize.init(3), []
    for i, n in enumerate(parts):
        batch = rng.normal(i, 1 + i, (n, 2, 3)).astype(np.float32)  # two leading axes; the parts differ
        moments, seen = normalize.merge(moments, jnp.array(batch)), [*seen, batch.reshape(-1, 3)]
    whole = np.concatenate(seen).astype(float)
    assert moments.count == len(whole)
    assert np.allclose(moments.mean, whole.mean(0), rtol=1e-4, atol=1e-4)
    assert np.allclose(moments.var, whole.var(0), rtol=1e-4, atol=1e-4)


def test_float32_is_sound_at_a_billion_samples():
    """A batch whose mean is off by 1 weighs 12,000/10⁹: the mean moves by 1.2e-5, the variance by as much."""
    moments = normalize.Moments(jnp.zeros(1), jnp.ones(1), jnp.array(1e9))
    merged = jax.jit(normalize.merge)(moments, jnp.array(np.random.default_rng(0).normal(1, 1, (12_000, 1))))
    batch_mean = 1.0
    assert np.isclose(merged.mean[0], 1.2e-5 * batch_mean, rtol=0.05)
    assert np.isclose(merged.var[0] - 1, 1.2e-5, rtol=0.1)
    assert merged.count == np.float32(1e9 + 12_000)


def test_a_large_offset_does_not_eat_the_variance():
    """E[x²] − E[x]² would lose everything: 10⁸ against a variance of 1 in float32."""
    rng, moments = np.random.default_rng(0), normalize.init(())
    for _ in range(50):
        moments = normalize.merge(moments, jnp.array(1e4 + rng.normal(size=1000), jnp.float32))
    assert np.isclose(moments.var, 1, rtol=0.02)


def test_normalize_by_hand():
    moments = normalize.Moments(jnp.array([1.0, 5.0]), jnp.array([4.0, 0.0]), jnp.array(10.0))
    assert normalize.normalize(moments, jnp.array([5.0, 5.0])).tolist() == [2, 0]
    assert normalize.normalize(moments, jnp.array([-99.0, 6.0])).tolist() == [-10, 10]  # 1/√1e-6 is clipped
    assert normalize.normalize(moments, jnp.array([5.0, 5.0]), clip=1.0).tolist() == [1, 0]


def test_before_any_data_only_the_clip_acts():
    assert normalize.normalize(normalize.init(2), jnp.array([3.0, 50.0])).tolist() == [3, 10]
