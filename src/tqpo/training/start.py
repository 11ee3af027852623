"""Where a run starts: with fresh weights, or with what another run learned (`init_from`).

It takes the policies that were kept, with their normaliser, and from the last checkpoint, where there is one, the critics and
multipliers that fit. The optimiser, the windows and the environments begin anew.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tqpo import store
from tqpo.errors import ConfigError
from tqpo.networks import NetworkSpec
from tqpo.training.job import Job, Prepared, frozen
from tqpo.training.program import init_group
from tqpo.types import PyTree

ACTING = {"actor.": "learner.network.actor.", "moments.": "learner.moments."}  # in `policy.json` → in a state
LOG_STD = "actor.log_std"
TAKEN = ("learner.network.", "learner.moments.", "dual.multiplier", "integral")


def state_of(prepared: Prepared) -> PyTree:
    """The state of all runs before their first iteration, [runs, …]."""
    fresh, path = init_group(prepared.group), prepared.job.init_from
    if path is None:
        return fresh
    with store.open_run(path) as source:
        kept, description = source.load_policy()
        arrays = source.checkpoint_arrays()
        acting_noise = source.config["derived"]["algorithm"]["learner"].get("acting_noise", 1.0)
    if LOG_STD in kept:  # a kept policy acts with less noise than it learned with: go on learning with that
        kept = {**kept, LOG_STD: kept[LOG_STD] - np.log(acting_noise)}
    for name, array in kept.items():
        prefix = next(p for p in ACTING if name.startswith(p))
        arrays[name.replace(prefix, ACTING[prefix], 1)] = array
    seeds = description["seeds"]
    places = np.array([seeds.index(seed) if seed in seeds else 0 for seed in prepared.job.seeds])

    def start(name: str, leaf: Any) -> Any:
        given = arrays.get(name) if name.startswith(TAKEN) else None
        if given is not None and given.shape[1:] == leaf.shape[1:]:
            return jnp.asarray(given[places], leaf.dtype)
        if name.startswith(tuple(ACTING.values())):
            there = "not there" if given is None else f"of shape {list(given.shape[1:])} there"
            raise ConfigError(
                f"init_from = {path}: {name.removeprefix('learner.')} is {there} and {list(leaf.shape[1:])} here: "
                "observations, actions and network must be the same"
            )
        return leaf

    leaves = [start(name, leaf) for name, leaf in store.named_leaves(fresh).items()]
    return jax.tree.unflatten(jax.tree.structure(fresh), leaves)


def inheriting(job: Job) -> Job:
    """The job with the network of the run that it starts from, where it does not set another."""
    if job.init_from is None:
        return job
    with store.open_run(job.init_from) as source:
        network = source.config["derived"]["algorithm"]["learner"]["network"]
    known = {field.name for field in dataclasses.fields(NetworkSpec)}
    inherited = {name: frozen(value) for name, value in network.items() if name in known}
    return dataclasses.replace(job, settings=inherited | dict(job.settings))


def origin(job: Job) -> dict[str, Any]:
    """Which policies a run starts with, for its `config.json`."""
    if job.init_from is None:
        return {}
    with store.open_run(job.init_from) as source:
        about = {"folder": str(source.folder), "run": source.id, "policy": source.policy_sha256()}
        last = source.manifest["sessions"][-1]
        return {"init_from": about | {"steps": Job.from_description(source.config).steps, "commit": last["commit"]}}
