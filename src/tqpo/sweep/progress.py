"""How far many jobs are, read from their run folders: one table in a terminal, else a line where something changed."""

import contextlib
import csv
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tqpo import store
from tqpo.errors import Interrupted, StoreError
from tqpo.training.job import iterations_of
from tqpo.training.loop import listening
from tqpo.training.progress import COLUMNS, number

LINES_EVERY = 20.0  # s between plain lines of a job that goes on
TAIL = 64_000  # bytes: the last iteration of a job's seeds, and more
SHOWN = ("return_mean", "safety_prob")


class Row(NamedTuple):
    """What is known of a job."""

    state: str  # waiting, training, evaluating, done, failed
    iteration: int = 0
    iterations: int = 0  # in all
    starts: int = 0
    values: tuple[str, ...] = ("",) * len(SHOWN)  # means over runs of the last iteration
    seconds: float = 0.0  # since it was first seen to train


class JobsProgress:
    """Shows many jobs; a context manager. `look` whenever there is time: it raises `Interrupted` after a signal."""

    def __init__(self, folders: Mapping[str, pathlib.Path]):
        self.folders = folders
        self.failed: dict[str, Exception] = {}
        self.rows = {name: Row("waiting") for name in folders}
        self.begun: dict[str, float] = {}
        self.told: dict[str, tuple[str, float]] = {}  # state and time of a job's last line
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, refresh_per_second=2) if self.console.is_terminal else None
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.heard = self.stack.enter_context(listening())
        if self.live is not None:
            self.stack.enter_context(self.live)
        self.show()
        return self

    def __exit__(self, *problem: Any) -> None:
        self.show()
        self.stack.close()

    def end(self, name: str, result: Any) -> None:
        """Notes that a job has ended, with an exception if it failed."""
        if isinstance(result, Exception):
            self.failed[name] = result
            self.rows[name] = Row("failed")
        else:
            row = self.rows[name]
            self.rows[name] = row._replace(state="done", iteration=row.iterations)
        self.look()

    def look(self) -> None:
        if self.heard:
            raise Interrupted(self.heard[0], "stopped; what is done is kept, and the same command goes on")
        self.show()

    def show(self) -> None:
        now = time.monotonic()
        for name, row in self.rows.items():
            if row.state not in {"done", "failed"}:
                self.rows[name] = self.read(name, row, now)
        if self.live is not None:
            self.live.update(self.table())
            return
        for name, row in self.rows.items():
            state, when = self.told.get(name, ("waiting", 0.0))
            if row.state != state or (row.state == "training" and now - when > LINES_EVERY):
                self.told[name] = row.state, now
                self.console.print(f"{name}: {self.line(name, row)}", highlight=False, soft_wrap=True)

    def read(self, name: str, row: Row, now: float) -> Row:
        try:
            run = store.open_run(self.folders[name])
            iteration, values = last_row(run.folder / "metrics.csv")
        except (StoreError, OSError, ValueError):
            return row  # not there yet, or being written right now
        iterations = iterations_of(run.config)
        state = "done" if run.finished else "training" if iteration < iterations else "evaluating"
        seconds = now - self.begun.setdefault(name, now)
        return Row(state, iteration, iterations, len(run.manifest["sessions"]), values, seconds)

    def line(self, name: str, row: Row) -> str:
        if row.state in {"waiting", "failed"}:
            return f"{row.state} {self.failed.get(name, '')}".strip()
        values = "  ".join(f"{COLUMNS[metric][0]} {x}" for metric, x in zip(SHOWN, row.values, strict=True) if x)
        again = f"  (started {row.starts} times)" if row.starts > 1 else ""
        return f"{row.state}  {row.iteration}/{row.iterations}  {values}  {row.seconds:.0f} s{again}"

    def table(self) -> Table:
        """The jobs under way first; as many as the screen has room for."""
        order = {"failed": 0, "training": 1, "evaluating": 1, "waiting": 2, "done": 3}
        rows = sorted(self.rows.items(), key=lambda item: order[item[1].state])
        counts = {state: sum(row.state == state for row in self.rows.values()) for state in order}
        out = Table(title="  ".join(f"{n} {state}" for state, n in counts.items() if n))
        for column in ("job", "state", "iteration", *(COLUMNS[metric][0] for metric in SHOWN), "time", "starts"):
            out.add_column(column, justify="left" if column in {"job", "state"} else "right", no_wrap=True)
        for name, row in rows[: max(1, self.console.height - 6)]:
            count = f"{row.iteration}/{row.iterations}" if row.iterations else ""
            out.add_row(name, row.state, count, *row.values, f"{row.seconds:.0f} s", str(row.starts or ""))
        return out


def last_row(path: pathlib.Path) -> tuple[int, tuple[str, ...]]:
    """The last iteration in a metrics file, and the means of its values over the runs; 0 before the first."""
    if not path.exists():
        return 0, Row("").values
    with path.open("rb") as file:
        header = file.readline().decode().strip().split(",")
        file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - TAIL))
        lines = file.read().decode().split("\n")[:-1]  # what has no end yet is still being written
    rows = [dict(zip(header, row, strict=True)) for row in csv.reader(lines) if len(row) == len(header)]
    if not rows:
        return 0, Row("").values
    last = [row for row in rows if row["iteration"] == rows[-1]["iteration"]]
    columns = [name if name in header else f"{name}.0" for name in SHOWN]
    means = [np.mean([float(row[column]) for row in last]) if column in header else np.nan for column in columns]
    return int(rows[-1]["iteration"]), tuple(number(name, float(x)) for name, x in zip(SHOWN, means, strict=True))
