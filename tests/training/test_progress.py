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
    assert line.endswith("no episode has ended yet")
    assert "return 0.00  Pr[C ≤ d] 0.0%  cost quantile 7.0  mean cost 1.0  λ 0.500" in lines(capsys, [3])[-1]


def notes(multipliers, safe, bound=5.0, **changes):
    """What is said of runs whose λ went through these values [iterations][runs]."""
    progress = RunProgress("job", range(len(safe)), 30, [Constraint(**changes)], quiet=True, bound=bound)
    progress.finished += 1
    progress.multipliers.extend(np.array(multipliers, float)[..., None])
    return progress.notes({"safety_prob": np.array(safe), "episode_cost_mean": 40 * np.array(safe)})


def test_a_constraint_that_is_not_met_says_what_its_multiplier_does():
    assert notes([[4.0], [5.0], [5.0]], [0.19]) == ["λ at its bound 5"]
    assert notes([[1.0], [2.0], [3.0]], [0.19]) == ["λ still rising"]
    assert notes([[3.0], [2.0], [1.0]], [0.19]) == ["Pr[C ≤ d] below its level"]
    assert notes([[4.0], [5.0], [5.0]], [0.95]) == []
    assert notes([[4.0], [5.0], [5.0]], [np.nan]) == []  # no episode yet
    assert notes([[4.0, 1.0], [5.0, 1.0]], [0.2, 0.3]) == ["λ at its bound 5 in 1 of 2 runs"]
    assert notes([[1.0], [3.0]], [0.5], kind="mean", limit=15.0) == ["λ still rising"]  # mean cost 20
    assert notes([[3.0], [1.0]], [0.5], kind="mean", limit=15.0) == ["mean above its limit"]
    assert notes([[1.0], [3.0]], [0.3], kind="mean", limit=15.0) == []  # 12


def test_runs_without_an_episode_are_nan_and_others_stay():
    progress = RunProgress("job", [0, 1], 2, [Constraint()], quiet=True)
    progress.update(1, metrics([0, 2]))
    np.testing.assert_array_equal(np.isnan(progress.known(np.ones((2, 1)))), [[True], [False]])
