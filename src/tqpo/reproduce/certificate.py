"""How often a certificate is wrong and how often there is one: simulated candidates, no environment.

Eight candidates with known Pr[C ≤ d] and known return are put through what `training.choose` does with snapshots: a
pilot orders them, `sequential.front` and `sequential.fixed_sequence` test them in at most so many episodes in all.
Beside it, with the same episodes in all and the pilot's added, shared out equally: exact binomial tests of every
candidate with Bonferroni's and with Holm's correction.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from tqpo.maths import sequential, statistics
from tqpo.provenance import provenance

LEVEL, CONFIDENCE, EPISODES = 0.9, 0.95, 10_000
PILOTS = {"good": 2000, "usual": 384, "bad": 32}  # episodes of each candidate
RETURN_SPREAD = 5.0  # standard deviation of an episode's return
METHODS = ("fixed sequence", "Bonferroni", "Holm")

NULLS = {
    "all at the level": (0.90,) * 8,
    "all just below": (0.899,) * 8,
    "four at the level, four just below": (0.90,) * 4 + (0.895,) * 4,
}
OTHERS = {
    "one good": (0.93, *(0.88,) * 7),
    "one good, seven at the level": (0.92, *(0.90,) * 7),
    "half good": (0.94, 0.93, 0.92, 0.915, 0.895, 0.89, 0.88, 0.87),
    "all slightly good": (0.91,) * 8,
    "all good": (0.92,) * 8,
    "spread": tuple(np.round(np.linspace(0.86, 0.965, 8), 3).tolist()),
}
TRUE = (0.8, 0.88, 0.9, 0.92, 0.95, 0.99)  # probabilities whose confidence sequences are followed


@dataclass(frozen=True)
class Setting:
    """Eight candidates, the riskier the higher their return, and the size of their pilot."""

    name: str
    safety: tuple[float, ...]
    pilot: int

    @property
    def returns(self) -> np.ndarray:
        return 200 * (1 - np.array(self.safety))


class Kept(NamedTuple):
    """Of each replication: which candidate is kept, −1 for none, and the episodes of all tests."""

    which: np.ndarray  # [R]
    episodes: np.ndarray  # [R]


SETTINGS = [Setting(name, p, size) for name, p in (NULLS | OTHERS).items() for size in PILOTS.values()]


def simulate(
    replications: int = 2000, episodes: int = EPISODES, settings: Sequence[Setting] = SETTINGS, seed: int = 0
) -> dict[str, Any]:
    """Everything, as plain JSON values."""
    rng = np.random.default_rng(seed)
    return {
        "level": LEVEL,
        "confidence": CONFIDENCE,
        "replications": replications,
        "episodes": episodes,
        "seed": seed,
        "method": sequential.METHOD,
        "settings": [row for s in settings for row in judge(s, replications, episodes, rng)],
        "coverage": [coverage(p, replications, episodes, rng) for p in TRUE],
        "provenance": provenance(),
    }


def judge(setting: Setting, replications: int, episodes: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """A row for each method. A candidate at the level itself counts as false: nothing is harder to tell from a safe one."""
    p, returns = np.array(setting.safety), setting.returns
    sound = p > LEVEL
    best = returns[sound].max() if sound.any() else None
    kept = {"fixed sequence": fixed_sequence(setting, replications, episodes, rng)}
    kept |= corrected(setting, replications, episodes, rng)
    rows = []
    for method in METHODS:
        which, used = kept[method]
        false = int((~sound[which] & (which >= 0)).sum())
        earned = np.where(sound[which] & (which >= 0), returns[which], 0.0)
        rows.append(
            {
                "setting": setting.name,
                "safety": list(setting.safety),
                "pilot": setting.pilot,
                "method": method,
                "false": statistics.clopper_pearson(false, replications)._asdict(),
                "certified": float((which >= 0).mean()),
                "best_kept": None if best is None else float((earned == best).mean()),
                "return_kept": None if best is None else float(earned.mean() / best),
                "episodes_mean": float(used.mean()),
            }
        )
    return rows


def fixed_sequence(setting: Setting, replications: int, episodes: int, rng: np.random.Generator) -> Kept:
    """Pilot, order, tests: each with the episodes that those before it left over."""
    p, size = np.array(setting.safety), (replications, len(setting.safety))
    shares = rng.binomial(setting.pilot, p, size) / setting.pilot
    means = setting.returns + rng.normal(0, RETURN_SPREAD / np.sqrt(setting.pilot), size)
    orders = [sequential.front(s, m) for s, m in zip(shares.tolist(), means.tolist(), strict=True)]
    which, left = np.full(replications, -1), np.full(replications, episodes)
    bounds = boundaries(LEVEL, episodes)
    under_way = np.arange(replications)
    for place in range(len(p)):
        under_way = np.array([r for r in under_way if place < len(orders[r]) and left[r] > 0], int)
        tested = np.array([orders[r][place] for r in under_way], int)
        up, down = race(p[tested], episodes, bounds, rng)
        passed = (up <= left[under_way]) & (up < down)
        left[under_way] -= np.minimum(np.minimum(up, down), left[under_way])
        under_way, tested = under_way[passed], tested[passed]
        which[under_way] = tested  # returns rise along the order: the last that passes is the best
    return Kept(which, episodes - left)


@functools.cache
def boundaries(q: float, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Those of `sequential.boundaries`, around any q with the prior of the level."""
    return sequential.boundaries(LEVEL, CONFIDENCE, episodes, q)


def race(
    p: np.ndarray, episodes: int, bounds: tuple[np.ndarray, np.ndarray], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """After how many trials each path [R] first reaches the upper and the lower boundary; beyond `episodes` if it does not.

    Only failures are drawn, by the trials between them. A success never takes a certificate away, so with f failures the upper
    boundary is reached at a fixed time, if the next failure does not come first.
    """
    enough, few = bounds
    never, most = np.iinfo(np.int64).max, episodes * (1 - p.min(initial=1.0))
    count = int(most + 8 * np.sqrt(most) + 20)  # failures that reach beyond the last trial
    gaps = rng.geometric(1 - p[:, None], (len(p), count))
    times = np.concatenate([np.zeros((len(p), 1), int), np.cumsum(gaps, 1)], 1)  # [R, 1 + count] of 0, 1, … failures
    failures = np.arange(count + 1)
    n = np.arange(1, episodes + 1)
    clear = np.append(n, never)[np.searchsorted(n - enough, failures)]  # when that few failures are few enough
    reached = np.maximum(times[:, :-1], clear[:-1])
    up = np.where(reached < times[:, 1:], reached, never).min(1)
    many = failures[1:] >= (n - few)[np.minimum(times[:, 1:], episodes) - 1]
    down = np.where(many & (times[:, 1:] <= episodes), times[:, 1:], never).min(1)
    return up, down


def corrected(setting: Setting, replications: int, episodes: int, rng: np.random.Generator) -> dict[str, Kept]:
    """Exact binomial tests of all candidates; the best return among those that pass, by the same episodes."""
    p = np.array(setting.safety)
    n = setting.pilot + episodes // len(p)
    successes = rng.binomial(n, p, (replications, len(p)))
    means = setting.returns + rng.normal(0, RETURN_SPREAD / np.sqrt(n), successes.shape)
    values = stats.binom.sf(successes - 1, n, LEVEL)  # p-values of p ≤ level
    alpha, used = 1 - CONFIDENCE, np.full(replications, n * len(p))
    order = np.argsort(values, 1)
    holm = np.take_along_axis(values, order, 1) <= alpha / (len(p) - np.arange(len(p)))
    stepwise = np.zeros_like(holm)
    np.put_along_axis(stepwise, order, np.logical_and.accumulate(holm, 1), 1)
    passed = {"Bonferroni": values <= alpha / len(p), "Holm": stepwise}
    return {
        name: Kept(np.where(ok.any(1), np.argmax(np.where(ok, means, -np.inf), 1), -1), used)
        for name, ok in passed.items()
    }


def coverage(p: float, replications: int, episodes: int, rng: np.random.Generator) -> dict[str, Any]:
    """How often either end of the confidence sequence ever, at any time, rules out the truth."""
    bounds = boundaries(p, episodes)
    up, down = race(np.full(replications, p), episodes, bounds, rng)
    low, high = int((up <= episodes).sum()), int((down <= episodes).sum())
    missed = {"low_end": low, "high_end": high}
    return {"p": p} | {
        name: statistics.clopper_pearson(replications - x, replications)._asdict() for name, x in missed.items()
    }


def table(found: dict[str, Any]) -> str:
    """The settings as a Markdown table, a row for each and for each pilot."""
    lines = [
        "| candidates | pilot | false certificates | something certified | best kept | return kept |",
        "|---|---|---|---|---|---|",
    ]
    for at in range(0, len(found["settings"]), len(METHODS)):
        rows = found["settings"][at : at + len(METHODS)]
        false = rows[0]["false"]
        cells = (
            f"{false['value']:.1%} [{false['low']:.1%}, {false['high']:.1%}]",
            " / ".join(f"{row['certified']:.0%}" for row in rows),
            *(
                " / ".join("–" if row[name] is None else f"{row[name]:.0%}" for row in rows)
                for name in ("best_kept", "return_kept")
            ),
        )
        lines.append(f"| {rows[0]['setting']} | {rows[0]['pilot']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"In the last three columns: {' / '.join(METHODS)}."])
