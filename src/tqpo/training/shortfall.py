"""Why a constraint is not met, and what to type next: by λ and by the episodes, while a run trains and at its end."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tqpo import store
from tqpo.algorithms import budget
from tqpo.training.evaluations import evaluations_of
from tqpo.training.job import Prepared, prepared_of

RECENT = 0.1  # share of training over which λ is seen to rise
AT_BOUND, RISING = 0.99, 1.05  # of its bound; of what it was
PAGE = "docs/constraint-not-met.md"


def bound_of(config: Any) -> float:
    """The largest λ that a configuration allows."""
    if isinstance(config, budget.Config):
        return math.exp(budget.log_highest(config))
    return float(config.dual.max_multiplier) if hasattr(config, "dual") else math.inf


def say_multiplier(first: np.ndarray, last: np.ndarray, unmet: np.ndarray, bound: float, otherwise: str) -> str:
    """What λ [runs] does where a constraint is not met, by what it was and what it is; empty where all runs meet it."""
    at_bound = unmet & (last >= AT_BOUND * bound)
    rising = unmet & ~at_bound & (last > RISING * first)
    kinds = {f"λ at its bound {bound:.3g}": at_bound, "λ still rising": rising, otherwise: unmet}
    where = f" of {len(unmet)} runs" if len(unmet) > 1 else ""
    return next((f"{text} in {n}{where}" if where else text for text, which in kinds.items() if (n := which.sum())), "")


def advice(run: store.Run, evaluation: dict[str, Any]) -> list[str]:
    """Of each constraint that an evaluation misses: why, and what to add to the command. Nothing if it misses none, or
    where the policy came without its curves."""
    pairs = zip(evaluation["constraints"], evaluation["pooled"]["constraints"], strict=True)
    missed = [(k, asked, judged) for k, (asked, judged) in enumerate(pairs) if judged["verdict"]["word"] == "misses"]
    if not missed or not run.metrics():
        return []
    prepared, lines = prepared_of(run.config), []
    for k, asked, judged in missed:
        said, best = at_the_end(run, prepared, k)
        far = asked["kind"] == "quantile" and best < asked["safety"]
        reached = f" At best {best:.0%} of recent episodes were within the limit." if far else ""
        lines += [
            f"{asked['name']} ≤ {asked['cost_limit']:g} is not met: {said}.{reached}",
            "Train with",
        ]
        lines += [f"  {words:<30} {why}" for words, why in options(prepared, said, asked, judged)]
    if any(other["deterministic"] and (other["verdict"] or {}).get("word") == "meets" for other in evaluations_of(run)):
        lines.append("Its mean actions meet what was asked: they are a policy of their own, with a row in the report.")
    return [*lines, f"More in {PAGE}"]


def at_the_end(run: store.Run, prepared: Prepared, k: int) -> tuple[str, float]:
    """What constraint k's λ did at the end of training, and the largest share of safe episodes that a run had in it."""
    columns, several = run.metrics(), len(prepared.asked) > 1
    read = {name: columns.get(f"{name}.{k}" if several else name) for name in ("multiplier", "safety_prob")}
    tables = {name: x.reshape(-1, len(prepared.job.seeds)) for name, x in read.items() if x is not None}
    best = float(tables["safety_prob"].max()) if "safety_prob" in tables else 0.0
    if "multiplier" not in tables:
        return f"{prepared.job.algo} does not bound the cost", best
    table = tables["multiplier"]
    first, last = table[-max(2, round(RECENT * len(table))) :][0], table[-1]
    missed, bound = np.ones(len(last), bool), bound_of(prepared.config)
    return f"{say_multiplier(first, last, missed, bound, 'λ no longer rising')} at the end of training", best


def options(prepared: Prepared, said: str, asked: dict[str, Any], judged: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What may help, the likeliest first, with a reason each."""
    job, config = prepared.job, prepared.config
    if job.base_algorithm != "budget":
        yield "--algo budget", "a policy that sees what is left of its limit"
    if "at its bound" in said and hasattr(config, "dual"):
        yield f"--set max_multiplier={4 * config.dual.max_multiplier:g}", "more weight for the cost"
    elif job.base_algorithm != "ppo":
        yield f"--steps {2 * job.steps:g}", "more time to learn"
    mean = asked["kind"] == "mean"
    found = judged["episode_cost_mean" if mean else "episode_cost_quantile"]
    kept = found["value"] if found["high"] is None else found["high"]
    if job.constraints:
        bound = f"mean={kept:g}" if mean else f"limit={kept:g},safety={asked['safety']:g}"
        yield f"--constraint {asked['name']}:{bound}", "what this policy keeps"
    else:
        yield f"--cost-limit {kept:g}", f"what this policy surely keeps in {asked['safety']:.0%} of its episodes"
