"""A run as one small JSON file: what was asked, thinned learning curves, evaluations, where it comes from.

python -m tqpo.output.digest runs/pendulum --out results/own-environment/pendulum.json
"""

import argparse
import json
import pathlib
from typing import Any

import numpy as np

from tqpo import store
from tqpo.host import bridge
from tqpo.training.evaluations import evaluations_of
from tqpo.training.job import Job

POINTS = 100  # of a curve, at most
CURVES = {"step", "return_mean", "safety_prob", "episode_cost_mean", "episode_cost_quantile", "multiplier"}
BULKY = {"returns", "lengths"}  # of every episode of an evaluation; the costs are kept


def summary(run: store.Run) -> dict[str, Any]:
    job = Job.from_description(run.config)
    digest = {
        "job": run.config["job"],
        "task": run.config["derived"]["task"],
        "curves": curves(run, len(job.seeds)),
        "evaluations": [
            {**e, "seeds": [{k: v for k, v in seed.items() if k not in BULKY} for seed in e["seeds"]]}
            for e in evaluations_of(run)
        ],
        "sessions": run.manifest["sessions"],
        "incidents": run.manifest["incidents"],
    }
    if job.task.startswith(bridge.PREFIX):
        env = bridge.make_env(*bridge.parse(job.task))
        digest["versions_in_the_other_python"] = env.hello.versions
        env.close()
    return digest


def curves(run: store.Run, seeds: int) -> dict[str, list[list[float]]]:
    """Each as lists by seed, of at most `POINTS` points; the last is the end of training."""
    columns = run.metrics()
    length = len(columns["iteration"]) // seeds
    which = np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(int))
    tables = {name: x[: length * seeds].reshape(length, seeds) for name, x in columns.items()}  # [iterations, seeds]
    shown = {name: table[which].T for name, table in tables.items() if name.partition(".")[0] in CURVES}
    return {name: [[float(f"{x:.7g}") for x in line] for line in lines] for name, lines in shown.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=pathlib.Path, help="the folder that training wrote")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    with store.open_run(options.run) as run:
        digest = summary(run)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(digest, indent=1) + "\n")
    print(options.out)


if __name__ == "__main__":
    main()
