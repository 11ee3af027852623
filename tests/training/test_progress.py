"""The live view: what is not known yet is not shown as a number."""

import numpy as np

from tqpo.algorithms.settings import Constraint
from tqpo.training.progress import RunProgress


def metrics(episodes):
    runs = len(episodes)
    ones = np.ones((1, runs, 1))
    facts = {
        "safety_prob": 0 * ones,
        "episode_cost_quantile": 7 * ones,
        "episode_cost_mean": ones,
        "multiplier": ones / 2,
    }
    return facts | {
        "steps": np.full((1, runs), 10),
        "episodes": np.array([episodes]),
        "return_mean": np.zeros((1, runs)),
    }


def lines(capsys, episodes):
    with RunProgress("job", [0], 1, [Constraint()], quiet=False) as progress:
        progress.update(1, metrics(episodes))
    return capsys.readouterr().out.splitlines()


def test_before_its_first_episode_a_run_shows_only_its_multiplier(capsys):
    first, line = lines(capsys, [0])
    assert "1 run;" in first
    assert "return –  Pr[C ≤ d] –  cost quantile –  mean cost –  λ 0.500" in line
    assert "return 0.00  Pr[C ≤ d] 0.0%  cost quantile 7.0  mean cost 1.0  λ 0.500" in lines(capsys, [3])[-1]


def test_runs_without_an_episode_are_nan_and_others_stay():
    progress = RunProgress("job", [0, 1], 2, [Constraint()], quiet=True)
    progress.update(1, metrics([0, 2]))
    np.testing.assert_array_equal(np.isnan(progress.known(np.ones((2, 1)))), [[True], [False]])
