"""What a person sees while a run trains: a live table in a terminal, plain lines elsewhere, nothing when quiet."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from rich import progress as bars
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from tqpo.algorithms.settings import Constraint
from tqpo.maths.statistics import cost_decimals
from tqpo.training.shortfall import RECENT, say_multiplier

ROWS = 12  # seeds shown one by one
LINE_EVERY = 5.0  # s between plain lines
COUNT_EVERY = 10.0  # s between those that count episodes

Say = Callable[[str], Any]  # shows a line


@contextlib.contextmanager
def counting(title: str, hidden: bool) -> Iterator[Callable[..., None]]:
    """Gives a callback (done, total, text) for episodes, shown as a bar in a terminal and as a line now and then elsewhere."""
    console = Console(stderr=True, quiet=hidden)
    text = bars.TextColumn("{task.fields[text]}", markup=False)
    columns = (*bars.Progress.get_default_columns(), bars.TimeElapsedColumn(), text)
    said = time.monotonic()

    def tick(done: int, total: int, text: str = "") -> None:
        nonlocal said
        bar.update(task, completed=done, total=total, text=text)
        if not console.is_terminal and time.monotonic() - said > COUNT_EVERY:
            said = time.monotonic()
            line = f"{title}: {done:,} of {total:,} episodes {text}"
            console.print(line.rstrip(), highlight=False, markup=False, soft_wrap=True)

    with bars.Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task(title, total=None, text="")
        yield tick


class RunProgress:
    """Shows the seeds of one run; used as a context manager."""

    def __init__(
        self,
        title: str,
        seeds: Sequence[int],
        iterations: int,
        constraints: Sequence[Constraint],
        quiet: bool,
        bound: float = math.inf,
    ):
        self.title, self.seeds, self.iterations, self.constraints = escape(title), list(seeds), iterations, constraints
        self.bound = bound  # of λ
        self.multipliers: deque[np.ndarray] = deque(maxlen=max(2, round(RECENT * iterations)))  # recent, each [runs, K]
        self.console = Console(quiet=quiet, stderr=False)
        self.clock = self.last_line = time.monotonic()
        self.chunks, self.rate = 0, 0.0  # the rate in steps per second
        self.finished = np.zeros(len(self.seeds))  # episodes of each seed
        self.progress = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=None),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[rate]}"),
            bars.TimeElapsedColumn(),
            bars.TextColumn("left"),
            bars.TimeRemainingColumn(),
            console=self.console,
            expand=True,
        )
        self.bar = self.progress.add_task(self.title, total=iterations, rate="compiling …")
        self.live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live = Live(self.progress, console=self.console, refresh_per_second=4)
            self.live.__enter__()
        else:
            runs = f"{len(self.seeds)} run{'s' * (len(self.seeds) > 1)}"
            self.say(f"{self.title}: {self.iterations} iterations, {runs}; compiling …")
        return self

    def __exit__(self, *problem: Any) -> None:
        if self.live is not None:
            self.live.__exit__(*problem)

    def say(self, text: str) -> None:
        """A line above the live part."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def update(self, iteration: int, metrics: dict[str, np.ndarray]) -> None:
        """After a chunk, with its metrics [iterations, runs, …]."""
        now = time.monotonic()
        rate = float(metrics["steps"].sum()) / max(now - self.clock, 1e-9)
        self.chunks, self.clock = self.chunks + 1, now
        self.rate = rate if self.chunks <= 2 else 0.8 * self.rate + 0.2 * rate  # the first chunk is mostly compilation
        self.finished += metrics["episodes"].sum(0)
        shown = {name: metrics[name][-1] for name in COLUMNS if name in metrics}
        last = {name: x if name == "multiplier" else self.known(x) for name, x in shown.items()}
        self.multipliers.extend(per_constraint(x) for x in metrics.get("multiplier", ()))
        self.progress.update(self.bar, completed=iteration, rate=f"{self.rate:,.0f} steps/s")
        if self.live is not None:
            self.live.update(Group(self.progress, self.table(last), *self.notes(last)))
        elif now - self.last_line > LINE_EVERY or iteration >= self.iterations:
            self.last_line = now
            self.say(self.line(iteration, last))

    def known(self, values: np.ndarray) -> np.ndarray:
        """NaN where a seed has no episode yet."""
        return np.where((self.finished > 0).reshape(-1, *[1] * (np.ndim(values) - 1)), values, np.nan)

    def line(self, iteration: int, last: dict[str, np.ndarray]) -> str:
        shown = {name: per_constraint(last[name]).mean(0) for name in COLUMNS if name in last}
        parts = "  ".join(f"{COLUMNS[name][0]} {' | '.join(self.numbers(name, x))}" for name, x in shown.items())
        return "  ".join([f"{iteration:>5}/{self.iterations}", parts, f"{self.rate:,.0f} steps/s", *self.notes(last)])

    def notes(self, last: dict[str, np.ndarray]) -> list[str]:
        """On each constraint that is not met, what its λ does."""
        if not self.finished.any():
            return ["no episode has ended yet"]
        said = []
        for k, c in enumerate(self.constraints if self.multipliers else ()):
            if c.kind == "mean":
                unmet, otherwise = per_constraint(last["episode_cost_mean"])[:, k] > c.limit, "mean above its limit"
            else:
                unmet, otherwise = per_constraint(last["safety_prob"])[:, k] < c.safety, "Pr[C ≤ d] below its level"
            first, now = self.multipliers[0][:, k], self.multipliers[-1][:, k]
            whose = f"constraint {k + 1}: " if len(self.constraints) > 1 else ""
            said += [whose + text] if (text := say_multiplier(first, now, unmet, self.bound, otherwise)) else []
        return said

    def table(self, last: dict[str, np.ndarray]) -> Table:
        table = Table(expand=True, box=None, padding=(0, 1))
        table.add_column("seed", justify="right")
        shown = [name for name in COLUMNS if name in last]
        for name in shown:
            table.add_column(COLUMNS[name][0], justify="right")
        for place, seed in list(enumerate(self.seeds))[:ROWS]:
            table.add_row(str(seed), *(self.cell(name, per_constraint(last[name])[place]) for name in shown))
        if len(self.seeds) > 1:
            means = (self.cell(name, per_constraint(last[name]).mean(0)) for name in shown)
            table.add_row("mean", *means, style="bold")
        table.add_row("asked", *(" | ".join(goal(name, c) for c in self.constraints) for name in shown), style="dim")
        return table

    def numbers(self, name: str, values: np.ndarray) -> list[str]:
        """A column's values, of each constraint, as text."""
        limits = [c.limit for c in self.constraints]
        return [number(name, x, *limits[k : k + 1]) for k, x in enumerate(values.tolist())]

    def cell(self, name: str, values: np.ndarray) -> str:
        """A value per constraint, coloured by whether it is as asked."""
        parts = self.numbers(name, values)
        for k, value in enumerate(values.tolist()):
            asked = self.constraints[k] if k < len(self.constraints) and goal(name, self.constraints[k]) else None
            if asked is not None and np.isfinite(value):
                good = value >= asked.safety if name == "safety_prob" else value <= asked.limit
                parts[k] = f"[{'green' if good else 'red'}]{parts[k]}[/]"
        return " | ".join(parts)


COLUMNS = {
    "return_mean": ("return", "{:.2f}"),
    "safety_prob": ("Pr[C ≤ d]", "{:.1%}"),
    "episode_cost_quantile": ("cost quantile", ""),
    "episode_cost_mean": ("mean cost", ""),
    "multiplier": ("λ", "{:.3f}"),
}


def number(name: str, value: float, limit: float = 0.0) -> str:
    if np.isnan(value):
        return "–"
    return COLUMNS[name][1].format(value) if COLUMNS[name][1] else f"{value:.{cost_decimals(limit)}f}"


def goal(name: str, c: Constraint) -> str:
    """What a constraint asks of a column, if anything."""
    if c.kind == "mean":
        return f"≤ {c.limit:g}" if name == "episode_cost_mean" else ""
    return {"episode_cost_quantile": f"≤ {c.limit:g}", "safety_prob": f"≥ {c.safety:.1%}"}.get(name, "")


def per_constraint(x: np.ndarray) -> np.ndarray:
    """A metric [runs] or [runs, K] as [runs, K]."""
    return np.asarray(x, float).reshape(len(x), -1)
