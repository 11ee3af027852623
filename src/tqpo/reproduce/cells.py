"""The paper's cells, each a JSON file with provenance.

A cell whose file is complete and has the same settings is not run again.

| key | value |
|---|---|
| `complete` | false while the cell trains: the file then holds what is known so far |
| `settings` | task, algorithm, level, seeds, steps, the whole configuration |
| `last_window` | averages over the last `episode_window` episodes of training, per seed |
| `last_tenth` | averages over the last tenth of training, per seed, and mean and standard deviation over seeds |
| `fresh` | `summary.summarise` of fresh episodes of the final policies, without the episodes themselves |
| `discounted` | discounted return and Pr[discounted cost ≤ d] of such episodes per seed (`released` only, else null) |
| `judge` | the same for some seeds in JAX, and, when `judge` has been there, in MuJoCo |
| `published` | the paper's numbers |
| `curves` | metrics by iteration and seed, every so many iterations |
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tqpo import store
from tqpo.errors import ConfigError, TqpoError
from tqpo.evaluation.episodes import Totals
from tqpo.evaluation.summary import summarise
from tqpo.reproduce.paper import BUDGET, STEPS, SUITE, TABLE1, Cell
from tqpo.training.job import Job, Prepared, agree, plain
from tqpo.training.program import Metrics

CURVES = ("return_mean", "safety_prob", "episode_cost_mean", "episode_cost_quantile", "multiplier", "log_std")
CURVE_POINTS = 140
LAST_WINDOW = {"return": "return_mean", "safety_prob": "safety_prob"}  # reading → metric
LAST = 0.1  # the share of training that the main protocol averages over


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run and where to write it."""

    cells: tuple[Cell, ...]
    out: pathlib.Path
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    steps: int = STEPS
    episodes: int = 1000  # fresh ones per seed; 0: none
    judged_seeds: int = 0  # of each cell, in MuJoCo
    judged_episodes: int = 100  # per seed
    snapshots: int = 1  # of the last third of training, that each final policy is chosen from; 1: the last
    chunk: int = 8  # iterations in one call of the program
    checkpoint_every: int | None = None  # iterations; None: only where training ends, a group takes minutes
    changes: tuple[tuple[str, Any], ...] = ()  # settings other than the presets', by name

    def prepare(self, cell: Cell, seeds: tuple[int, ...] | None = None) -> Prepared:
        """A cell as a job of all its seeds, or of these."""
        level = {"preset": cell.preset, "safety": cell.safety, "cost_limit": cell.cost_limit}
        runs = {"seeds": self.seeds if seeds is None else seeds, "steps": self.steps, "snapshots": self.snapshots}
        return Job(task=cell.task, algo=cell.algo, **level, **runs, settings=dict(self.changes)).prepare()

    def check(self) -> None:
        """Raises for settings that a cell does not have or cannot be trained with."""
        for cell in self.cells:
            try:
                self.prepare(cell)
            except TqpoError as error:
                raise ConfigError(f"{cell.name}: {error}") from None

    def path(self, cell: Cell) -> pathlib.Path:
        return self.out / f"{cell.name}.json"

    def settings(self, cell: Cell) -> dict[str, Any]:
        """What a result depends on; compared with a file to see whether it is still good."""
        facts = {"task": cell.task, "algo": cell.algo, "safety": cell.safety, "preset": cell.preset}
        config = plain(dataclasses.asdict(self.prepare(cell).config))
        chosen = {} if self.snapshots == 1 else {"snapshots": self.snapshots}
        return facts | {"seeds": list(self.seeds), "steps": self.steps, "config": config} | chosen

    def is_current(self, cell: Cell, settings: dict[str, Any]) -> bool:
        """Whether these are the settings of this cell."""
        defaults = plain(dataclasses.asdict(type(self.prepare(cell).config)()))
        return agree(settings, self.settings(cell), {"config": defaults})

    def done(self, cell: Cell) -> bool:
        result = read(self.path(cell))
        return bool(result and result.get("complete") and self.is_current(cell, result["settings"]))

    def judged(self, cell: Cell) -> tuple[int, ...]:
        """The seeds of a cell that MuJoCo judges: those of Table 1, of its counterparts that see their budget, of the suite."""
        return self.seeds[: self.judged_seeds] if cell in (*TABLE1, *BUDGET, *SUITE) else ()

    def groups(self) -> list[tuple[Cell, ...]]:
        """The cells that are still to do, in groups that one program trains; the largest first."""
        groups: dict[Any, list[Cell]] = {}
        for cell in self.cells:
            if not self.done(cell):
                prepared = self.prepare(cell)
                structure = (cell.task, prepared.group.algorithm, jax.tree.structure(prepared.config))
                groups.setdefault(structure, []).append(cell)
        return sorted((tuple(g) for g in groups.values()), key=work, reverse=True)


def policy_folder(path: pathlib.Path) -> pathlib.Path:
    """The run that holds the final policies of a cell, beside its file."""
    return path.parent / "policies" / path.stem


def read(path: pathlib.Path) -> dict[str, Any] | None:
    """A cell's file, None if there is none."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TqpoError(f"{path} cannot be read ({error}): remove it, and its cell is run again") from None


def write(path: pathlib.Path, result: dict[str, Any]) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(result) + "\n")
    draft.replace(path)


def work(cells: Sequence[Cell]) -> float:
    """About how long a group takes, to begin with the longest."""
    return len(cells) * (0.2 if cells[0].preset == "fast" else 1.0) * (1.5 if cells[0].task == "GremlinEnv" else 1.0)


def metrics_of(folder: store.Run, runs: int) -> Metrics:
    """`metrics.csv` as arrays [iterations, runs], in the precision in which they were computed."""
    return {name: column.reshape(-1, runs).astype(np.float32) for name, column in folder.metrics().items()}


def result_of(plan: Plan, cell: Cell, metrics: Metrics) -> dict[str, Any]:
    """Averages over the last tenth of training and thinned curves, from metrics [iterations, seeds]."""
    start = int(len(metrics["steps"]) * (1 - LAST))
    while start > 0 and not metrics["episodes"][start:].sum(0).all():  # a batch may end no episode
        start -= 1
    episodes = np.maximum(metrics["episodes"][start:].sum(0).astype(int), 1)
    returns = metrics["return_sum"][start:].sum(0) / episodes
    safe = metrics["safe_episodes"][start:].sum(0) / episodes
    every = -(-len(metrics["steps"]) // CURVE_POINTS)
    columns = {name: metrics.get(name, metrics.get(f"{name}.0")) for name in CURVES}  # of several entries the first
    return {
        "settings": plan.settings(cell),
        "last_tenth": {
            "episodes": episodes.tolist(),
            "return": returns.tolist(),
            "safety_prob": safe.tolist(),
            "return_mean_std": mean_std(returns),
            "safety_prob_mean_std": mean_std(safe),
        },
        "last_window": {name: x[-1].tolist() for name, of in LAST_WINDOW.items() if (x := columns[of]) is not None},
        "published": cell.published._asdict() if cell.published else None,
        "skipped_updates": int(metrics["skipped"].sum()),
        "curves": {
            "every": every,
            "steps_per_iteration": int(metrics["steps"][0, 0]),
            **{name: np.round(x[::every], 4).tolist() for name, x in columns.items() if x is not None},
        },
    }


def mean_std(values: np.ndarray) -> list[float | None]:
    return [float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None]


def summary(plan: Plan, cell: Cell, episodes: dict[int, Totals]) -> dict[str, Any]:
    """What episodes say, without the episodes: they would make a file a hundred times as large."""
    prepared = plan.prepare(cell)
    out = summarise(episodes, prepared.config.constraints, prepared.env.cost_names, deterministic=False)
    for seed in out["seeds"]:
        for name in ("returns", "episode_costs", "lengths"):
            del seed[name]
    return out
