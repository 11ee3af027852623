"""Whole episodes, each side on its own state: the JAX task in float32 against the twin with MuJoCo's default solver.

Paired: episode i has the same layout and the same noise on both sides. Rounding errors grow (the steering is chaotic),
so the two runs of an episode part; if the physics agree they part without bias, and the mean of their differences is 0
within its error. The intervals are percentile bootstraps over episodes, drawn in pairs. One in twenty intervals misses
0 by chance: a cell with such a miss is run again, once, with four times as many other episodes.
"""

import concurrent.futures
import multiprocessing
import time
from typing import Any

import numpy as np

from reference.parity.episodes import Plan, totals, twin_totals
from tqpo.envs import TaskConfig

SEED = 3
POLICIES = ("random", "straight", "careful")
RESAMPLES = 10_000
CHUNK = 10  # episodes in one job of a worker
REPEAT = 4  # times as many episodes in the second run of a cell


def twin_parallel(plan: Plan, workers: int) -> np.ndarray:
    """[2, B] returns and costs of the twin, over processes."""
    ends = range(plan.first, plan.first + plan.count, CHUNK)
    last = plan.first + plan.count
    jobs = [Plan(plan.config, plan.policy, min(CHUNK, last - first), first, plan.seed) for first in ends]
    context = multiprocessing.get_context("spawn")  # JAX has threads: no fork
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        return np.concatenate(list(pool.map(twin_totals, jobs)), axis=1)


def quantile(values: np.ndarray, level: float) -> np.ndarray:
    """The smallest value with F(x) ≥ level, along the last axis."""
    return np.quantile(values, level, axis=-1, method="inverted_cdf")


STATISTICS = {
    "mean_return": lambda sums: np.mean(sums[0], axis=-1),
    "mean_cost": lambda sums: np.mean(sums[1], axis=-1),
    "cost_q90": lambda sums: quantile(sums[1], 0.9),
}


def differences(ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """Each statistic on both sides, their difference, its 95 % interval, and whether that holds 0."""
    count = ours.shape[1]
    rows = np.random.default_rng(SEED).integers(count, size=(RESAMPLES, count))
    out = {}
    for name, statistic in STATISTICS.items():
        jax_value, twin_value = float(statistic(ours)), float(statistic(theirs))
        low, high = np.quantile(statistic(ours[:, rows]) - statistic(theirs[:, rows]), [0.025, 0.975])
        out[name] = {
            "jax": jax_value,
            "twin": twin_value,
            "difference": jax_value - twin_value,
            "interval": [float(low), float(high)],
            "agrees": bool(low <= 0.0 <= high),
        }
    return out


def measure(config: TaskConfig, policy: str, episodes: int, workers: int) -> dict[str, Any]:
    result = run(Plan(config, policy, episodes, seed=SEED), workers)
    if not all(entry["agrees"] for entry in result["statistics"].values()):
        result["repeat"] = run(Plan(config, policy, REPEAT * episodes, first=episodes, seed=SEED), workers)
    return result


def run(plan: Plan, workers: int) -> dict[str, Any]:
    start = time.perf_counter()
    ours = totals(plan)
    middle = time.perf_counter()
    theirs = twin_parallel(plan, workers)
    seconds = {"jax": middle - start, "twin": time.perf_counter() - middle}
    same = np.max(np.abs(ours - theirs), axis=0) < 1e-3
    return {
        "episodes": plan.count,
        "statistics": differences(ours, theirs),
        "same_episodes": float(np.mean(same)),  # that did not part
        "seconds": seconds,
        "jax": np.round(ours, 5).tolist(),
        "twin": np.round(theirs, 5).tolist(),
    }
