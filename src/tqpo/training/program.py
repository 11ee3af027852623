"""Training as one compiled program: `jit(scan(vmap(update)))`, in chunks between which the host is free.

A *run* is an environment, an algorithm, a config and a seed. Runs whose structure agrees form a `Group`: one program
trains all of them, whatever their seeds, levels, limits, gains or tilts. All randomness of a run comes from its own seed, so
it is the same run alone or in a group, up to the order of floating-point sums.

Environments on the host are collected from in Python (`collecting`), one iteration to a chunk.

This module neither prints nor writes: `run` hands every chunk to a callback.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tqpo import algorithms
from tqpo.errors import ConfigError, TqpoError
from tqpo.types import Env, PyTree, Spec

Metrics = dict[str, np.ndarray]  # name → [iterations, runs, …]


class Run(NamedTuple):
    env: Spec
    algorithm: str
    config: Any
    seed: int


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that one program can train: run i has configs[i] and seeds[i]."""

    env: Spec
    algorithm: str
    configs: tuple[Any, ...]
    seeds: tuple[int, ...]

    def __post_init__(self):
        if len(self.configs) != len(self.seeds) or not self.configs:
            raise ConfigError(
                f"{len(self.configs)} configs and {len(self.seeds)} seeds: a group needs one of each per run"
            )
        for config in self.configs:
            algorithms.get(self.algorithm).check(config, self.env)
        if len({jax.tree.structure(config) for config in self.configs}) > 1:
            raise ConfigError("configs of one group must agree in structure; `group_runs` sorts runs into groups")

    def __len__(self) -> int:
        return len(self.seeds)

    def run(self, i: int) -> Run:
        return Run(self.env, self.algorithm, self.configs[i], self.seeds[i])


class Chunk(NamedTuple):
    """What the host sees after each chunk."""

    iteration: int  # iterations done so far
    state: PyTree  # [runs, …]
    metrics: Metrics  # of this chunk
    faults: tuple[str, ...] = ()  # reports of environments on the host that were restarted


class Failure(NamedTuple):
    """All that is needed to see a run fail again: start `state` with `run.config` for `iterations`."""

    run: Run
    place: int  # in its group
    state: PyTree  # of this run, before the chunk in which it failed
    iteration: int  # of that state
    iterations: int  # length of that chunk
    metrics: Metrics  # [iterations, …] of that chunk


class NonFiniteError(TqpoError, ArithmeticError):
    """Too many updates in a row had a loss or gradient that is not finite."""

    def __init__(self, failures: list[Failure], chunk: Chunk):
        self.failures = failures
        self.chunk = chunk  # the state after it, for those who go on with the other runs
        names = ", ".join(f"seed {f.run.seed} (run {f.place})" for f in failures)
        worst = max(int(f.metrics["skipped_in_a_row"].max()) for f in failures)
        super().__init__(
            f"{failures[0].run.algorithm}: {names}: {worst} updates in a row were not finite, within the "
            f"{failures[0].iterations} iterations after iteration {failures[0].iteration}"
        )


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Runs sorted into as few groups as their structure allows, in order of first appearance."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        structure = (run.env, run.algorithm, jax.tree.structure(run.config))
        groups.setdefault(structure, []).append(run)
    return [
        Group(members[0].env, members[0].algorithm, *zip(*((r.config, r.seed) for r in members), strict=True))
        for members in groups.values()
    ]


def product(env: Spec, algorithm: str, configs: Sequence[Any], seeds: Sequence[int]) -> Group:
    """Every config with every seed."""
    pairs = [(config, seed) for config in configs for seed in seeds]
    return Group(env, algorithm, *zip(*pairs, strict=True))


def stack_configs(configs: Sequence[Any]) -> Any:
    """One config with leaves [runs], in the dtypes that the program computes with."""

    def stack(*leaves):
        return jnp.asarray(leaves, int if all(isinstance(x, int) for x in leaves) else float)

    return jax.tree.map(stack, *configs)


def init_group(group: Group) -> PyTree:
    """The state of all runs before their first iteration, [runs, …]."""
    return _init_program(group.env, group.algorithm)(jnp.asarray(group.seeds, jnp.uint32), stack_configs(group.configs))


@functools.lru_cache(maxsize=64)
def _init_program(env: Spec, algorithm: str):
    init = algorithms.get(algorithm).init
    return jax.jit(jax.vmap(lambda seed, config: init(jax.random.key(seed), env, config)))


@functools.lru_cache(maxsize=64)
def make_chunk(env: Any, algorithm: str, iterations: int, donate: bool = True, devices: int = 1):
    """The compiled (states, configs) → (states, metrics [iterations, runs, …]); compiled once per structure.

    With `donate` the states passed in are used up. With several devices, each trains its share of the runs.
    """

    def chunk(states, configs):
        def iteration(states, _):
            return _over_runs(lambda state, config: algorithms.update(algorithm, state, env, config), states, configs)

        with jax.default_matmul_precision(configs.learner.matmul_precision):
            return jax.lax.scan(iteration, states, length=iterations)

    if devices > 1:
        specs = (jax.P("runs"), jax.P(None, "runs"))
        chunk = jax.shard_map(chunk, mesh=_mesh(devices), in_specs=specs[0], out_specs=specs, check_vma=False)
    return jax.jit(chunk, donate_argnums=(0,) if donate else ())


def _mesh(devices: int) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.local_devices()[:devices]), ("runs",))


def _gathered(state: PyTree, devices: int) -> PyTree:
    """On one device, so that whoever gets it need not know of others."""
    return jax.device_put(state, jax.local_devices()[0]) if devices > 1 else state


def shares(group: Group) -> int:
    """Over how many of this machine's devices a group is spread: all of them if they divide its runs, else one."""
    count = jax.local_device_count()
    return count if isinstance(group.env, Env) and len(group) % count == 0 else 1


def _over_runs(update, states, configs):
    """`vmap`, but a single run goes without: its products stay plain matrix products."""
    if jax.tree.leaves(configs)[0].shape[0] > 1:
        return jax.vmap(update)(states, configs)
    alone = jax.tree.map(lambda x: x[0], (states, configs))
    return jax.tree.map(lambda x: x[None], update(*alone))


def run(
    group: Group,
    iterations: int,
    chunk: int = 10,
    on_chunk: Callable[[Chunk], Any] | None = None,
    state: PyTree | None = None,
    max_skips: int | None = 50,
) -> tuple[PyTree, Metrics]:
    """Trains a group for this many iterations, from `state` or from the start.

    After each chunk `on_chunk` is called; if it returns True, training stops there. More than `max_skips` updates in
    a row that were not finite raise a `NonFiniteError` (None: never). The state before the chunk is kept for it, so
    nothing is donated unless `max_skips` is None.
    """
    configs = stack_configs(group.configs)
    state = init_group(group) if state is None else state
    done, collected, devices = 0, [], shares(group)
    if devices > 1:
        spread = jax.sharding.NamedSharding(_mesh(devices), jax.P("runs"))
        state, configs = jax.device_put((state, configs), spread)
    with _on_host(group, state) as collector:
        while done < iterations:
            length = min(chunk, iterations - done) if collector is None else 1
            before = state
            program = collector or make_chunk(group.env, group.algorithm, length, max_skips is None, devices)
            state, metrics = program(state, configs)
            done += length
            collected.append(jax.tree.map(np.asarray, metrics))
            faults = () if collector is None else tuple(collector.envs.take_reports())
            seen = Chunk(done, _gathered(state, devices), collected[-1], faults)
            if max_skips is not None:
                check_finite(group, before, seen, max_skips)
            if on_chunk is not None and on_chunk(seen):
                break
    return _gathered(state, devices), {name: np.concatenate([m[name] for m in collected]) for name in collected[0]}


def _on_host(group: Group, state: PyTree) -> contextlib.AbstractContextManager[Any]:
    """What collects the batches of a group whose environments live on the host; None of one in JAX, whose program does."""
    if isinstance(group.env, Env):
        return contextlib.nullcontext()
    from tqpo.training.collector import Collector

    start = int(state.learner.iteration[0])  # a resumed run meets other episodes
    env: Any = group.env
    return Collector(env, group.algorithm, group.configs[0].learner, group.seeds, start)


def check_finite(group: Group, before: PyTree, chunk: Chunk, max_skips: int) -> None:
    """Raises if a run of the chunk skipped more than `max_skips` updates in a row; `before` is the state it began with."""
    worst = chunk.metrics["skipped_in_a_row"].max(0)  # [runs]
    failed = np.flatnonzero(worst > max_skips)
    if failed.size:
        length = len(chunk.metrics["skipped_in_a_row"])
        raise NonFiniteError(
            [
                Failure(
                    group.run(i),
                    i,
                    take_run(before, i),
                    chunk.iteration - length,
                    length,
                    {name: x[:, i] for name, x in chunk.metrics.items()},
                )
                for i in failed.tolist()
            ],
            chunk,
        )


def take_run(state: PyTree, i: int) -> PyTree:
    """The state of one run of a group."""
    return jax.tree.map(lambda x: x[i], state)


def take_runs(group: Group, state: PyTree, indices: Sequence[int]) -> tuple[Group, PyTree]:
    """Some runs of a group, with their state: to go on without the others."""
    at = np.asarray(indices)
    smaller = Group(group.env, group.algorithm, tuple(group.configs[i] for i in at), tuple(group.seeds[i] for i in at))
    return smaller, jax.tree.map(lambda x: x[at], state)
