"""Groups of cells that one program trains, as processes: several at once, each with a line in one progress table.

Each group has a process of its own: its memory on the device is free when it ends, and XLA can be told, before it
starts, to choose the same kernels every time. So the same command on the same hardware gives the same numbers.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from tqpo import store
from tqpo.errors import StoreError, TqpoError
from tqpo.evaluation.episodes import ActorPolicy, Totals, run_episodes, run_policies
from tqpo.provenance import provenance
from tqpo.reproduce.cells import Plan, metrics_of, policy_folder, read, result_of, summary, write
from tqpo.reproduce.judge import Judge
from tqpo.reproduce.paper import DIAL_LEVELS, Cell
from tqpo.reproduce.readings import discounted
from tqpo.store.run import MANIFEST
from tqpo.sweep.cluster import Runner
from tqpo.sweep.progress import JobsProgress
from tqpo.sweep.work import when_free
from tqpo.training import loop
from tqpo.training.choose import (
    ASKED_SEEDS,
    PILOT_SEED,
    Choice,
    asking_of,
    choose,
    fact_of,
    keep_certificates,
    kept_of,
    look,
    stack,
)
from tqpo.training.evaluations import evaluation_key
from tqpo.training.job import agree, has_dial, plain, together
from tqpo.training.policies import load_policies, policies_of, save_policies
from tqpo.training.program import Chunk, Group, init_group, take_run

REPEATABLE = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
GROUPS = ".groups"
PARTIAL_EVERY = 5  # chunks between two writings of what is known so far
PILOT_EPISODES = 2000  # of each snapshot that a policy is chosen from, and of each position of a dial
TEST_EPISODES = 5_000  # at most, of all snapshots of a seed together: one that needs more is too near its level
RARE = 0.05  # where fewer episodes may be unsafe than this share, tests are longer in proportion


def run_plan(plan: Plan, runner: Runner, jobs: int = 1) -> list[pathlib.Path]:
    """Runs every group that is not done, and judges what was not judged. Returns the files of all cells.

    `runner` runs tasks, here (`cluster.run_local`) or elsewhere (`cluster.run_tasks`), about `jobs` of them at a time.
    """
    groups = {name_of(cells): cells for cells in plan.groups()}
    folders = {name: group_folder(plan, name) for name in groups}
    os.environ["XLA_FLAGS"] = " ".join(x for x in (os.environ.get("XLA_FLAGS"), REPEATABLE) if x)
    begun = time.perf_counter()
    tasks = [(name, run_group, (plan, cells)) for name, cells in groups.items()]
    judge = Judge(plan, max(1, (os.cpu_count() or 1) - jobs))
    with contextlib.closing(judge), JobsProgress(folders) as progress:
        waiting = [cell for cell in plan.cells if unjudged(plan, cell)]

        def look(seconds: float = 0.0) -> None:
            judge.gather(seconds)
            progress.look()

        for name, result in runner(tasks, on_wait=look):
            progress.end(name, result)
            if name not in progress.failed:
                judge.take(groups[name])
        for cell in waiting:  # evaluated by this process, on its CPU: groups come first
            lay_beside(plan, cell)
        judge.take(waiting)
        while judge.tasks:
            look(1.0)
    with contextlib.suppress(OSError):  # groups that failed are still there
        (plan.out / GROUPS).rmdir()
    if progress.failed:
        raise TqpoError("; ".join(f"{name}: {error}" for name, error in progress.failed.items()))
    if groups:
        took = {"seconds": time.perf_counter() - begun, "jobs": jobs, "groups": list(groups)}
        add_timing(plan, took, next(iter(groups.values()))[0])
    return [plan.path(cell) for cell in plan.cells]


def name_of(cells: Sequence[Cell]) -> str:
    algos = list(dict.fromkeys(cell.algo for cell in cells))
    return f"{cells[0].task} {' '.join(algos)} ({cells[0].preset})"


def group_folder(plan: Plan, name: str) -> pathlib.Path:
    """The run folder of a group, there only until its cells are complete."""
    return plan.out / GROUPS / re.sub(r"[^\w-]+", "-", name).strip("-")


def unjudged(plan: Plan, cell: Cell) -> bool:
    """Whether a cell is done but for MuJoCo's judgement, and its policies are there."""
    result = read(plan.path(cell)) if plan.judged(cell) and plan.done(cell) else None
    waiting = bool(result and result["fresh"] and (result["judge"] or {}).get("mujoco") is None)
    return waiting and (policy_folder(plan.path(cell)) / MANIFEST).exists()


def lay_beside(plan: Plan, cell: Cell) -> None:
    """What MuJoCo is held against, in a cell that was made without it: fresh episodes in JAX of the policies it judges."""
    result: dict[str, Any] = read(plan.path(cell)) or {}
    if result["judge"]:
        return
    folder = store.open_run(policy_folder(plan.path(cell)))
    policies = {seed: policy for seed, policy in load_policies(folder).items() if seed in plan.judged(cell)}
    env: Any = plan.prepare(cell).env
    episodes = run_policies(env, policies, {seed: evaluation_key(seed) for seed in policies}, plan.episodes)
    write(plan.path(cell), result | {"judge": {"jax": summary(plan, cell, episodes), "mujoco": None}})


def add_timing(plan: Plan, facts: dict[str, Any], trained: Cell) -> None:
    """What each command took in all, one entry per command, on the hardware that one of its cells was trained on."""
    path = plan.out / "timing.json"
    kept = json.loads(path.read_text())["commands"] if path.exists() else []
    made, result = provenance(), read(plan.path(trained))
    made["hardware"] = result["provenance"]["hardware"] if result else made["hardware"]  # this process only planned
    facts = facts | {"seeds": len(plan.seeds), "steps": plan.steps, "provenance": made}
    write(path, {"commands": [*kept, facts]})


def run_group(plan: Plan, cells: Sequence[Cell]) -> None:
    """Trains a group of cells, evaluates their final policies, and writes their files."""
    begun, first = time.perf_counter(), 0.0
    group = together([plan.prepare(cell) for cell in cells])
    first_cell = plan.prepare(cells[0])
    iterations, moments = first_cell.iterations, first_cell.snapshot_iterations[:-1]
    chunk = max(1, min([plan.chunk, *(b - a for a, b in itertools.pairwise(moments))]))  # each snapshot ends one
    folder, position = open_group(plan, cells, group)
    snapshots: dict[int, ActorPolicy] = {}  # by iteration, [runs, …]

    def write_all(facts: dict[str, Any], of_cell: dict[Cell, dict[str, Any]] | None = None) -> None:
        metrics = metrics_of(folder, len(group))
        for k, cell in enumerate(cells):
            own = slice(k * len(plan.seeds), (k + 1) * len(plan.seeds))
            result = result_of(plan, cell, {name: x[:, own] for name, x in metrics.items()})
            write(plan.path(cell), result | facts | (of_cell or {}).get(cell, {}))

    def watch(iteration: int, done: Chunk) -> None:
        nonlocal first
        first = first or time.perf_counter()
        if any(iteration - done.length < moment <= iteration for moment in moments):
            snapshots[iteration] = jax.device_get(policies_of(done.state, group))
        if iteration % (PARTIAL_EVERY * plan.chunk) < done.length:
            write_all({"complete": False})

    options = loop.Options(quiet=True, chunk=chunk, checkpoint_every=plan.checkpoint_every, max_skips=None)
    with folder:
        last = loop.drive(group, iterations, folder, position, options, watch)
        trained = time.perf_counter()
        first = first or trained
        snapshots[iterations] = policies_of(last.state, group)
        checked = {}
        for k, cell in enumerate(cells):
            at, dialled = k * len(plan.seeds), has_dial(first_cell.config)
            taken = {s: {i: take_run(x, at + j) for i, x in snapshots.items()} for j, s in enumerate(plan.seeds)}
            seen = look(first_cell, taken, PILOT_SEED, PILOT_EPISODES) if len(snapshots) > 1 or dialled else {}
            dials = {s: at_levels(plan, cell, own, s, seen[s]) for s, own in taken.items()} if dialled else {}
            chosen = {s: choose_one(plan, cell, own, s, seen.get(s)) for s, own in taken.items()}
            keep_policies(plan, cell, taken, chosen)
            facts = {
                "iterations_of_policies": {s: c.label for s, c in chosen.items()},
                "certificates": {s: brief(c) for s, c in chosen.items()},
            } | ({"dial": dials} if dials else {})
            kept = {seed: own[chosen[seed].label] for seed, own in taken.items()}
            checked[cell] = evaluate(plan, cell, kept) | facts
        ended = time.perf_counter()
        timing = {"runs": len(group), "first_chunk_s": first - begun, "train_s": trained - first}
        timing |= {"evaluate_s": ended - trained, "total_s": ended - begun}
        write_all({"complete": True, "group": timing, "provenance": provenance()}, checked)
    shutil.rmtree(folder.folder)


def open_group(plan: Plan, cells: Sequence[Cell], group: Group) -> tuple[store.Run, loop.Position]:
    """The run folder of a group, and where its training stands: what was begun with the same settings goes on."""
    path, first = group_folder(plan, name_of(cells)), plan.prepare(cells[0])
    settings = plain(first.describe()) | {"cells": [plan.settings(cell) for cell in cells]}
    if (path / MANIFEST).exists():
        with contextlib.suppress(store.DamagedError):  # what cannot be read is trained again
            folder = when_free(lambda: store.open_run(path, write=True))
            with contextlib.suppress(StoreError):
                if agree(folder.config, settings):
                    return folder, loop.last_position(folder, group)
            folder.close()
    shutil.rmtree(path, ignore_errors=True)
    return store.create(path, settings), loop.Position(init_group(group))


def choose_one(
    plan: Plan,
    cell: Cell,
    candidates: Mapping[Any, ActorPolicy],
    seed: int,
    seen: Mapping[Any, Totals] | None,
) -> Choice:
    """The snapshot of a seed that is kept. The last one of a plan without a choice is kept as it is, not tested."""
    if len(candidates) == 1:
        return Choice(next(iter(candidates)), None)
    return choose(plan.prepare(cell), candidates, seed, PILOT_EPISODES, TEST_EPISODES, seen=seen)


def at_levels(
    plan: Plan, cell: Cell, candidates: Mapping[int, ActorPolicy], seed: int, seen: Mapping[int, Totals]
) -> dict[str, Any]:
    """What a dial gives at each level: the position that is certified, and fresh episodes of it."""
    prepared, found = plan.prepare(cell), {}
    for level in DIAL_LEVELS:
        asked = tuple(dataclasses.replace(c, safety=level) for c in prepared.config.constraints)
        asking = asking_of(prepared, asked)
        most = round(TEST_EPISODES * max(1.0, RARE / (1 - level)))
        choice = choose(asking, candidates, seed, PILOT_EPISODES, most, roots=ASKED_SEEDS, seen=seen)
        env: Any = asking.env
        totals = run_episodes(env, candidates[choice.label], evaluation_key(seed), max(plan.episodes, 1))
        safe = float((totals.costs[:, asked[0].channel] <= float(asked[0].limit)).mean())
        fresh = {"episodes": len(totals.returns), "return": float(totals.returns.mean()), "safety_prob": safe}
        found[f"{level:g}"] = {"iteration": choice.label, "certificate": brief(choice), "fresh": fresh}
    return found


def brief(choice: Choice) -> dict[str, Any] | None:
    """How the test of a kept policy ended, without its episodes."""
    if choice.found is None:
        return None
    names = ("word", "sentence", "safety", "episodes", "safe_episodes", "low", "high")
    return {name: choice.found["claims"][0][name] for name in names}


def keep_policies(plan: Plan, cell: Cell, taken: dict[int, dict[int, ActorPolicy]], chosen: dict[int, Choice]) -> None:
    """The final policies as a run of their own: all of the fast preset, else those that MuJoCo judges (10 MB each)."""
    seeds = plan.seeds if cell.preset == "fast" else plan.judged(cell)
    path = policy_folder(plan.path(cell))
    shutil.rmtree(path, ignore_errors=True)
    if not seeds:
        return
    prepared = plan.prepare(cell, seeds)
    kept = stack([kept_of(prepared, taken[seed], chosen[seed]) for seed in seeds])
    with store.create(path, prepared.describe()) as folder:
        save_policies(folder, prepared, kept, [fact_of(prepared, s, taken[s], chosen[s]) for s in seeds])
        keep_certificates(folder, prepared, {seed: chosen[seed] for seed in seeds}, list(taken[seeds[0]]))
        folder.finish()


def evaluate(plan: Plan, cell: Cell, policies: dict[int, ActorPolicy]) -> dict[str, Any]:
    """Fresh episodes of the final policies."""
    if not plan.episodes:
        return {"fresh": None, "judge": None, "discounted": None}
    env: Any = plan.prepare(cell).env
    episodes = run_policies(env, policies, {seed: evaluation_key(seed) for seed in policies}, plan.episodes)
    judge = None
    if chosen := plan.judged(cell):
        judge = {"jax": summary(plan, cell, {seed: episodes[seed] for seed in chosen}), "mujoco": None}
    readings = discounted(plan, cell, policies) if cell.preset == "released" else None
    return {"fresh": summary(plan, cell, episodes), "judge": judge, "discounted": readings}
