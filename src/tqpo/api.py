"""The library in a few words: `tqpo.train`, `resume`, `load`, `evaluate`, `compare`, `report`.

An environment is a name (`SimpleEnv`, a Gymnasium id, `module:factory`), a class, a function that makes one, an instance
(training copies it), or an environment in JAX. What has no importable name (a class of a notebook, a lambda) is known to the
program that trained; elsewhere give it once more, as `own`: `env`, `cost_fn`, `trunk`.
"""

import os
import pathlib
from collections.abc import Callable
from typing import Any

from tqpo import references, store
from tqpo.errors import ConfigError, did_you_mean
from tqpo.evaluation.episodes import check_count
from tqpo.evaluation.loaded import LoadedPolicy
from tqpo.host.reference import GYM, is_reference, maker_of, task_of
from tqpo.output.conclude import PAGE, conclude, judge, write_page
from tqpo.output.result import Comparison, Result, comparison, result_of
from tqpo.training import loop
from tqpo.training.certificates import of_training, positions_of, verdict_of
from tqpo.training.evaluations import judged_by_mean
from tqpo.training.job import Job, iterations_of, seeds_of
from tqpo.training.policies import load_dial, load_policy

Path = str | os.PathLike
CostFn = Callable[..., Any] | str | None


def train(
    task: Any = "SimpleEnv",
    *,
    out: Path,
    seeds: int | tuple[int, ...] = 1,
    episodes: int = 1000,
    report: bool = False,
    quiet: bool = False,
    cost_fn: CostFn = None,
    init_from: Path | None = None,
    on_chunk: loop.OnChunk | None = None,
    callback: loop.Callback | None = None,
    **job: Any,
) -> Result:
    """Trains into a new folder and evaluates; returns the evaluation, a dict (`tqpo.evaluation.summary` describes it), with
    the `certificates` of the kept policies (`tqpo.training.certificates`).

    `cost_fn(obs, action, next_obs, info)` is a function that gives the cost of a step. With `report` the folder also gets
    what `tqpo train` writes: an evaluation of deterministic actions, figures, a video, a page. `init_from` is a run whose
    policies, critics and multipliers this one starts with. `on_chunk(step, metrics)` is
    called after each chunk of iterations, with the environment steps of each run so far and the metrics [iterations, runs,
    …] of the chunk by name; training stops if it returns True. `callback(iteration, metrics)` is the same by iterations.
    `settings` are those of the algorithm, such as `hidden`, `activation` and `trunk` (a class of your own, or "cnn").
    `job` are the other fields of `tqpo.training.job.Job`: algo, preset, safety, cost_limit, constraints, steps, snapshots,
    settings, task_settings, vector, env_timeout, env_restarts, max_steps.
    """
    try:
        job["cost_fn"] = None if cost_fn is None else references.name_of(cost_fn)
        job["init_from"] = None if init_from is None else os.fspath(init_from)
        settings = job.get("settings", {})
        job["settings"] = {k: references.name_of(v) if callable(v) else v for k, v in settings.items()}
        wanted = Job(task=task_of(task), seeds=seeds_of(seeds), **job)
    except TypeError as error:
        known = list(Job.__dataclass_fields__)
        hint = did_you_mean([name for name in job if name not in known], known)
        raise ConfigError(f"{error}{hint}; a job has {', '.join(known)}") from None
    counted = check_count("episodes", episodes)
    options = loop.Options(quiet=quiet, on_chunk=on_chunk, callback=callback, episodes=counted)
    return concluded(loop.train(wanted, out, options), episodes, report, quiet)


def resume(
    path: Path,
    *,
    steps: float | None = None,
    episodes: int | None = None,
    report: bool = False,
    quiet: bool = False,
    on_chunk: loop.OnChunk | None = None,
    **own: Any,
) -> Result:
    """Goes on with a run that was stopped, or to more `steps` with one that was finished; then as `train`, with as many
    episodes as it was begun with. Without `steps` a finished run gives the result that it has."""
    if steps is None and (judged := finished(path)) is not None:
        return judged  # nothing is left to do
    provide(path, **own)
    options = loop.Options(quiet=quiet, on_chunk=on_chunk)
    folder = loop.resume(path, options, None if steps is None else int(steps))
    return concluded(folder, episodes or folder.config.get("episodes") or options.episodes, report, quiet)


def concluded(folder: store.Run, episodes: int, report: bool, quiet: bool) -> Result:
    with folder:
        evaluation, _ = conclude(folder, episodes, report)
        certificates = of_training(folder)
        if not quiet:
            print(*(verdict_of(entry, folder) for entry in certificates), sep="\n")
        return Result(evaluation | {"certificates": certificates}, folder.folder)


def evaluate(
    path: Path,
    *,
    episodes: int = 1000,
    physics: str = "jax",
    deterministic: bool = False,
    **own: Any,
) -> Result:
    """Fresh episodes of a run's policies: return, safety, quantile with intervals, and a verdict.

    The run keeps them, unless it has more of the same kind, and its report is renewed, as `tqpo evaluate` does.
    """
    provide(path, **own)
    return Result(judge(path, episodes, physics, deterministic), path)


def finished(path: Path) -> Result | None:
    """The result of a run that was trained to its end and evaluated; None of any other."""
    with store.open_run(path) as folder:
        certificates, iterations = of_training(folder), folder.metrics().get("iteration")
        whole = iterations is not None and iterations.max() >= iterations_of(folder.config)
    found = result_of(path) if folder.finished and whole else None
    return None if found is None else Result({**found, "certificates": certificates}, path)


def compare(*runs: Path) -> Comparison:
    """The verdicts of evaluated runs, one below the other."""
    if not runs or not all(isinstance(run, str | os.PathLike) for run in runs):
        raise ConfigError("compare(run, run, …): each run by the folder that training wrote")
    return comparison(runs)


def report(path: Path, out: Path | None = None, **own: Any) -> pathlib.Path:
    """Writes a run as one HTML page, by default its `report.html`."""
    provide(path, **own)
    if out is not None:
        return write_page(store.open_run(path), pathlib.Path(out))
    with store.open_run(path, write=True) as folder:
        finished, page = folder.finished, write_page(folder, folder.folder / PAGE)
        folder.write_file(PAGE, page.read_bytes())  # with a new checksum
        if finished:
            folder.finish()
    return page


def load(path: Path, seed: int | None = None, **own: Any) -> LoadedPolicy:
    """The policy of a run; of one of its seeds, by default the first. It acts as the run's verdict has it.

    It needs neither the environment nor its code.
    """
    provide(path, **own)
    folder = store.open_run(path)
    seed, policy = load_policy(folder, seed)
    description, mean = folder.load_policy()[1], judged_by_mean(folder)
    dial = load_dial(folder, seed)
    certified = {level: dial.at(at) for level, at in positions_of(folder, seed, mean).items()} if dial else None
    return LoadedPolicy(policy, description=description, deterministic=mean, certified=certified)


def provide(path: Path, env: Any = None, cost_fn: Any = None, trunk: Any = None) -> None:
    """What the names in a run mean from now on."""
    given = {"env": env, "cost_fn": cost_fn, "trunk": trunk}
    if not (given := {name: x for name, x in given.items() if x is not None}):
        return
    job = Job.from_description(store.open_run(path).config)
    named = {"env": job.task, "cost_fn": job.cost_fn, "trunk": job.settings.get("trunk")}
    for name, value in given.items():
        known = str(named[name] or "none")
        meant = task_of(value) if name == "env" and isinstance(value, str) else value
        if meant == known:
            continue
        if not is_reference(known) or known.startswith(GYM):
            raise ConfigError(f"{name}: {os.fspath(path)} was trained with {known}, and needs nothing in its place")
        if name == "env":
            references.provide(known, maker_of(meant))
        else:
            references.provide(known, references.find(meant) if isinstance(meant, str) else meant)
