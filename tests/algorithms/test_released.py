"""One update beside the authors' released code, whose numbers for this batch are in tests/data/released.npz."""

import pathlib

import numpy as np
import pytest

from reference.released import batch, ours
from tqpo.algorithms.dual import Tilt
from tqpo.algorithms.presets import preset

FIXTURE = ours.read_fixture(pathlib.Path(__file__).parents[2] / batch.FIXTURE)
GAE = {"reward_advantage", "reward_return", "cost_return"}


def test_the_fixture_says_where_it_comes_from():
    assert all(len(commit) == 40 for commit in FIXTURE.provenance["commits"].values())
    with np.load(pathlib.Path(__file__).parents[2] / batch.FIXTURE) as file:
        for name, value in batch.inputs().items():
            np.testing.assert_allclose(file[name], value, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("algorithm", ["tqpo", "qcpo"])
def test_the_preset_released_is_the_released_code(algorithm):
    """Every number: returns, quantiles, losses, gradients, Adam's step, λ, tilt. PyTorch's standard deviation apart."""
    with ours.unbiased():
        found = ours.differences(algorithm, ours.outputs(algorithm, epochs=(1,)), FIXTURE.outputs[algorithm])
    wrong = {name: x for name, x in found.items() if not x <= ours.EQUAL}
    assert not wrong
    assert len([name for name in found if name.startswith("gradient:")]) == (15 if algorithm == "tqpo" else 19)
    assert {"loss", "constraint_loss", "multiplier", "steps:multiplier", "episode_quantile"} <= set(found)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["tqpo", "qcpo"])
def test_the_listed_differences_are_the_only_ones(algorithm):
    """The preset `paper` differs in GAE, in the quantile's index and in the tilt's window, and in what follows from them."""
    theirs = FIXTURE.outputs[algorithm]
    mine = ours.outputs(algorithm, "paper", epochs=())
    found = ours.differences(algorithm, mine, theirs)
    differ = {name for name, x in found.items() if x > ours.EQUAL}
    expected = GAE | {"episode_quantile"} | ({"steps:multiplier", "steps:tilt"} if algorithm == "tqpo" else set())
    assert differ == expected | ({"quantile_advantage"} if algorithm == "qcpo" else set())
    costs = np.sort([*batch.past_episode_costs(), *batch.inputs()["cum_cost"][batch.inputs()["done"]]])
    assert (mine["episode_quantile"], theirs["episode_quantile"]) == (costs[89], costs[90])
    again = ours.differences(algorithm, ours.outputs(algorithm, "paper", epochs=(), gae_segments=True), theirs)
    assert all(again[name] <= ours.EQUAL for name in GAE)


def test_the_standard_deviation_is_the_only_difference_without_a_switch():
    """Without N − 1 only QCPO's advantage moves, by less than its √(120/119)."""
    theirs, mine = FIXTURE.outputs["qcpo"], ours.outputs("qcpo", epochs=())
    found = ours.differences("qcpo", mine, theirs)
    assert {name for name, x in found.items() if x > ours.EQUAL} == {"quantile_advantage"}
    assert found["quantile_advantage"] < 0.005 * np.abs(theirs["quantile_advantage"]).max()


def test_the_papers_tilt_is_the_released_one_with_a_window_that_counts():
    """λ and its rates as the released code has them, were its window used from the first quantile on."""
    config = preset("paper", "tqpo", safety=0.9, cost_limit=batch.COST_LIMIT)
    assert config.dual.tilt == Tilt.ADAPTIVE
    q, delta, multiplier, expected = batch.made_up_quantiles(), 0.1, 0.5, []
    for k in range(len(q)):
        share = np.mean(q[max(0, k - 99) : k + 1] < batch.COST_LIMIT)
        excess = min(10.0, (q[k] - batch.COST_LIMIT) / 10)
        rate = (share + delta) / (1 + delta) if excess > 0 else (1 - share + delta) / (1 + delta)
        multiplier = max(0.0, multiplier + 0.1 * rate * excess)
        expected.append(multiplier)
    with ours.jax.enable_x64(True):
        found = ours.multiplier_steps(config)
    np.testing.assert_allclose(found["steps:multiplier"], expected, atol=1e-9)
