"""Run with two devices: trains a group on both and on one, and prints what differs. `test_devices.py` reads it."""

import json

import jax
import numpy as np

from test_program import ENV, VARIANTS
from tqpo import program
from tqpo.program import Group


def train() -> tuple[list[np.ndarray], list[int]]:
    """States and metrics of four runs, and on how many devices the states were after each chunk."""
    group, places = Group(ENV, "tqpo", tuple(VARIANTS), (0, 1, 2, 3)), []
    state, metrics = program.run(group, 4, 2, lambda chunk: places.append(len(chunk.state.learner.key.devices())))
    assert len(state.learner.key.devices()) == 1  # whoever gets it need not know
    leaves = [np.asarray(x) for x in jax.tree.leaves(state) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return [*leaves, *metrics.values()], places


def main() -> None:
    found = {"devices": jax.local_device_count()}
    found["three"] = program.shares(Group(ENV, "tqpo", tuple(VARIANTS[:3]), (0, 1, 2)))
    both, found["places"] = train()
    program.shares = lambda group: 1
    one, found["one_place"] = train()
    pairs = [(a.astype(float), b.astype(float)) for a, b in zip(both, one, strict=True)]
    found["from_one"] = max(float(np.max(np.abs(a - b), initial=0.0)) for a, b in pairs)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
