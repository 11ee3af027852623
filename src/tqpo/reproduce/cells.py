"""The paper's cells, trained and written down: one JSON file each, with provenance.

Cells that one program can train are trained together. While they train, their files hold what is known so far (`complete` false).
A cell whose file is complete and has the same settings is not run again.

| key | value |
|---|---|
| `settings` | task, algorithm, level, seeds, steps, the whole configuration |
| `last_tenth` | averages over the episodes of the last tenth of training, per seed, and mean and standard deviation over seeds |
| `fresh` | `summary.summarise` of fresh episodes of the final policies, without the episodes themselves |
| `judge` | the same for some seeds in JAX, and, when `judge` has been there, in MuJoCo |
| `published` | the paper's numbers |
| `curves` | metrics by iteration and seed, every so many iterations |
"""

import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from tqpo import algorithms
from tqpo.algorithms.presets import VARIANTS, preset
from tqpo.envs import make
from tqpo.errors import ConfigError, TqpoError
from tqpo.evaluation.episodes import ActorPolicy, Totals, run_episodes
from tqpo.evaluation.summary import summarise
from tqpo.provenance import provenance
from tqpo.reproduce.keep import Keep
from tqpo.reproduce.paper import COST_LIMIT, STEPS, TABLE1, Cell
from tqpo.training.evaluations import evaluation_key
from tqpo.training.policies import policies_of
from tqpo.training.program import Group, Metrics, Run, group_runs, init_group, run, take_run

CURVES = ("return_mean", "safety_prob", "episode_cost_mean", "episode_cost_quantile", "multiplier", "log_std")
CURVE_POINTS = 140
GONE = {"proportional": 0.0, "max_proportional": 10.0}  # settings that files may name, at what turned them off
LAST = 0.1  # the share of training that the main protocol averages over
PARTIAL_EVERY = 5  # chunks between two writings of what is known so far


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
    chunk: int = 8  # iterations between two reports
    checkpoint_every: int = 0  # iterations, to go on from after a loss; 0: never, a group takes minutes
    changes: tuple[tuple[str, Any], ...] = ()  # settings other than the presets', by name


Say = Callable[[dict[str, Any]], Any]  # takes what a group is doing


def config_of(plan: Plan, cell: Cell) -> Any:
    return preset(cell.preset, cell.algo, safety=cell.safety, cost_limit=COST_LIMIT, **dict(plan.changes))


def algorithm_of(cell: Cell) -> str:
    return VARIANTS.get(cell.algo, (cell.algo, {}))[0]


def runs_of(plan: Plan, cell: Cell) -> list[Run]:
    return [Run(make(cell.task), algorithm_of(cell), config_of(plan, cell), seed) for seed in plan.seeds]


def check(plan: Plan) -> None:
    """Raises for settings that a cell has not or cannot be trained with, before anything is started."""
    for cell in plan.cells:
        try:
            group_runs(runs_of(plan, cell))
        except TqpoError as error:
            raise ConfigError(f"{cell.name}: {error}") from None


def settings_of(plan: Plan, cell: Cell) -> dict[str, Any]:
    """What a result depends on; compared with a file to see whether it is still good."""
    config = json.loads(json.dumps(dataclasses.asdict(config_of(plan, cell))))
    facts = {"task": cell.task, "algo": cell.algo, "safety": cell.safety, "preset": cell.preset}
    return facts | {"seeds": list(plan.seeds), "steps": plan.steps, "config": config}


def path_of(plan: Plan, cell: Cell) -> pathlib.Path:
    return plan.out / f"{cell.name}.json"


def read(path: pathlib.Path) -> dict[str, Any] | None:
    """A cell's file, None if there is none."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TqpoError(f"{path} cannot be read ({error}): remove it, and its cell is run again") from None


def done(plan: Plan, cell: Cell) -> bool:
    found = read(path_of(plan, cell))
    return bool(found and found.get("complete") and agree(found["settings"], plan, cell))


def agree(found: dict[str, Any], plan: Plan, cell: Cell) -> bool:
    """Whether these are the settings of this cell. A field that is younger than the file counts as its default, which
    is what the code did before it had the field; one that is gone must have the value that code without it amounts to."""
    wanted = settings_of(plan, cell)
    usual = json.loads(json.dumps(dataclasses.asdict(type(config_of(plan, cell))())))
    return found | {"config": filled(found["config"], usual)} == wanted


def filled(found: Any, usual: Any) -> Any:
    """`found` with what it lacks from `usual` and without what is gone, in dicts all the way down."""
    if not (isinstance(found, dict) and isinstance(usual, dict)):
        return found
    return {name: filled(found.get(name, usual[name]), usual[name]) for name in usual} | {
        name: x for name, x in found.items() if name not in usual and (name not in GONE or x != GONE[name])
    }


def groups_of(plan: Plan) -> list[tuple[Cell, ...]]:
    """The cells that are still to do, in groups that one program trains; the largest first."""
    todo = [cell for cell in plan.cells if not done(plan, cell)]
    groups: dict[Any, list[Cell]] = {}
    for cell in todo:
        groups.setdefault((cell.task, algorithm_of(cell), jax.tree.structure(config_of(plan, cell))), []).append(cell)
    return sorted((tuple(g) for g in groups.values()), key=work, reverse=True)


def work(cells: Sequence[Cell]) -> float:
    """About how long a group takes, to begin with the longest."""
    return len(cells) * (0.2 if cells[0].preset == "fast" else 1.0) * (1.5 if cells[0].task == "GremlinEnv" else 1.0)


def name_of(cells: Sequence[Cell]) -> str:
    """Of a group."""
    algos = list(dict.fromkeys(cell.algo for cell in cells))
    return f"{cells[0].task} {' '.join(algos)} ({cells[0].preset})"


def run_cells(plan: Plan, cells: Sequence[Cell], say: Say) -> None:
    """Trains a group of cells, evaluates their final policies, and writes their files."""
    begun = time.perf_counter()
    (group,) = group_runs(r for cell in cells for r in runs_of(plan, cell))
    plan.out.mkdir(parents=True, exist_ok=True)

    def write_all(metrics, facts) -> None:
        for k, cell in enumerate(cells):
            mine = slice(k * len(plan.seeds), (k + 1) * len(plan.seeds))
            result = result_of(plan, cell, {name: x[:, mine] for name, x in metrics.items()})
            write(path_of(plan, cell), result | facts(cell))

    def partial(metrics) -> None:
        write_all(metrics, lambda _: {"complete": False})

    keep = Keep(plan.out, name_of(cells), {"cells": [settings_of(plan, cell) for cell in cells]})
    state, metrics, seconds = train_group(plan, group, keep, say, partial)
    timing = {"runs": len(group), "first_chunk_s": seconds[0], "train_s": seconds[1]}
    stacked = policies_of(state)
    started = time.perf_counter()
    checked = {}
    for k, cell in enumerate(cells):
        say({"doing": f"fresh episodes, {cell.algo} {cell.safety:.0%}"})
        first = k * len(plan.seeds)
        policies = {seed: take_run(stacked, first + j) for j, seed in enumerate(plan.seeds)}
        kept = plan.seeds if cell.preset == "fast" else judged(plan, cell)  # a paper policy has 10 MB
        if kept:
            save_policies(plan, cell, {seed: policies[seed] for seed in kept})
        checked[cell] = check_policies(plan, cell, policies)
    timing |= {"evaluate_s": time.perf_counter() - started, "total_s": time.perf_counter() - begun}
    origin = provenance()
    write_all(metrics, lambda cell: checked[cell] | {"complete": True, "group": timing, "provenance": origin})
    keep.drop()
    say({"doing": "done"})


def train_group(plan: Plan, group: Group, keep: Keep, say: Say, partial: Callable[[Metrics], Any]):
    """Final states, metrics, and the seconds until the first chunk was done and after it."""
    learner = group.configs[0].learner
    iterations = math.ceil(plan.steps / (learner.n_envs * learner.n_steps))
    begun, first = time.perf_counter(), 0.0
    state = init_group(group)
    found = keep.load(state) if plan.checkpoint_every else None
    start, state, before = found or (0, state, {})
    parts = [before] if before else []

    def on_chunk(chunk) -> None:
        nonlocal first
        first = first or time.perf_counter()
        parts.append(chunk.metrics)
        done, length = start + chunk.iteration, len(chunk.metrics["steps"])
        last = {name: float(np.mean(chunk.metrics[name][-1])) for name in ("return_mean", "safety_prob")}
        say({"doing": "training", "iteration": done, "iterations": iterations} | last)
        if len(parts) % PARTIAL_EVERY == 0:
            partial(joined(parts))
        if plan.checkpoint_every and done // plan.checkpoint_every > (done - length) // plan.checkpoint_every:
            keep.save(done, chunk.state, joined(parts))

    say({"doing": "compiling", "iterations": iterations})
    whole = (iterations - start) // plan.chunk * plan.chunk
    if whole:
        state, _ = run(group, whole, plan.chunk, on_chunk, state, None)
    if start + whole < iterations:  # the rest in single steps: no other length is compiled
        state, rest = run(group, iterations - start - whole, 1, None, state, None)
        parts.append(rest)
    first = first or time.perf_counter()
    return state, joined(parts), (first - begun, time.perf_counter() - first)


def joined(parts: Sequence[Metrics]) -> Metrics:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def result_of(plan: Plan, cell: Cell, metrics: dict[str, np.ndarray]) -> dict[str, Any]:
    """Averages over the last tenth of training, per seed and over seeds, and thinned curves."""
    start = int(len(metrics["steps"]) * (1 - LAST))
    while start > 0 and not metrics["episodes"][start:].sum(0).all():  # a batch may end no episode
        start -= 1
    episodes = np.maximum(metrics["episodes"][start:].sum(0), 1)
    returns = metrics["return_sum"][start:].sum(0) / episodes
    safe = metrics["safe_episodes"][start:, :, 0].sum(0) / episodes
    every = -(-len(metrics["steps"]) // CURVE_POINTS)
    curves = {
        name: metrics[name].reshape(*metrics[name].shape[:2], -1)[::every, :, 0] for name in CURVES if name in metrics
    }
    summary = {
        "episodes": episodes.astype(int).tolist(),
        "return": returns.tolist(),
        "safety_prob": safe.tolist(),
        "return_mean_std": mean_std(returns),
        "safety_prob_mean_std": mean_std(safe),
    }
    return {
        "settings": settings_of(plan, cell),
        "last_tenth": summary,
        "published": cell.published._asdict() if cell.published else None,
        "skipped_updates": int(metrics["skipped"].sum()),
        "curves": {
            "every": every,
            "steps_per_iteration": int(metrics["steps"][0].flat[0]),
            **{name: np.round(x, 4).tolist() for name, x in curves.items()},
        },
    }


def mean_std(values: np.ndarray) -> list[float | None]:
    return [float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None]


def judged(plan: Plan, cell: Cell) -> tuple[int, ...]:
    """The seeds of a cell that MuJoCo judges: those of Table 1."""
    return plan.seeds[: plan.judged_seeds] if cell in TABLE1 else ()


def check_policies(plan: Plan, cell: Cell, policies: dict[int, ActorPolicy]) -> dict[str, Any]:
    """Fresh episodes of the final policies."""
    if not plan.episodes:
        return {"fresh": None, "judge": None}
    env = make(cell.task)
    found = {
        seed: run_episodes(env, policy, evaluation_key(seed), plan.episodes, batch=plan.episodes)
        for seed, policy in policies.items()
    }

    judge = None
    if chosen := judged(plan, cell):
        judge = {"jax": summary(plan, cell, {seed: found[seed] for seed in chosen}), "mujoco": None}
    return {"fresh": summary(plan, cell, found), "judge": judge}


def summary(plan: Plan, cell: Cell, episodes: dict[int, Totals]) -> dict[str, Any]:
    """What episodes say, without the episodes: they would make a file a hundred times as large."""
    constraints, names = config_of(plan, cell).constraints, make(cell.task).cost_names
    out = summarise(episodes, constraints, names, deterministic=False)
    for seed in out["seeds"]:
        for name in ("returns", "episode_costs", "lengths"):
            del seed[name]
    return out


def policy_file(plan: Plan, cell: Cell) -> pathlib.Path:
    return plan.out / "policies" / f"{cell.name}.npz"


def save_policies(plan: Plan, cell: Cell, policies: dict[int, ActorPolicy]) -> None:
    """The final policies in one file, leaf by leaf."""
    path = policy_file(plan, cell)
    path.parent.mkdir(exist_ok=True)
    leaves = {f"{seed}/{i}": np.asarray(x) for seed, p in policies.items() for i, x in enumerate(jax.tree.leaves(p))}
    with path.open("wb") as file:
        np.savez(file, **leaves)  # pyright: ignore[reportArgumentType]


def load_policy(plan: Plan, cell: Cell, seed: int) -> ActorPolicy:
    """A policy that `save_policies` wrote."""
    env, config = make(cell.task), config_of(plan, cell)
    algorithm = algorithms.get(algorithm_of(cell))
    shape = eqx.filter_eval_shape(lambda: policies_of(algorithm.init(jax.random.key(0), env, config)))
    with np.load(policy_file(plan, cell), allow_pickle=False) as found:
        leaves = [found[f"{seed}/{i}"] for i in range(len(jax.tree.leaves(shape)))]
    return jax.tree.unflatten(jax.tree.structure(shape), leaves)


def write(path: pathlib.Path, result: dict[str, Any]) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(result) + "\n")
    draft.replace(path)
