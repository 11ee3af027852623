"""How far the jobs of a sweep are, read from their folders: one table in a terminal, else a line where something changed."""

import csv
import os
import pathlib
import time
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tqpo import store
from tqpo.errors import StoreError
from tqpo.sweep.plan import Sweep

LINES_EVERY = 20.0  # s between plain lines of a run that goes on
TAIL = 64_000  # bytes: the last iteration of a job's seeds, and more
COLUMNS = {"return_mean": ("return", "{:.2f}"), "safety_prob": ("Pr[C ≤ d]", "{:.1%}")}


class Progress(NamedTuple):
    state: str  # waiting, training, evaluating, done, failed
    iteration: int = 0
    starts: int = 0
    values: tuple[str, ...] = ("",) * len(COLUMNS)  # means over seeds of the last iteration


class View:
    """Used as a context manager; `show` whenever there is time."""

    def __init__(self, sweep: Sweep, out: pathlib.Path):
        self.out = out
        self.iterations = {name: job.iterations for name, job in sweep.jobs.items()}
        self.failed: dict[str, Exception] = {}
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, refresh_per_second=2) if self.console.is_terminal else None
        self.seen: dict[str, Progress] = {}
        self.told: dict[str, tuple[str, float]] = {}  # state and time of a run's last line

    def __enter__(self) -> "View":
        if self.live is not None:
            self.live.start()
        self.show()
        return self

    def __exit__(self, *problem: Any) -> None:
        self.show()
        if self.live is not None:
            self.live.stop()

    def show(self) -> None:
        for name in self.iterations:
            if self.seen.get(name, Progress("")).state != "done":
                self.seen[name] = self.look(name)
        if self.live is not None:
            self.live.update(self.table())
            return
        now = time.monotonic()
        for name, found in self.seen.items():
            state, when = self.told.get(name, ("waiting", 0.0))
            if found.state != state or (found.state == "training" and now - when > LINES_EVERY):
                self.told[name] = found.state, now
                self.console.print(f"{name}: {self.line(name, found)}", highlight=False, soft_wrap=True)

    def look(self, name: str) -> Progress:
        if name in self.failed:
            return Progress("failed")
        try:
            run = store.open_run(self.out / name)
            iteration, values = last_row(self.out / name / "metrics.csv")
        except (StoreError, OSError, ValueError):
            return self.seen.get(name, Progress("waiting"))  # not there yet, or changing under our eyes
        state = "training" if iteration < self.iterations[name] else "evaluating"
        return Progress("done" if run.finished else state, iteration, len(run.manifest["sessions"]), values)

    def line(self, name: str, found: Progress) -> str:
        if found.state in {"waiting", "failed"}:
            return f"{found.state} {self.failed.get(name, '')}".strip()
        values = "  ".join(f"{title} {x}" for (title, _), x in zip(COLUMNS.values(), found.values, strict=True) if x)
        again = f"  (started {found.starts} times)" if found.starts > 1 else ""
        return f"{found.state}  {found.iteration}/{self.iterations[name]}  {values}{again}"

    def table(self) -> Table:
        """The runs under way first; as many as the screen has room for."""
        order = {"failed": 0, "training": 1, "evaluating": 1, "waiting": 2, "done": 3}
        rows = sorted(self.seen.items(), key=lambda item: order[item[1].state])
        counts = {state: sum(found.state == state for found in self.seen.values()) for state in order}
        out = Table(title="  ".join(f"{n} {state}" for state, n in counts.items() if n))
        for column in ("run", "state", "iteration", *(title for title, _ in COLUMNS.values()), "starts"):
            out.add_column(column, justify="left" if column in {"run", "state"} else "right", no_wrap=True)
        for name, found in rows[: max(1, self.console.height - 6)]:
            count = f"{found.iteration}/{self.iterations[name]}"
            out.add_row(name, found.state, count, *found.values, str(found.starts or ""))
        return out


def last_row(path: pathlib.Path) -> tuple[int, tuple[str, ...]]:
    """The last iteration in a metrics file, and the means of its values over the seeds; 0 before the first."""
    if not path.exists():
        return 0, Progress("").values
    with path.open("rb") as file:
        header = file.readline().decode().strip().split(",")
        file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - TAIL))
        lines = file.read().decode().split("\n")[:-1]  # what has no end yet is still being written
    rows = [dict(zip(header, row, strict=True)) for row in csv.reader(lines) if len(row) == len(header)]
    if not rows:
        return 0, Progress("").values
    last = [row for row in rows if row["iteration"] == rows[-1]["iteration"]]
    texts = []
    for name, (_, form) in COLUMNS.items():
        column = name if name in header else f"{name}.0"
        texts.append(form.format(np.mean([float(row[column]) for row in last])) if column in header else "")
    return int(rows[-1]["iteration"]), tuple(texts)
