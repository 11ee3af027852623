"""A training job from its first step to its chosen policies: folder, live view, checkpoints, signals.

`config.json` keeps the `Job` and all that was derived from it, so that a job that is resumed can be held against the one that was
begun. Environments on the host begin anew when a run is resumed.
"""

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from rich.markup import escape

from tqpo import store
from tqpo.errors import ConfigError, Interrupted, TqpoError
from tqpo.training.choose import choose_policies
from tqpo.training.job import Job
from tqpo.training.loggers import Sinks
from tqpo.training.policies import policies_of
from tqpo.training.program import Chunk, Group, Metrics, NonFiniteError, init_group, run
from tqpo.training.progress import View
from tqpo.types import PyTree

CHECKPOINTS_KEPT = 3
FAULTS = "faults.txt"  # reports of environments on the host that were restarted

Callback = Callable[[int, Metrics], Any]  # iterations done, metrics [iterations, runs, …] of the last chunk; True: stop


@contextlib.contextmanager
def listening() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying of them. A second SIGINT is Python's own KeyboardInterrupt."""
    heard: list[int] = []

    def note(number: int, _frame: Any) -> None:
        if number == signal.SIGINT and heard:
            raise KeyboardInterrupt
        heard.append(number)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: leave signals to whoever has them
        yield heard
        return
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclasses.dataclass(frozen=True)
class Host:
    """How a job is run, none of which changes its result, but for a callback that stops it."""

    quiet: bool = False
    chunk: int | None = None  # iterations between two looks of the host; None: 1 on a CPU, 8 on a GPU
    checkpoint_every: int = 20  # iterations
    max_skips: int = 50  # updates in a row that are not finite, before a run stops
    wandb: str | None = None  # a Weights & Biases project
    callback: Callback | None = None

    def __post_init__(self) -> None:
        if self.checkpoint_every < 1:
            raise ConfigError(f"checkpoint_every = {self.checkpoint_every}: at least 1")

    @property
    def chunk_length(self) -> int:
        return self.chunk or (1 if jax.default_backend() == "cpu" else 8)


def train(job: Job, out: str | os.PathLike, host: Host | None = None) -> store.Run:
    """Trains a job into a new folder. Returns the run, open for writing, its policies saved."""
    group = job.group()  # a wrong setting is an error before there is a folder
    folder = store.create(out, job.describe())
    return _train(job, group, folder, init_group(group), 0, host or Host())


def resume(path: str | os.PathLike, host: Host | None = None) -> store.Run:
    """Goes on with a job where its last good checkpoint left it."""
    folder = store.open_run(path, write=True)
    job = Job.from_description(folder.config)
    if not agree(plain(job.describe()), plain(folder.config)):
        folder.close()
        raise ConfigError(
            f"{folder.folder} was begun with other settings than this version derives from its config.json"
        )
    try:
        group = job.group()
        state = init_group(group)
        found = folder.resume(state)
    except BaseException:
        folder.close()
        raise
    state, iteration = (found[0], int(found[1]["iteration"])) if found else (state, 0)
    return _train(job, group, folder, state, iteration, host or Host())


def agree(derived: Any, begun: Any) -> bool:
    """Whether two settings are the same where both have them; a version may have dropped some and added others."""
    if isinstance(derived, dict) and isinstance(begun, dict):
        return all(agree(derived[name], begun[name]) for name in derived.keys() & begun.keys())
    return derived == begun


def plain(value: Any) -> Any:
    """A value as JSON would give it back."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value if isinstance(value, str | bool | type(None)) else float(value)


def _train(job: Job, group: Group, folder: store.Run, state: PyTree, done: int, host: Host) -> store.Run:
    learner = group.configs[0].learner
    per_iteration = learner.n_envs * learner.n_steps
    title = f"{job.algo} on {job.task}, {job.goal()}{'' if job.constraints else ' safe'}"
    view = View(title, job.seeds, job.iterations, job.asked(), host.quiet)
    sinks = Sinks(folder, job, done * per_iteration, host.wandb, view)
    clock, last = time.monotonic(), done

    def save(iteration: int, state: PyTree) -> None:
        folder.save_checkpoint(state, {"step": iteration * per_iteration, "iteration": iteration}, CHECKPOINTS_KEPT)

    def on_chunk(chunk: Chunk) -> bool:
        nonlocal clock, last
        length = len(chunk.metrics["steps"])
        last = iteration = done + chunk.iteration
        report_faults(folder, view, chunk.faults)
        rows = store.rows_of_chunk(chunk.metrics, job.seeds, iteration - length, per_iteration)
        folder.append_metrics(rows)
        sinks.write(iteration * per_iteration, chunk.metrics)
        now = time.monotonic()
        view.update(iteration, chunk.metrics, now - clock)
        clock = now
        for moment in job.snapshot_iterations:
            if iteration - length < moment <= iteration:
                folder.save_snapshot(moment, policies_of(chunk.state))
        crossed = iteration // host.checkpoint_every > (iteration - length) // host.checkpoint_every
        stop = host.callback is not None and bool(host.callback(iteration, chunk.metrics))
        if crossed or heard or stop or iteration >= job.iterations:
            save(iteration, chunk.state)
        if heard:
            raise Interrupted(
                heard[0], f"stopped after iteration {iteration}; go on with: tqpo train --resume {folder.folder}"
            )
        return stop

    try:
        with view, listening() as heard:
            if done < job.iterations:
                state, _ = run(group, job.iterations - done, host.chunk_length, on_chunk, state, host.max_skips)
    except NonFiniteError as error:
        raise _bundle(folder, error) from error
    except BaseException:
        folder.close()
        raise
    finally:
        sinks.close()
    choose_policies(folder, job, group, policies_of(state), last, view)
    return folder


def report_faults(folder: store.Run, view: View, reports: tuple[str, ...]) -> None:
    """A line to read now, the traceback in a file."""
    if not reports:
        return
    path = folder.path(FAULTS)
    before = path.read_text() if path.exists() else ""
    folder.write_file(FAULTS, (before + "\n\n".join([*reports, ""])).encode())
    for report in reports:
        view.say(f"[yellow]restarted[/] {escape(report.splitlines()[0])} (more in {path})")


def _bundle(folder: store.Run, error: NonFiniteError) -> TqpoError:
    """Leaves what reproduces a failed run in the folder; the error that says where."""
    for failure in error.failures:
        name = f"failure/seed-{failure.run.seed}"
        arrays, _ = store.pack(failure.state)
        folder.write_file(f"{name}.safetensors", arrays)
        facts = {"seed": failure.run.seed, "iteration": failure.iteration, "iterations": failure.iterations}
        folder.write_json(f"{name}.json", facts | {"error": str(error)})
    folder.close()
    return TqpoError(f"{error}; what reproduces it is in {folder.folder / 'failure'}")
