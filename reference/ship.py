"""The best policy of a run or of a reproduced cell, as a small run of its own that comes with the package.

    python -m reference.ship RUN|CELL.json… [--out src/tqpo/policies] [--episodes 1000]

The best is the seed with the highest return among those whose evaluation meets the level. It is evaluated and certified
anew. A cell's policies are in a run beside its file, in `policies/`, where `tqpo reproduce` left them.
"""

import argparse
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import jax

from tqpo import store
from tqpo.errors import ConfigError, TqpoError
from tqpo.reproduce import cells
from tqpo.store.run import LOCK, SHIPPED
from tqpo.training.certificates import Asked, add_certificates
from tqpo.training.choose import certify
from tqpo.training.evaluations import add_evaluation, evaluations_of
from tqpo.training.job import prepared_of
from tqpo.training.policies import load_policy, save_policies


def ship(path: str | pathlib.Path, out: pathlib.Path = SHIPPED, episodes: int = 1000) -> pathlib.Path:
    """Writes the best policy to a new folder in `out`, named by task and level."""
    path = pathlib.Path(path)
    source, evaluation, origin = of_cell(path) if path.suffix == ".json" else of_run(path)
    seed, policy = load_policy(source, best_seed(evaluation, path))
    prepared = prepared_of(source.config | {"job": source.config["job"] | {"seeds": [seed]}})
    with store.create(out / f"{prepared.job.task}-{100 * prepared.job.safety:g}", prepared.describe()) as folder:
        stacked = jax.tree.map(lambda x: x[None], policy)
        save_policies(folder, prepared, stacked, [{"seed": seed} | origin])
        for deterministic in (True, False):
            add_evaluation(folder, episodes, "jax", deterministic)
        add_certificates(folder, certify(folder, Asked()))
        folder.finish()
    (folder.folder / LOCK).unlink(missing_ok=True)
    return folder.folder


def of_run(path: pathlib.Path) -> tuple[store.Run, dict[str, Any], dict[str, Any]]:
    """A run, its evaluation, and where its policies come from."""
    source = store.open_run(path)
    sampled = next((e for e in evaluations_of(source) if not e["deterministic"]), None)
    if sampled is None:
        raise ConfigError(f"{source.folder} has no evaluation: run tqpo evaluate {source.folder}")
    return source, sampled, {"of_run": source.id}


def of_cell(path: pathlib.Path) -> tuple[store.Run, dict[str, Any], dict[str, Any]]:
    """The same of a cell's file."""
    cell = cells.read(path)
    if not (cell and cell.get("complete") and cell["fresh"]):
        raise ConfigError(f"{path} is not a finished cell with fresh episodes: run tqpo reproduce")
    source = store.open_run(cells.policy_folder(path))
    return source, cell["fresh"], {"of_cell": path.stem, "commit": cell["provenance"]["commit"]}


def best_seed(evaluation: Mapping[str, Any], source: pathlib.Path) -> int:
    safe = [s for s in evaluation["seeds"] if all(c["verdict"]["word"] == "meets" for c in s["constraints"])]
    if not safe:
        raise ConfigError(f"no seed of {source} meets its level: train longer, or with more seeds")
    return max(safe, key=lambda s: s["return"]["value"])["seed"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reference.ship", description=__doc__)
    parser.add_argument("runs", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=SHIPPED)
    parser.add_argument("--episodes", type=int, default=1000, help="of its evaluation (default: 1000)")
    given = parser.parse_args()
    try:
        for run in given.runs:
            folder = ship(run, given.out, given.episodes)
            print(folder.name, evaluations_of(store.open_run(folder))[0]["verdict"]["sentence"])
    except TqpoError as error:
        sys.exit(f"tqpo: {error}")


if __name__ == "__main__":
    main()
