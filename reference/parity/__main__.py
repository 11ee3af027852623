"""Measures cell by cell. A cell that was measured with the same sources and settings is kept: a stopped run goes on."""

import argparse
import ast
import hashlib
import json
import pathlib
import time
from typing import Any

import jax

from reference.parity import closed_loop, copied, one_step
from reference.parity.document import document
from tqpo.envs import TASKS, TaskConfig
from tqpo.provenance import provenance

ROOT = pathlib.Path(__file__).parents[2]  # of the clone
FOR_BOXES = {"boxes", "movable", "newton", "push", "loose", "shove"}
NO_MATTER = {"__init__", "kernel", "gymnasium", "render", "registry", "document", "__main__"}

USES = {"one_step": {"one_step"}, "copied": {"one_step", "copied"}, "closed_loop": {"closed_loop"}}

FULL = {"states": 10_000, "copied": 5, "episodes": 200}
QUICK = {"states": 500, "copied": 1, "episodes": 20}


def sources(section: str, config: TaskConfig) -> str:
    """A hash of the code that a measurement of this task depends on, comments aside."""
    others = {"one_step", "copied", "closed_loop"} - USES[section]
    unused = NO_MATTER | others | (set() if config.free_boxes else FOR_BOXES)
    digest = hashlib.sha256()
    for path in sorted(
        p for part in ("src/tqpo/physics", "src/tqpo/envs", "reference/parity") for p in (ROOT / part).glob("*.py")
    ):
        if path.stem not in unused:
            digest.update(ast.dump(ast.parse(path.read_text())).encode())
    return digest.hexdigest()[:16]


def plan(tasks: list[str], sections: list[str], size: dict[str, int], workers: int):
    """Every cell: its name, its settings and the function that measures it."""
    for task in tasks:
        config = TASKS[task]
        if "one_step" in sections:
            yield f"one_step/{task}", config, lambda c=config: one_step.measure(c, size["states"])
        if "copied" in sections:
            yield f"copied/{task}", config, lambda c=config: copied.measure(c, size["copied"])
        for policy in closed_loop.POLICIES if "closed_loop" in sections else ():
            yield (
                f"closed_loop/{task}/{policy}",
                config,
                lambda c=config, p=policy: closed_loop.measure(c, p, size["episodes"], workers),
            )


def in_order(cells: dict[str, Any]) -> dict[str, Any]:
    """By section, then by task as they are registered."""
    tasks = list(TASKS)
    return dict(sorted(cells.items(), key=lambda kv: (kv[0].split("/")[0], tasks.index(kv[0].split("/")[1]))))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m reference.parity", description="Agreement of the JAX tasks with MuJoCo."
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results/parity.json"))
    parser.add_argument("--doc", type=pathlib.Path, help="write the tables here, e.g. docs/parity.md")
    parser.add_argument("--quick", action="store_true", help="small numbers, to try the command")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    names = ["one_step", "copied", "closed_loop"]
    parser.add_argument("--sections", nargs="+", choices=names, default=names)
    parser.add_argument("--workers", type=int, default=2, help="processes for the MuJoCo episodes")
    parser.add_argument("--fresh", action="store_true", help="measure everything anew")
    options = parser.parse_args()

    size = QUICK if options.quick else FULL
    cells: dict[str, Any] = {}
    if options.out.exists() and not options.fresh:
        cells = json.loads(options.out.read_text())["cells"]
    for name, config, measure in plan(options.tasks, options.sections, size, options.workers):
        made_of = {"sources": sources(name.split("/")[0], config), "size": size}
        if cells.get(name, {}).get("made_of") == made_of:
            print(f"{name}: kept", flush=True)
            continue
        start = time.perf_counter()
        cells[name] = measure() | {"made_of": made_of, "commit": provenance()["commit"]}
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
        write(options.out, cells)
        jax.clear_caches()  # a dozen large programs in one process exhaust its memory maps
    write(options.out, cells)
    if options.doc:
        options.doc.parent.mkdir(parents=True, exist_ok=True)
        options.doc.write_text(document(json.loads(options.out.read_text())))


def write(path: pathlib.Path, cells: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"provenance": provenance(), "cells": in_order(cells)}, indent=1) + "\n")
    part.replace(path)


if __name__ == "__main__":
    main()
