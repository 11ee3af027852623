"""The best policy of a run or of a reproduced cell, as a small run of its own that comes with the package.

    python -m tqpo.reproduce.ship RUN|CELL.json… [--out src/tqpo/policies] [--episodes 1000]

The best is the seed with the highest return among those whose evaluation meets the level. A cell's policies lie beside its file, in
`policies/`, where `tqpo reproduce fast` left them.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from tqpo import store
from tqpo.errors import ConfigError, TqpoError
from tqpo.evaluation.episodes import ActorPolicy
from tqpo.reproduce import cells
from tqpo.reproduce.paper import COST_LIMIT, Cell
from tqpo.store.run import LOCK, SHIPPED
from tqpo.training.evaluations import EVALUATION, add_evaluation, evaluations_of
from tqpo.training.job import Job
from tqpo.training.policies import load_policies, save_policies


class Chosen(NamedTuple):
    job: Job  # of one seed
    policy: ActorPolicy
    origin: dict[str, Any]


def ship(path: str | pathlib.Path, out: pathlib.Path = SHIPPED, episodes: int = 1000) -> pathlib.Path:
    """Writes the best policy to a new folder in `out`, named by task and level."""
    path = pathlib.Path(path)
    job, policy, origin = of_cell(path) if path.suffix == ".json" else of_run(path)
    folder = store.create(out / f"{job.task}-{100 * job.safety:g}", job.describe())
    with folder:
        stacked = jax.tree.map(lambda x: x[None], policy)
        save_policies(folder, job, job.group(), stacked, [{"seed": job.seeds[0]} | origin])
        for deterministic in (True, False):
            add_evaluation(folder, episodes, "jax", deterministic)
        folder.finish()
    (folder.folder / LOCK).unlink(missing_ok=True)
    return folder.folder


def of_run(path: pathlib.Path) -> Chosen:
    source = store.open_run(path)
    sampled = next((e for e in evaluations_of(source) if not e["deterministic"]), None)
    if sampled is None:
        raise ConfigError(f"{source.folder} has no evaluation: run tqpo evaluate {source.folder}")
    seed = best_seed(sampled, source.folder)
    job = dataclasses.replace(Job.from_description(source.config), seeds=(seed,))
    return Chosen(job, load_policies(source)[seed], {"of_run": source.id})


def of_cell(path: pathlib.Path) -> Chosen:
    found = cells.read(path)
    if not (found and found.get("complete") and found["fresh"]):
        raise ConfigError(f"{path} is not a finished cell with fresh episodes: run tqpo reproduce")
    facts = found["settings"]
    cell = Cell(facts["task"], facts["algo"], facts["safety"], facts["preset"])
    plan = cells.Plan((cell,), path.parent, tuple(facts["seeds"]), facts["steps"])
    if not cells.agree(facts, plan, cell):
        raise ConfigError(f"{path} was made with other settings than the {cell.preset} preset has now")
    seed = best_seed(found["fresh"], path)
    asked = {"safety": cell.safety, "cost_limit": COST_LIMIT, "seeds": (seed,), "steps": plan.steps, "snapshots": 1}
    job = Job(task=cell.task, algo=cell.algo, preset=cell.preset, **asked)
    origin = {"of_cell": cell.name, "commit": found["provenance"]["commit"]}
    return Chosen(job, cells.load_policy(plan, cell, seed), origin)


def best_seed(evaluation: Mapping[str, Any], source: pathlib.Path) -> int:
    safe = [s for s in evaluation["seeds"] if all(c["verdict"]["word"] == "meets" for c in s["constraints"])]
    if not safe:
        raise ConfigError(f"no seed of {source} meets its level: train longer, or with more seeds")
    return max(safe, key=lambda s: s["return"]["value"])["seed"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tqpo.reproduce.ship", description=__doc__)
    parser.add_argument("runs", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=SHIPPED)
    parser.add_argument("--episodes", type=int, default=1000, help="of its evaluation (default: 1000)")
    given = parser.parse_args()
    try:
        for run in given.runs:
            folder = ship(run, given.out, given.episodes)
            found = json.loads((folder / EVALUATION).read_text())["evaluations"][0]
            print(folder.name, found["verdict"]["sentence"])
    except TqpoError as error:
        sys.exit(f"tqpo: {error}")


if __name__ == "__main__":
    main()
