"""The paper's runs, trained and written down: one JSON file per cell, with provenance, as soon as its group is done.

Cells that one program can train are trained together. A cell whose file is there with the same settings is not run again.
"""

import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tqpo.algorithms.presets import VARIANTS, preset
from tqpo.envs import make
from tqpo.paper import COST_LIMIT, STEPS, Cell
from tqpo.program import Group, Run, group_runs, init_group, run
from tqpo.provenance import provenance

CURVE_POINTS = 105
CURVES = ("return_mean", "safety_prob", "episode_cost_mean", "episode_cost_quantile", "multiplier", "log_std")
LAST = 0.1  # the share of training that the main protocol averages over


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run and where to write it."""

    cells: Sequence[Cell]
    out: pathlib.Path
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    steps: int = STEPS
    chunk: int = 8  # iterations between two reports


def config_of(cell: Cell) -> Any:
    return preset(cell.preset, cell.algo, safety=cell.safety, cost_limit=COST_LIMIT)


def runs_of(plan: Plan, cell: Cell) -> list[Run]:
    algorithm = VARIANTS.get(cell.algo, (cell.algo, {}))[0]
    return [Run(make(cell.task), algorithm, config_of(cell), seed) for seed in plan.seeds]


def settings_of(plan: Plan, cell: Cell) -> dict[str, Any]:
    """What a result depends on; compared with a file to see whether it is still good."""
    config = json.loads(json.dumps(dataclasses.asdict(config_of(cell))))
    cell_facts = {"task": cell.task, "algo": cell.algo, "safety": cell.safety, "preset": cell.preset}
    return cell_facts | {"seeds": list(plan.seeds), "steps": plan.steps, "config": config}


def done(plan: Plan, cell: Cell) -> bool:
    path = plan.out / f"{cell.name}.json"
    return path.exists() and json.loads(path.read_text())["settings"] == settings_of(plan, cell)


def reproduce(plan: Plan, say: Callable[[str], Any] = print) -> list[pathlib.Path]:
    """Trains every cell that is not there yet. Returns the files of all cells."""
    plan.out.mkdir(parents=True, exist_ok=True)
    todo = [cell for cell in plan.cells if not done(plan, cell)]
    for group in group_runs(r for cell in todo for r in runs_of(plan, cell)):
        members = [cell for cell in todo if runs_of(plan, cell)[0] in [group.run(i) for i in range(len(group))]]
        started = time.perf_counter()
        metrics, seconds = train_group(plan, group, say)
        for k, cell in enumerate(members):
            mine = slice(k * len(plan.seeds), (k + 1) * len(plan.seeds))
            result = result_of(plan, cell, {name: x[:, mine] for name, x in metrics.items()})
            timing = {"runs": len(group), "compile_s": seconds[0], "train_s": seconds[1]}
            timing["total_s"] = time.perf_counter() - started
            write(plan.out / f"{cell.name}.json", result | {"group": timing, "provenance": provenance()})
    return [plan.out / f"{cell.name}.json" for cell in plan.cells]


def train_group(
    plan: Plan, group: Group, say: Callable[[str], Any]
) -> tuple[dict[str, np.ndarray], tuple[float, float]]:
    """Metrics of a group, and the seconds until the first chunk was done and after it."""
    learner = group.configs[0].learner
    iterations = math.ceil(plan.steps / (learner.n_envs * learner.n_steps))
    begun, first = time.perf_counter(), 0.0

    def on_chunk(chunk) -> None:
        nonlocal first
        first = first or time.perf_counter()
        elapsed = time.perf_counter() - begun
        last = {name: float(np.mean(chunk.metrics[name][-1])) for name in ("return_mean", "safety_prob")}
        say(
            f"{group.algorithm} × {len(group)}  {chunk.iteration:>4}/{iterations}  return {last['return_mean']:6.2f}  "
            f"Pr {last['safety_prob']:.3f}  {elapsed:.0f} s"
        )

    whole = iterations - iterations % plan.chunk
    state, metrics = run(group, whole, plan.chunk, on_chunk, init_group(group), None)
    if whole < iterations:  # the rest in single steps: no other length is compiled
        state, rest = run(group, iterations - whole, 1, None, state, None)
        metrics = {name: np.concatenate([x, rest[name]]) for name, x in metrics.items()}
    return metrics, (first - begun, time.perf_counter() - first)


def result_of(plan: Plan, cell: Cell, metrics: dict[str, np.ndarray]) -> dict[str, Any]:
    """Averages over the last tenth of training, per seed and over seeds, and thinned curves."""
    start = int(len(metrics["steps"]) * (1 - LAST))
    episodes = metrics["episodes"][start:].sum(0)
    returns = metrics["return_sum"][start:].sum(0) / episodes
    safe = metrics["safe_episodes"][start:, :, 0].sum(0) / episodes
    every = max(1, len(metrics["steps"]) // CURVE_POINTS)
    curves = {
        name: metrics[name].reshape(*metrics[name].shape[:2], -1)[::every, :, 0] for name in CURVES if name in metrics
    }
    summary = {
        "episodes": episodes.astype(int).tolist(),
        "return": returns.tolist(),
        "safety_prob": safe.tolist(),
        "return_mean_std": [float(returns.mean()), float(returns.std(ddof=1)) if len(returns) > 1 else None],
        "safety_prob_mean_std": [float(safe.mean()), float(safe.std(ddof=1)) if len(safe) > 1 else None],
    }
    published = cell.published._asdict() if cell.published else None
    return {
        "settings": settings_of(plan, cell),
        "last_tenth": summary,
        "published": published,
        "skipped_updates": int(metrics["skipped"].sum()),
        "curves": {"every": every, **{name: np.round(x, 4).tolist() for name, x in curves.items()}},
    }


def write(path: pathlib.Path, result: dict[str, Any]) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(result) + "\n")
    draft.replace(path)


def table(paths: Sequence[pathlib.Path]):
    """Results beside the paper's numbers, as a rich table."""
    from rich.table import Table

    out = Table(title="Average over the last tenth of training, mean ± standard deviation over seeds")
    for column in ("task", "algorithm", "preset", "level", "R", "paper", "Pr", "paper", "Pr of each seed", "group [s]"):
        out.add_column(column, justify="left" if column in {"task", "algorithm", "preset"} else "right")
    for path in paths:
        found = json.loads(path.read_text())
        s, last, paper = found["settings"], found["last_tenth"], found["published"]
        out.add_row(
            s["task"],
            s["algo"],
            s["preset"],
            f"{s['safety']:.0%}",
            plus_minus(last["return_mean_std"], "{:.1f}"),
            plus_minus(paper["episode_return"], "{:.1f}") if paper else "",
            plus_minus(last["safety_prob_mean_std"], "{:.1%}"),
            plus_minus(paper["safety_prob"], "{:.0%}") if paper else "",
            " ".join(f"{x:.2f}" for x in last["safety_prob"]),
            f"{found['group']['total_s']:.0f} ({found['group']['runs']} runs)",
        )
    return out


def plus_minus(pair: Sequence[float | None], form: str) -> str:
    return " ± ".join(form.format(x) for x in pair if x is not None)
