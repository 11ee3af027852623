"""Run with two devices: trains a group on both and on one, and prints what differs. `test_devices.py` reads it."""

import json
import tempfile

import jax
import jobs
import numpy as np
from probes import Counter
from small import small

from tqpo import store
from tqpo.algorithms.dual import Tilt
from tqpo.algorithms.settings import replace
from tqpo.training import loop, program
from tqpo.training.policies import load_policies
from tqpo.training.program import Group

ENV = Counter()
CONFIG = small("fast", "tqpo", baseline="separate", cost_limit=2.0, cost_scale=1.0, delta=0.1)
VARIANTS = [replace(CONFIG, tilt=int(t), safety=s) for t, s in zip(Tilt, (0.9, 0.8, 0.7, 0.6), strict=True)]


def train() -> tuple[list[np.ndarray], set[int]]:
    """States and metrics of four runs, and on how many devices they were trained."""
    group, make, places = Group(ENV, "tqpo", tuple(VARIANTS), (0, 1, 2, 3)), program.make_chunk, set()

    def watched(*arguments):
        def call(states, configs):
            found = make(*arguments)(states, configs)
            places.add(len(found[0].learner.key.devices()))
            return found

        return call

    program.make_chunk = watched
    state, metrics = program.run(group, 4, 2)
    program.make_chunk = make
    leaves = [np.asarray(x) for x in jax.tree.leaves(state) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return [*leaves, *metrics.values()], places


def main() -> None:
    found: dict = {"devices": jax.local_device_count()}
    found["three"] = program.shares(Group(ENV, "tqpo", tuple(VARIANTS[:3]), (0, 1, 2)))
    with tempfile.TemporaryDirectory() as folder:  # from the first step to the policy that is kept
        loop.train(jobs.small_job(), f"{folder}/run", loop.Options(quiet=True)).close()
        found["policies"] = len(load_policies(store.open_run(f"{folder}/run")))
    both, places = train()
    program.shares = lambda group: 1
    one, place = train()
    found["places"] = [*places, *place]
    pairs = [(a.astype(float), b.astype(float)) for a, b in zip(both, one, strict=True)]
    found["from_one"] = max(float(np.max(np.abs(a - b), initial=0.0)) for a, b in pairs)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
