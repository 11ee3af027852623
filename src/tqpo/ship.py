"""The best policy of a run, as a small run of its own that comes with the package.

    python -m tqpo.ship RUN… [--out src/tqpo/policies]

The best is the seed with the highest return among those whose evaluation meets the level.
"""

import argparse
import dataclasses
import json
import pathlib
import sys

import jax

from tqpo import finish, session, store
from tqpo.errors import ConfigError, TqpoError
from tqpo.session import Job
from tqpo.store.run import LOCK, SHIPPED


def ship(run: str | pathlib.Path, out: pathlib.Path = SHIPPED, episodes: int = 1000) -> pathlib.Path:
    """Writes the best policy of a run to a new folder in `out`, named by task and level."""
    source = store.open_run(run)
    job, policies = Job.from_description(source.config), session.load_policies(source)
    seed = best_seed(source)
    alone = dataclasses.replace(job, seeds=(seed,))
    folder = store.create(out / f"{job.task}-{100 * job.safety:g}", alone.describe())
    with folder:
        stacked = jax.tree.map(lambda x: x[None], policies[seed])
        session.save_policies(folder, alone, alone.group(), stacked, [{"seed": seed, "of_run": source.id}])
        for deterministic in (True, False):
            finish.add_evaluation(folder, episodes, "jax", deterministic)
        folder.finish()
    (folder.folder / LOCK).unlink(missing_ok=True)
    return folder.folder


def best_seed(source: store.Run) -> int:
    sampled = next((e for e in finish.evaluations_of(source) if not e["deterministic"]), None)
    if sampled is None:
        raise ConfigError(f"{source.folder} has no evaluation: run tqpo evaluate {source.folder}")
    safe = [s for s in sampled["seeds"] if all(c["verdict"]["word"] == "meets" for c in s["constraints"])]
    if not safe:
        raise ConfigError(f"no seed of {source.folder} meets its level: train longer, or with more seeds")
    return max(safe, key=lambda s: s["return"]["value"])["seed"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tqpo.ship", description=__doc__)
    parser.add_argument("runs", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=SHIPPED)
    given = parser.parse_args()
    try:
        for run in given.runs:
            folder = ship(run, given.out)
            found = json.loads((folder / finish.EVALUATION).read_text())["evaluations"][0]
            print(folder.name, found["verdict"]["sentence"])
    except TqpoError as error:
        sys.exit(f"tqpo: {error}")


if __name__ == "__main__":
    main()
