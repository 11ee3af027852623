"""The compiled program: groups, chunks, equal runs, and the bundle of a run that failed."""

import jax
import numpy as np
import pytest
from probes import Counter, Poison
from small import small

from tqpo.algorithms.dual import Tilt
from tqpo.algorithms.settings import replace
from tqpo.errors import ConfigError
from tqpo.training import program
from tqpo.training.program import Group

ENV = Counter()
CONFIG = small("fast", "tqpo", baseline="separate", cost_limit=2.0, cost_scale=1.0, delta=0.1)
VARIANTS = [replace(CONFIG, tilt=int(t), safety=s) for t, s in zip(Tilt, (0.9, 0.8, 0.7, 0.6), strict=True)]
GROUP = Group(ENV, "tqpo", (*VARIANTS, VARIANTS[0]), (0, 1, 2, 3, 0))  # the last is the first again


def equal(a, b):
    same = jax.tree.map(lambda x, y: bool((jax.numpy.asarray(x) == jax.numpy.asarray(y)).all()), a, b)
    return all(jax.tree.leaves(same))


def close(a, b):
    """Up to the order of sums; Adam's first steps enlarge a rounding error to a part of the step size."""

    def check(x, y):
        if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-4)

    jax.tree.map(check, a, b)


def test_same_seeds_same_runs_and_other_seeds_other_runs():
    one, metrics = program.run(GROUP, 4, chunk=4)
    two, again = program.run(GROUP, 4, chunk=4)
    assert equal(one, two)
    assert equal(metrics, again)
    first, same, other = (program.take_run(one, i).learner.network for i in (0, 4, 1))
    assert equal(first, same)
    assert not equal(first, other)


def test_all_tilts_and_levels_in_one_program_and_each_as_if_alone():
    state, metrics = program.run(GROUP, 4, chunk=4)
    assert metrics["multiplier"].shape == (4, 5, 1)
    assert metrics["return_mean"].shape == (4, 5)
    np.testing.assert_allclose(metrics["tilt_up"][-1, Tilt.NONE], 1.0)
    np.testing.assert_allclose(metrics["tilt_up"][-1, Tilt.FIXED], 0.2, rtol=1e-6)
    np.testing.assert_allclose(metrics["tilt_up"][-1, Tilt.RELEASED], 0.1 / 1.1, rtol=1e-6)
    for i in (0, 3):
        alone, its_metrics = program.run(Group(ENV, "tqpo", (VARIANTS[i],), (i,)), 4, chunk=4)
        close(program.take_run(alone, 0).learner.network, program.take_run(state, i).learner.network)
        np.testing.assert_allclose(its_metrics["loss"][:, 0], metrics["loss"][:, i], rtol=1e-3)
        np.testing.assert_allclose(its_metrics["multiplier"][:, 0], metrics["multiplier"][:, i], rtol=1e-5)


def test_chunks_change_nothing_and_a_run_can_go_on():
    group = Group(ENV, "tqpo", (CONFIG,), (0,))
    whole, metrics = program.run(group, 4, chunk=4)
    seen = []
    half, first = program.run(group, 2, chunk=2, on_chunk=lambda c: seen.append(c.iteration))
    rest, second = program.run(group, 2, chunk=2, state=half, max_skips=None)  # donates `half`
    assert seen == [2]
    assert equal(whole, rest)
    for name, x in metrics.items():
        np.testing.assert_array_equal(x, np.concatenate([first[name], second[name]]))


def test_what_does_not_fill_a_chunk_is_done_in_single_steps():
    seen = []
    program.run(Group(ENV, "tqpo", (CONFIG,), (0,)), 4, chunk=2, on_chunk=lambda c: seen.append(c.length))
    program.run(Group(ENV, "tqpo", (CONFIG,), (0,)), 3, chunk=2, on_chunk=lambda c: seen.append(c.length))
    assert seen == [2, 2, 2, 1]


def test_the_host_can_stop_between_chunks():
    group = Group(ENV, "tqpo", (CONFIG,), (0,))
    _, metrics = program.run(group, 8, chunk=2, on_chunk=lambda c: c.iteration >= 4)
    assert len(metrics["loss"]) == 4


def test_a_group_has_one_structure():
    other = replace(CONFIG, epochs=3)
    with pytest.raises(ConfigError, match="structure"):
        Group(ENV, "tqpo", (CONFIG, other), (0, 1))
    with pytest.raises(ConfigError, match="seeds"):
        Group(ENV, "tqpo", (CONFIG,), (0, 1))
    with pytest.raises(ConfigError, match="safety"):
        Group(ENV, "tqpo", (replace(CONFIG, safety=2.0),), (0,))


def test_too_many_bad_updates_stop_the_run_with_what_reproduces_it():
    """NaN from step 20 on: iterations 2, 3, … skip all 4 updates each; more than 6 in a row is too many."""
    group = Group(Poison(bad=20), "tqpo", (CONFIG, VARIANTS[1]), (7, 8))
    with pytest.raises(program.NonFiniteError, match=r"seed 7 .run 0., seed 8") as caught:
        program.run(group, 8, chunk=2, max_skips=6)
    first, second = caught.value.failures
    assert (first.seed, second.config, first.iteration, first.iterations) == (7, VARIANTS[1], 2, 2)
    np.testing.assert_array_equal(first.metrics["skipped_in_a_row"], [4, 8])
    alone = jax.tree.map(lambda x: x[None], first.state)
    group = Group(group.env, "tqpo", (first.config,), (first.seed,))
    _, metrics = program.run(group, first.iterations, chunk=2, state=alone, max_skips=None)
    np.testing.assert_array_equal(metrics["skipped_in_a_row"][:, 0], first.metrics["skipped_in_a_row"])
