"""What fresh episodes of a policy say: the numbers a safety engineer asks for.

`fresh.fresh_episodes` gives the episodes of each seed; `summarise` gives what they say as a dict of plain JSON values.
A run folder's `evaluation.json` is `{"schema": 1, "evaluations": [summary, …]}`, with one summary for each way of
evaluating (sampled, deterministic, in MuJoCo):

| key | value |
|---|---|
| `label`, `settings` | as given: a name, and whatever else describes the evaluation |
| `deterministic` | bool: the policy's mean action, or a sample of it |
| `confidence` | of every interval below, two-sided |
| `constraints` | [{`channel`, `name`, `kind`, `cost_limit`, `safety`}] |
| `seeds` | [{`seed`, scope, `returns` [N], `episode_costs` [N, channels], `lengths` [N]}], the raw episodes included |
| `pooled` | scope: all episodes, as if each came from a seed drawn at random |
| `over_seeds` | {`seeds`, `return`, `safety_prob`: [interval per constraint]}: the IQM, from seed to seed |
| `verdict` | {`word`, `sentence`, `seeds`}, pooled; null without constraints |

The word of the verdict is that of the worst constraint. Its sentence speaks of each, the worst first; `seeds` says how
the seeds' own verdicts on that one fell.

A scope is {`episodes`, `length_mean`, `return`: bootstrap interval, `constraints`: [{`safe_episodes`, `safety_prob`:
Clopper–Pearson interval, `episode_cost_quantile`: order-statistic interval, `episode_cost_mean`: bootstrap interval,
`episode_cost_99`: order-statistic interval of the 99 % quantile, `episode_cost_max`: the worst episode, `verdict`:
{`word`, `sentence`, `more_episodes`}}]}. An interval is {`value`, `low`, `high`}; an end that cannot be bounded is
null.

A quantile constraint is judged by its safety probability, a mean constraint by its mean.

Pooled intervals speak of these seeds: with as many episodes from each, the episodes vary no more than a binomial sample
would (Hoeffding 1956). What training once more would give is `over_seeds`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tqpo.algorithms.settings import Constraint
from tqpo.errors import ConfigError
from tqpo.evaluation.episodes import Totals
from tqpo.maths import statistics
from tqpo.maths.statistics import Interval

SCHEMA = 1
WORST_FIRST = ("misses", "cannot tell yet", "meets")


def summarise(
    episodes: Mapping[int, Totals],
    constraints: Sequence[Constraint],
    cost_names: Sequence[str],
    *,
    deterministic: bool,
    confidence: float = 0.95,
    label: str = "",
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that the episodes of each seed say, per seed and pooled; see the table above."""
    check_finite(episodes)
    parts = list(episodes.values())
    per_seed = [
        {"seed": int(seed)} | scope(part, constraints, confidence, cost_names) for seed, part in episodes.items()
    ]
    pooled = scope(Totals.join(parts), constraints, confidence, cost_names)
    return {
        "label": label,
        "deterministic": deterministic,
        "confidence": confidence,
        "constraints": [describe(c, cost_names) for c in constraints],
        "verdict": overall(pooled, per_seed),
        "pooled": pooled,
        "over_seeds": over_seeds(per_seed, len(constraints), confidence),
        "seeds": [judged | raw(part) for judged, part in zip(per_seed, parts, strict=True)],
        "settings": dict(settings or {}),
    }


def document(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `evaluation.json` holds."""
    return {"schema": SCHEMA, "evaluations": list(summaries)}


def check_finite(episodes: Mapping[int, Totals]) -> None:
    for seed, totals in episodes.items():
        if not all(np.all(np.isfinite(x)) for x in totals):
            raise ConfigError(f"seed {seed}: a return or an episode cost is not finite, so nothing can be said")


def describe(c: Constraint, cost_names: Sequence[str]) -> dict[str, Any]:
    name = cost_names[c.channel]
    return {"channel": c.channel, "name": name, "kind": c.kind, "cost_limit": float(c.limit), "safety": float(c.safety)}


def raw(totals: Totals) -> dict[str, list]:
    """The episodes themselves, to draw and to check from."""
    costs = totals.costs.astype(int) if np.all(totals.costs == totals.costs.astype(int)) else totals.costs
    return {
        "returns": [round(float(x), 4) for x in totals.returns],
        "episode_costs": costs.tolist(),
        "lengths": totals.lengths.astype(int).tolist(),
    }


def over_seeds(per_seed: Sequence[dict[str, Any]], n_constraints: int, confidence: float) -> dict[str, Any]:
    """Interquartile means of the seeds' own values."""

    def across(values) -> dict[str, float | None]:
        return plain(statistics.iqm_interval(np.array(list(values)), confidence))

    return {
        "seeds": len(per_seed),
        "return": across(s["return"]["value"] for s in per_seed),
        "safety_prob": [
            across(s["constraints"][k]["safety_prob"]["value"] for s in per_seed) for k in range(n_constraints)
        ],
    }


def plain(interval: Interval) -> dict[str, float | None]:
    """For JSON, which has no infinity."""
    return {name: float(x) if math.isfinite(x) else None for name, x in interval._asdict().items()}


def scope(
    totals: Totals, constraints: Sequence[Constraint], confidence: float, cost_names: Sequence[str]
) -> dict[str, Any]:
    """Every statistic of some episodes."""
    n, judged = len(totals.returns), []
    for c in constraints:
        costs, limit, safety = totals.costs[:, c.channel], float(c.limit), float(c.safety)
        safe = int((costs <= limit).sum())
        mean, name = statistics.mean_interval(costs, confidence), cost_names[c.channel]
        if c.kind == "mean":
            said = statistics.mean_verdict(mean, n, limit, confidence, name)
        else:
            said = statistics.verdict(safe, n, safety, confidence, f"stayed within the {name} limit of {limit:g}")
        judged.append(
            {
                "safe_episodes": safe,
                "safety_prob": plain(statistics.clopper_pearson(safe, n, confidence)),
                "episode_cost_quantile": plain(statistics.quantile_interval(costs, safety, confidence)),
                "episode_cost_mean": plain(mean),
                "episode_cost_99": plain(statistics.quantile_interval(costs, 0.99, confidence)),
                "episode_cost_max": float(costs.max()),
                "verdict": {"word": said.word, "sentence": said.sentence, "more_episodes": said.more_episodes},
            }
        )
    returns = plain(statistics.mean_interval(totals.returns, confidence))
    return {"episodes": n, "length_mean": float(totals.lengths.mean()), "return": returns, "constraints": judged}


def overall(pooled: dict[str, Any], per_seed: Sequence[dict[str, Any]]) -> dict[str, str] | None:
    """The verdict on the worst constraint, and in how many seeds it fell which way."""
    if not pooled["constraints"]:
        return None
    words = [c["verdict"]["word"] for c in pooled["constraints"]]
    worst = min(range(len(words)), key=lambda k: WORST_FIRST.index(words[k]))
    own = [s["constraints"][worst]["verdict"]["word"] for s in per_seed]
    verbs = {"meets": "meet{} the level", "misses": "miss{} it", "cannot tell yet": "cannot tell yet"}
    endings = {"meets": "s", "misses": "es", "cannot tell yet": ""}  # of one seed
    counts = [f"{n} {verbs[w].format(endings[w] if n == 1 else '')}" for w in verbs if (n := own.count(w))]
    seeds = "" if len(own) < 2 else f"Of the {len(own)} seeds on their own, {', '.join(counts)}."
    order = sorted(range(len(words)), key=lambda k: (k != worst, k))
    sentences = [pooled["constraints"][k]["verdict"]["sentence"] for k in order]
    return {"word": words[worst], "sentence": " ".join(sentences), "seeds": seeds}
