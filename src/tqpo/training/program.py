"""Training as one compiled program: `jit(scan(vmap(update)))`, in chunks between which the host is free.

One program trains all runs of a `Group`, whatever their seeds, levels, limits, gains or tilts. All randomness of a run
comes from its own seed, so it is the same alone or in a group, up to the order of floating-point sums. Environments on
the host are collected from in Python (`collector`), one iteration to a chunk. This module neither prints nor writes.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tqpo import algorithms
from tqpo.errors import ConfigError, TqpoError
from tqpo.types import Env, PyTree, Spec

Metrics = dict[str, np.ndarray]  # name → [iterations, runs, …]
OnFaults = Callable[[list[str]], Any]


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that one program can train: run i has configs[i] and seeds[i]. The configs agree in structure."""

    env: Spec
    algorithm: str
    configs: tuple[Any, ...]
    seeds: tuple[int, ...]

    def __post_init__(self):
        counts = len(self.configs), len(self.seeds)
        if counts[0] != counts[1] or not self.configs:
            raise ConfigError("{} configs and {} seeds: a group needs one of each per run".format(*counts))
        for config in self.configs:
            algorithms.get(self.algorithm).check(config, self.env)
            if config.learner.restart_share and not isinstance(self.env, Env):
                share = config.learner.restart_share
                raise ConfigError(f"restart_share = {share}: only JAX environments can begin anew early; use 0")
        if len({jax.tree.structure(config) for config in self.configs}) > 1:
            raise ConfigError("configs of one group must agree in structure: all but their numbers must be equal")

    def __len__(self) -> int:
        return len(self.seeds)


class Chunk(NamedTuple):
    """What the host sees after each chunk."""

    iteration: int  # iterations done so far
    state: PyTree  # [runs, …]
    metrics: Metrics  # of this chunk

    @property
    def length(self) -> int:
        """Iterations of this chunk."""
        return len(self.metrics["steps"])


class Failure(NamedTuple):
    """All that is needed to see a run fail again: start `state` with `config` for `iterations`."""

    seed: int
    config: Any
    place: int  # in its group
    state: PyTree  # of this run, before the chunk in which it failed
    iteration: int  # of that state
    iterations: int  # length of that chunk
    metrics: Metrics  # [iterations, …] of that chunk


class NonFiniteError(TqpoError, ArithmeticError):
    """Too many updates in a row had a loss or gradient that is not finite."""

    def __init__(self, algorithm: str, failures: list[Failure]):
        self.failures, first = failures, failures[0]
        names = ", ".join(f"seed {f.seed} (run {f.place})" for f in failures)
        worst = max(int(f.metrics["skipped_in_a_row"].max()) for f in failures)
        when = f"within the {first.iterations} iterations after iteration {first.iteration}"
        super().__init__(f"{algorithm}: {names}: {worst} updates in a row were not finite, {when}")


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
    on_faults: OnFaults | None = None,
) -> tuple[PyTree, Metrics]:
    """Trains a group for this many iterations, from `state` or from the start.

    After each chunk `on_chunk` is called; if it returns True, training stops there. More than `max_skips` updates in
    a row that were not finite raise a `NonFiniteError` (None: never). The state before the chunk is kept for it, so
    nothing is donated unless `max_skips` is None. `on_faults` gets the reports of environments on the host that were
    restarted, also those of a chunk that an error ends.
    """
    configs = stack_configs(group.configs)
    state = init_group(group) if state is None else state
    done, collected, devices = 0, [], shares(group)
    if devices > 1:
        spread = jax.sharding.NamedSharding(_mesh(devices), jax.P("runs"))
        state, configs = jax.device_put((state, configs), spread)
    with _on_host(group, state) as collector:
        while done < iterations:
            whole = collector is None and iterations - done >= chunk
            length = chunk if whole else 1  # the rest in single steps: no third program is compiled
            before = state
            program = collector or make_chunk(group.env, group.algorithm, length, max_skips is None, devices)
            try:
                state, metrics = program(state, configs)
            finally:
                if collector is not None and on_faults is not None:
                    on_faults(collector.envs.take_reports())
            done += length
            collected.append(jax.tree.map(np.asarray, metrics))
            seen = Chunk(done, _gathered(state, devices), collected[-1])
            if max_skips is not None:
                check_finite(group, before, seen, max_skips)
            if on_chunk is not None and on_chunk(seen):
                break
    return _gathered(state, devices), {name: np.concatenate([m[name] for m in collected]) for name in collected[0]}


def _on_host(group: Group, state: PyTree) -> contextlib.AbstractContextManager[Any]:
    """What collects the batches of environments on the host; None in JAX, where the program does."""
    if isinstance(group.env, Env):
        return contextlib.nullcontext()
    from tqpo.training.collector import Collector

    start = int(state.learner.iteration[0])  # a resumed run meets other episodes
    env: Any = group.env
    return Collector(env, group.algorithm, group.configs[0].learner, group.seeds, start)


def check_finite(group: Group, before: PyTree, chunk: Chunk, max_skips: int) -> None:
    """Raises if a run skipped more than `max_skips` updates in a row; `before` is the state the chunk began with."""
    failed = np.flatnonzero(chunk.metrics["skipped_in_a_row"].max(0) > max_skips)  # of [runs]
    when = chunk.iteration - chunk.length, chunk.length
    failures = []
    for i in failed.tolist():
        metrics = {name: x[:, i] for name, x in chunk.metrics.items()}
        failures.append(Failure(group.seeds[i], group.configs[i], i, take_run(before, i), *when, metrics))
    if failures:
        raise NonFiniteError(group.algorithm, failures)


def take_run(state: PyTree, i: int) -> PyTree:
    """The state of one run of a group."""
    return jax.tree.map(lambda x: x[i], state)
