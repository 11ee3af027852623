"""The unit that costs are counted in changes nothing: not λ, not the policy."""

import numpy as np
import pytest

from tqpo.training import loop
from tqpo.training.job import Job

FACTOR = 1024  # a power of two: nothing is rounded
SETTINGS = {"n_envs": 2, "n_steps": 64, "minibatches": 2, "epochs": 2, "hidden": (8,), "step_window": 128}
ITERATIONS = 5


def curves(folder, algo, factor, **changes):
    """Metrics of a run whose costs and limits are `factor` times as large."""
    cost_fn = "fakes:effort" if factor == 1 else "fakes:effort_in_small_units"
    job = Job(
        task="fakes:long",
        algo=algo,
        cost_fn=cost_fn,
        cost_limit=60.0 * factor,
        steps=ITERATIONS * 128,
        snapshots=1,
        settings={k: v for k, v in SETTINGS.items() if k != "step_window" or algo == "tqpo"} | changes,
    )
    with loop.train(job, folder, loop.Options(quiet=True)) as run:
        return run.metrics()


@pytest.mark.parametrize(
    "algo", ["tqpo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qcpo", "ppo-lag", "budget"))]
)
def test_costs_in_other_units_train_the_same_policy(algo, tmp_path):
    one, many = (curves(tmp_path / str(factor), algo, factor) for factor in (1, FACTOR))
    assert len(np.unique(one["multiplier"])) > 2  # λ moves
    assert one.keys() == many.keys()
    for name, values in one.items():
        if name.startswith("episode_cost"):  # which the file rounds
            np.testing.assert_allclose(FACTOR * values, many[name], rtol=1e-6)
        else:
            np.testing.assert_array_equal(values, many[name], err_msg=name)


@pytest.mark.slow
def test_a_scale_that_is_given_counts(tmp_path):
    given, usual = curves(tmp_path / "given", "tqpo", 1, cost_scale=40.0), curves(tmp_path / "usual", "tqpo", 1)
    np.testing.assert_array_equal(given["multiplier"], usual["multiplier"])  # 60 / 1.5
