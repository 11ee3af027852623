"""Speed of training: where an iteration's time goes, beside another checkout of the package in the same run.

Each checkout measures itself in a process of its own, which runs this very file with the package of that checkout. They
take turns, so that whatever else the machine does falls on both. What is measured is compiled before the first turn.
"""

import contextlib
import importlib
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import environ, pathsep
from typing import Any

PARTS = ("collect", "learn", "iteration", "host", "evaluation")  # s; all but evaluation of one iteration
Processes = dict[str, subprocess.Popen]  # of one combination, by the name of its package
CHUNK = {"fast": 4, "paper": 1, "released": 1}  # iterations of a timed program


def either(*names: str) -> Any:
    """The first of these modules that this checkout has."""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ImportError(" or ".join(names))


def timed(call: Callable[[], Any]) -> float:
    """Seconds until all that it gives is there."""
    import jax

    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def parts_of(spec: Mapping[str, Any]) -> tuple[dict[str, Callable[[], Any]], int]:
    """What is timed: a batch, what is learned from it, a chunk of iterations alone and as the host runs it, episodes. Also
    the environment steps of an iteration of all runs."""
    import jax

    from tqpo import algorithms
    from tqpo.algorithms import learner

    program, jobs = either("tqpo.training.program", "tqpo.program"), either("tqpo.training.job", "tqpo.job")
    acting = either("tqpo.evaluation.episodes", "tqpo.acting")
    own = ("task", "algo", "preset", "settings")
    job = jobs.Job(seeds=tuple(range(spec["runs"])), **{name: spec[name] for name in own})
    group = job.prepare().group if hasattr(job, "prepare") else job.group()
    state, configs = program.init_group(group), program.stack_configs(group.configs)
    env, name, chunk = group.env, group.algorithm, CHUNK[spec["preset"]]

    def collect(state, config):
        core, experience = learner.collect(state.learner, env, config.learner)
        return state._replace(learner=core), experience

    def learn(collected, config):
        return algorithms.get(name).learn(*collected, config)

    def over_runs(function):
        def whole(states, configs):
            with jax.default_matmul_precision(configs.learner.matmul_precision):
                return program._over_runs(function, states, configs)

        return jax.jit(whole)

    collect, learn = over_runs(collect), over_runs(learn)
    collected = collect(state, configs)
    policies = acting.ActorPolicy(state.learner.network.actor, state.learner.moments)
    learns = group.configs[0].learner
    parts = {
        "collect": lambda: collect(state, configs),
        "learn": lambda: learn(collected, configs),
        "iteration": lambda: program.make_chunk(env, name, chunk, False)(state, configs),
        "host": lambda: program.run(group, chunk, chunk, state=state)[0],
        "evaluation": lambda: evaluate(acting, env, policies, spec["episodes"]),
    }
    return parts, len(group) * learns.n_envs * learns.n_steps


def evaluate(acting: Any, env: Any, policies: Any, episodes: int) -> Any:
    """So many episodes of each policy [runs, …]."""
    import jax

    key = jax.random.key(1)
    each = {i: jax.tree.map(lambda x, i=i: x[i], policies) for i in range(policies.moments.mean.shape[0])}
    if hasattr(acting, "run_policies"):
        return acting.run_policies(env, each, dict.fromkeys(each, key), episodes)
    return [acting.run_episodes(env, policy, key, episodes) for policy in each.values()]


def serve(spec: Mapping[str, Any]) -> None:
    """In a process of its own: compiles, then measures one turn for each line that comes."""
    start = time.perf_counter()
    parts, steps = parts_of(spec)
    for call in parts.values():
        timed(call)
    print(json.dumps({"start_s": time.perf_counter() - start, "steps": steps}), flush=True)
    chunk = CHUNK[spec["preset"]]
    for _ in sys.stdin:
        seconds = {name: timed(call) for name, call in parts.items()}
        seconds["iteration"], seconds["host"] = seconds["iteration"] / chunk, seconds["host"] / chunk
        seconds["host"] = max(seconds["host"] - seconds["iteration"], 0.0)
        print(json.dumps(seconds), flush=True)


def start(spec: Mapping[str, Any], source: pathlib.Path) -> subprocess.Popen:
    """The process that measures the package in this folder."""
    command = [sys.executable, "-P", __file__, json.dumps(spec)]
    paths = [str(source.absolute()), environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": pathsep.join(filter(None, paths)), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # two share a GPU
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environ | own, **pipes)


def answer(process: subprocess.Popen) -> dict[str, float]:
    line = process.stdout.readline()  # pyright: ignore[reportOptionalMemberAccess]
    if not line:
        raise RuntimeError(f"a measuring process ended with status {process.wait()}")
    return json.loads(line)


@contextlib.contextmanager
def compiled(
    specs: Sequence[Mapping[str, Any]], sources: Mapping[str, pathlib.Path]
) -> Iterator[list[tuple[Mapping[str, Any], Processes, dict[str, dict[str, float]]]]]:
    """Each combination's processes, started at once, and what they say when all of them wait for their turns."""
    started: list[Processes] = []
    try:
        for spec in specs:
            started.append({})
            for name, source in sources.items():
                started[-1][name] = start(spec, source)
        begun = [{name: answer(process) for name, process in processes.items()} for processes in started]
        yield list(zip(specs, started, begun, strict=True))
    finally:
        for process in (process for processes in started for process in processes.values()):
            process.kill()
            process.wait()


def measure(
    spec: Mapping[str, Any], processes: Processes, begun: Mapping[str, Mapping[str, float]], rounds: int
) -> dict[str, Any]:
    """Median seconds of each part in each checkout, and the other's time over ours, turn by turn."""
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in processes}
    for _ in range(rounds):
        for name, process in processes.items():
            print(file=process.stdin, flush=True)
            turns[name].append(answer(process))
    result: dict[str, Any] = dict(spec)
    for name, found in turns.items():
        seconds = {part: statistics.median(turn[part] for turn in found) for part in PARTS}
        speed = begun[name]["steps"] / seconds["iteration"]
        result[name] = {f"{part}_s": x for part, x in seconds.items()}
        result[name] |= {"start_s": begun[name]["start_s"], "steps_per_s": speed}
    if "other" in turns:
        pairs = list(zip(turns["other"], turns["this"], strict=True))
        result["ratio"] = {p: statistics.median(a[p] / b[p] for a, b in pairs) for p in PARTS if p != "host"}
    return result


def bench_learners(
    specs: Sequence[Mapping[str, Any]], rounds: int, against: pathlib.Path | None = None, ahead: bool = False
) -> dict[str, Any]:
    """Each combination measured, one after the other; with `against`, a checkout, also in that one. `ahead` compiles all of
    them at once, before the first is measured: less time where there are cores and memory for all."""
    from tqpo.provenance import provenance

    sources = {"this": pathlib.Path(__file__).parents[2]} | ({"other": against / "src"} if against else {})
    rows = []
    for together in [specs] if ahead else [[spec] for spec in specs]:
        with compiled(together, sources) as waiting:
            rows += [measure(*one, rounds) for one in waiting]
    return {"what": "training", "rounds": rounds, "rows": rows, "provenance": provenance()}


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
