"""Claims about a policy, put to fresh episodes until it is clear whether they hold.

A claim is Pr[C ≤ d] ≥ 1 − ε of one cost, or of several at once in the same episode. Each is tested by itself with
`maths.sequential`, so each holds with the stated confidence. With several constraints all of them hold at once with the same
confidence: to say so falsely, one must be false and yet pass. "All at once in one episode" is a claim of its own, at the level
1 − Σε that follows from the others; its bound comes from its own count.
"""

import contextlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tqpo.algorithms.settings import Constraint
from tqpo.errors import ConfigError
from tqpo.evaluation.episodes import Totals
from tqpo.maths import sequential, statistics
from tqpo.maths.sequential import Decision

CONFIDENCE = 0.95
WORDS = ("refuted", "undecided", "certified")  # the worst first

Closing = Callable[[int, int, str], Any]  # episodes so far, at most, and how far the interval has closed


class Claim(NamedTuple):
    """Pr[every cost within its limit] ≥ safety."""

    names: tuple[str, ...]
    channels: tuple[int, ...]
    limits: tuple[float, ...]
    safety: float

    @property
    def event(self) -> str:
        return " and ".join(f"{name} ≤ {limit:g}" for name, limit in zip(self.names, self.limits, strict=True))

    def holds(self, totals: Totals) -> np.ndarray:
        """[N] bool: in which episodes."""
        return np.all(totals.costs[:, list(self.channels)] <= np.array(self.limits), 1)


class Finding(NamedTuple):
    """What the episodes said: a decision for each claim, each after its own number of them."""

    decisions: tuple[Decision, ...]
    unsafe: tuple[np.ndarray, ...]  # of each claim: the numbers of its episodes that were not safe
    returns: np.ndarray  # [N]
    faults: tuple[str, ...]


def claims_of(constraints: Sequence[Constraint], cost_names: Sequence[str]) -> tuple[Claim, ...]:
    """One for each constraint on a probability; with several of them, one more for all at once in one episode."""
    bounded = [c for c in constraints if c.kind == "quantile"]
    single = [Claim((cost_names[c.channel],), (c.channel,), (float(c.limit),), float(c.safety)) for c in bounded]
    level = 1 - sum(1 - claim.safety for claim in single)
    if len(single) < 2 or level <= 0:
        return tuple(single)
    columns = zip(*(claim[:3] for claim in single), strict=True)
    names, channels, limits = (tuple(x for part in column for x in part) for column in columns)
    return *single, Claim(names, channels, limits, round(level, 12))


def examine(
    parts: Generator[tuple[Totals, list[str]]],
    claims: Sequence[Claim],
    confidence: float,
    most: int,
    hasty: bool = False,
    tick: Closing | None = None,
) -> Finding:
    """Takes episodes until every claim is decided, at most so many; a `hasty` one stops at the first that is refuted."""
    if not claims:
        raise ConfigError("nothing to certify: no constraint of this run bounds a probability")
    decisions: list[Decision] = [Decision("undecided", 0, 0)] * len(claims)
    outcomes: list[list[np.ndarray]] = [[] for _ in claims]
    returns, faults = [], []
    with contextlib.closing(parts):
        for totals, reports in parts:
            returns.append(totals.returns)
            faults += reports
            for i, claim in enumerate(claims):
                if decisions[i].word == "undecided":
                    outcomes[i].append(claim.holds(totals))
                    decisions[i] = sequential.decide(outcomes[i][-1], claim.safety, confidence, decisions[i])
            if tick is not None:
                tick(max(d.n for d in decisions), most, closing(claims, decisions, confidence))
            words = {d.word for d in decisions}
            if "undecided" not in words or (hasty and "refuted" in words):
                break
    unsafe = (np.flatnonzero(~np.concatenate(x)[: d.n]) for x, d in zip(outcomes, decisions, strict=True))
    last = max(d.n for d in decisions)  # the rest of its batch does not count
    return Finding(tuple(decisions), tuple(unsafe), np.concatenate(returns)[:last], tuple(faults))


def closing(claims: Sequence[Claim], decisions: Sequence[Decision], confidence: float) -> str:
    """The intervals so far, for a progress bar."""
    found = (sequential.interval(d.k, d.n, c.safety, confidence) for c, d in zip(claims, decisions, strict=True))
    return ", ".join(f"{x.value:.1%} [{x.low:.1%}, {x.high:.1%}]" for x in found)


def overall(rows: Sequence[Mapping[str, Any]]) -> str:
    """The word on all constraints: the worst of them. What is claimed of all at once follows from them."""
    return min((row["word"] for row in rows if len(row["costs"]) == 1), key=WORDS.index)


def describe(claims: Sequence[Claim], finding: Finding, confidence: float) -> dict[str, Any]:
    """The claims with their counts, as plain JSON values, and the word on all of them."""
    rows = [
        described(claim, decision, unsafe.tolist(), confidence)
        for claim, decision, unsafe in zip(claims, finding.decisions, finding.unsafe, strict=True)
    ]
    return {
        "verdict": overall(rows),
        "confidence": confidence,
        "claims": rows,
        "episodes": len(finding.returns),
        "return_mean": float(finding.returns.mean()),
    } | ({"faults": list(finding.faults)} if finding.faults else {})


def described(claim: Claim, decision: Decision, unsafe: Sequence[int], confidence: float) -> dict[str, Any]:
    word, k, n = decision
    found = sequential.interval(k, n, claim.safety, confidence)
    more = sequential.more_needed(k, n, claim.safety, confidence) if word == "undecided" else 0
    return {
        "event": claim.event,
        "costs": list(claim.names),
        "channels": list(claim.channels),
        "cost_limits": list(claim.limits),
        "safety": claim.safety,
        "word": word,
        "sentence": sentence(claim, decision, confidence, more),
        "episodes": n,
        "safe_episodes": k,
        "low": found.low,
        "high": found.high,
        "more_episodes": more,
        "unsafe_episodes": " ".join(map(str, unsafe)),  # one line instead of thousands
    }


def claim_of(row: Mapping[str, Any]) -> Claim:
    """A claim from its description."""
    return Claim(tuple(row["costs"]), tuple(row["channels"]), tuple(row["cost_limits"]), row["safety"])


def sentence(claim: Claim, decision: Decision, confidence: float, more: int | None) -> str:
    """The claim and its fate, in words."""
    word, k, n = decision
    found = sequential.interval(k, n, claim.safety, confidence)
    low, high = statistics.percentages(found, claim.safety)
    asked, sure = f"{100 * claim.safety:g}%", f"{100 * confidence:g}% confidence"
    share = f"{k:,} of {n:,} fresh episodes ({found.value:.1%})" if n else "no episode"
    said = f"Pr[{claim.event}] ≥ {asked}"
    if word == "certified":
        return f"Certified with {sure}: {said}. {share} kept to it, so the probability is at least {low}."
    if word == "refuted":
        return f"Refuted with {sure}: {said}. {share} kept to it, so the probability is at most {high}."
    advice = (
        "it is too close to the level for more episodes to tell"
        if more is None
        else f"about {statistics.two_digits(more):,} more would tell if the share stays as it is"
    )
    bounds = f"the probability is at least {low} and at most {high}, each with {sure}"
    return f"Undecided after {n:,} episodes: {said}. {share} kept to it, so {bounds}; {advice}."


def recompute(row: Mapping[str, Any], confidence: float) -> str | None:
    """Why a claim's counts, word, bounds or sentence do not fit each other; None if they do."""
    claim, n = claim_of(row), row["episodes"]
    unsafe = [int(x) for x in row["unsafe_episodes"].split()]
    if sorted(set(unsafe)) != unsafe or (unsafe and not 0 <= unsafe[0] <= unsafe[-1] < n):
        return f"its list of unsafe episodes is not one of {n:,} episodes"
    if n - len(unsafe) != row["safe_episodes"]:
        return f"it counts {row['safe_episodes']:,} safe episodes of {n:,} but lists {len(unsafe):,} unsafe ones"
    outcomes = np.ones(n, bool)
    outcomes[unsafe] = False
    decision = sequential.decide(outcomes, claim.safety, confidence)
    if decision != (row["word"], row["safe_episodes"], n):
        return f"its episodes say {decision.word} after {decision.n:,}, not {row['word']} after {n:,}"
    expected = described(claim, decision, unsafe, confidence)
    for name, value in expected.items():
        same = math.isclose(value, row[name], rel_tol=1e-9) if isinstance(value, float) else value == row[name]
        if not same:
            return f"its {name} is {row[name]!r}; its counts give {value!r}"
    return None
