"""Groups of cells as processes: several at once, each with a line in one progress table.

Each group has a process of its own, so that its memory on the device is free when it ends, and so that XLA can be told, before it
starts, to choose the same kernels every time: the same command on the same hardware gives the same numbers.
"""

import json
import os
import pathlib
import shutil
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tqpo.errors import Interrupted, TqpoError
from tqpo.provenance import provenance
from tqpo.reproduce.cells import Plan, done, groups_of, judged, name_of, path_of, policy_file, read, run_cells, write
from tqpo.reproduce.judge import Judge
from tqpo.reproduce.paper import Cell
from tqpo.sweep.cluster import Runner
from tqpo.training.loop import listening

REPEATABLE = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
PROGRESS = ".progress"
PLAIN_EVERY = 20.0  # seconds between two reports where there is no terminal


def run_plan(plan: Plan, runner: Runner, jobs: int = 1) -> list[pathlib.Path]:
    """Runs every group that is not done, and judges what was not judged. Returns the files of all cells.

    `runner` runs tasks, here (`cluster.run_local`) or elsewhere (`cluster.run_tasks`), about `jobs` of them at a time.
    """
    groups = {name_of(cells): cells for cells in groups_of(plan)}
    folder = plan.out / PROGRESS
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    os.environ["XLA_FLAGS"] = " ".join(x for x in (os.environ.get("XLA_FLAGS"), REPEATABLE) if x)
    begun, failed = time.perf_counter(), {}
    judge = Judge(plan, max(1, (os.cpu_count() or 1) - jobs))
    judge.take([cell for cell in plan.cells if unjudged(plan, cell)])
    tasks = [(name, run_group, (plan, cells, i)) for i, (name, cells) in enumerate(groups.items())]
    try:
        with View(folder, list(groups)) as view, listening() as heard:

            def look(seconds: float = 0.0) -> None:
                if heard:
                    raise Interrupted(heard[0], "stopped; what is complete is kept, and the same command does the rest")
                judge.gather(seconds)
                view.show()

            for name, result in runner(tasks, on_wait=look):
                if isinstance(result, Exception):
                    failed[name] = result
                else:
                    judge.take(groups[name])
                look()
            while judge.tasks:
                look(1.0)
    finally:
        judge.close()
        shutil.rmtree(folder, ignore_errors=True)
    if failed:
        raise TqpoError("; ".join(f"{name}: {error}" for name, error in failed.items()))
    if groups:
        add_timing(plan, {"seconds": time.perf_counter() - begun, "jobs": jobs, "groups": list(groups)})
    return [path_of(plan, cell) for cell in plan.cells]


def unjudged(plan: Plan, cell: Cell) -> bool:
    """Whether a cell is done but for MuJoCo's judgement, and its policies are there."""
    result = read(path_of(plan, cell)) if judged(plan, cell) and done(plan, cell) else None
    waiting = bool(result and result["judge"] and result["judge"]["mujoco"] is None)
    return waiting and policy_file(plan, cell).exists()


def run_group(plan: Plan, cells: Sequence[Cell], number: int) -> None:
    """One group, in a process of its own."""
    path = plan.out / PROGRESS / f"{number}.json"
    begun = time.time()
    run_cells(plan, cells, lambda facts: write(path, facts | {"seconds": time.time() - begun}))


def add_timing(plan: Plan, facts: dict[str, Any]) -> None:
    """What each command took in all, one entry per command."""
    path = plan.out / "timing.json"
    kept = json.loads(path.read_text())["commands"] if path.exists() else []
    facts = facts | {"seeds": len(plan.seeds), "steps": plan.steps, "provenance": provenance()}
    write(path, {"commands": [*kept, facts]})


class View:
    """What every group is doing: a table in a terminal, else a line now and then."""

    def __init__(self, folder: pathlib.Path, names: Sequence[str]):
        self.folder, self.names = folder, names
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, refresh_per_second=2) if self.console.is_terminal else None
        self.told = 0.0

    def __enter__(self) -> "View":
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self) -> None:
        now = time.monotonic()
        if self.live is not None:
            self.live.update(self.table())
        elif now - self.told > PLAIN_EVERY:
            self.told = now
            for name, facts in zip(self.names, self.facts(), strict=True):
                if facts and facts["doing"] != "done":
                    self.console.print(f"{name}: {' '.join(self.columns(facts))}", highlight=False, soft_wrap=True)

    def facts(self) -> list[dict[str, Any]]:
        found = []
        for i in range(len(self.names)):
            try:
                found.append(json.loads((self.folder / f"{i}.json").read_text()))
            except (OSError, ValueError):
                found.append({})
        return found

    def columns(self, facts: dict[str, Any]) -> list[str]:
        if not facts:
            return ["waiting", "", "", "", ""]
        count = f"{facts['iteration']}/{facts['iterations']}" if "iteration" in facts else ""
        reward = f"return {facts['return_mean']:.2f}" if "return_mean" in facts else ""
        safe = f"Pr {facts['safety_prob']:.3f}" if "safety_prob" in facts else ""
        return [facts["doing"], count, reward, safe, f"{facts['seconds']:.0f} s"]

    def table(self) -> Table:
        out = Table(title="Reproduction")
        for column in ("runs", "doing", "iteration", "return", "safe", "time"):
            out.add_column(column, justify="left" if column in {"runs", "doing"} else "right")
        for name, facts in zip(self.names, self.facts(), strict=True):
            out.add_row(name, *self.columns(facts))
        return out
