"""The training loop of every command, `drive`; and a job from its first step to its chosen policies.

`config.json` keeps the `Job` and all that was derived from it, so that a resumed job can be compared with the one that
was begun. Environments on the host begin anew when a run is resumed.
"""

import contextlib
import dataclasses
import functools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from rich.markup import escape

from tqpo import store
from tqpo.errors import ConfigError, Interrupted, TqpoError
from tqpo.evaluation.episodes import check_count
from tqpo.training import start
from tqpo.training.choose import choose_policies
from tqpo.training.job import Job, Prepared, prepared_of
from tqpo.training.loggers import Loggers
from tqpo.training.policies import policies_of
from tqpo.training.program import Chunk, Group, Metrics, NonFiniteError, OnFaults, init_group, run
from tqpo.training.progress import RunProgress, Say, counting
from tqpo.training.shortfall import bound_of
from tqpo.types import PyTree

CHECKPOINTS_KEPT = 3
FAULTS = "faults.txt"  # reports of environments on the host that were restarted
FAULTS_SAID = 3  # lines about them after an iteration

# All end training if they return True. Metrics are those of the last chunk, [iterations, runs, …].
OnChunk = Callable[[int, Metrics], Any]  # of the environment steps of each run so far
Callback = Callable[[int, Metrics], Any]  # of the iterations done
Watch = Callable[[int, Chunk], Any]  # of the iterations done


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
class Options:
    """How a job is run. None of it changes the result, except a callback that stops training."""

    quiet: bool = False
    chunk: int | None = None  # iterations in one call of the program; None: 1 on a CPU, 8 on a GPU
    checkpoint_every: int | None = 20  # iterations; None: only where training ends
    max_skips: int | None = 50  # updates in a row that are not finite, before training stops; None: it never does
    wandb: str | None = None  # a Weights & Biases project
    callback: Callback | None = None
    episodes: int = 1000  # of the evaluation that follows, kept for a resumed run; 0: there is none
    on_chunk: OnChunk | None = None

    def __post_init__(self) -> None:
        if self.checkpoint_every is not None:
            check_count("checkpoint_every", self.checkpoint_every)
        check_count("episodes", self.episodes, least=0)

    @property
    def chunk_length(self) -> int:
        return self.chunk or (1 if jax.default_backend() == "cpu" else 8)

    def checkpoint_due(self, before: int, now: int, last: int) -> bool:
        """Whether a checkpoint belongs between these iterations, or to the last of all."""
        every = self.checkpoint_every
        return now >= last or (every is not None and now // every > before // every)


class Position(NamedTuple):
    """Where the training of a group stands."""

    state: PyTree  # [runs, …]
    iteration: int = 0


def train(job: Job, out: str | os.PathLike, options: Options | None = None) -> store.Run:
    """Trains a job into a new folder. Returns the run, open for writing, its policies saved."""
    store.refuse_used(out)  # before the seconds that the first weights take
    options, prepared = options or Options(), start.inheriting(job).prepare()  # errors come before there is a folder
    state = start.state_of(prepared)
    folder = store.create(out, prepared.describe() | {"episodes": options.episodes} | start.origin(job))
    return train_job(prepared, folder, Position(state), options)


def resume(path: str | os.PathLike, options: Options | None = None, steps: int | None = None) -> store.Run:
    """Goes on with a job from its last good checkpoint; with `steps`, up to more of them than it was begun with."""
    folder = store.open_run(path, write=True)
    try:
        prepared = prepared_of(folder.config)
        if not prepared.matches(folder.config):
            raise ConfigError(
                f"{folder.folder} was begun with other settings than this version derives from its config.json"
            )
        position = last_position(folder, prepared.group)  # what cannot be read is said before anything is changed
        if steps is not None:
            prepared = extend(folder, prepared, steps)
        if position.iteration == 0:
            position = Position(start.state_of(prepared))
    except BaseException:
        folder.close()
        raise
    return train_job(prepared, folder, position, options or Options())


def extend(folder: store.Run, prepared: Prepared, steps: int) -> Prepared:
    """The job with more steps, in the run's `config.json` too. Schedules that are a share of training keep their length."""
    job = prepared.job
    if steps <= job.steps:
        raise ConfigError(f"steps = {steps:,}: {folder.folder} has {job.steps:,}; give more of them to extend it")
    longer = dataclasses.replace(job, steps=steps, first_steps=job.first_steps or job.steps)
    after = prepared_of({**folder.config, "job": dataclasses.asdict(longer)})
    folder.amend({**folder.config, **after.describe()}, f"extended from {job.steps:,} to {steps:,} steps")
    return after


def last_position(folder: store.Run, group: Group) -> Position:
    """The last good checkpoint; the start if there is none."""
    fresh = init_group(group)
    last = folder.resume(fresh)
    return Position(last[0], int(last[1]["iteration"])) if last else Position(fresh)


def train_job(prepared: Prepared, folder: store.Run, position: Position, options: Options) -> store.Run:
    """Trains one job, with a live view, loggers and snapshots; then chooses its policies."""
    job = prepared.job
    title = f"{job.algo} on {job.name}, {prepared.goal}{'' if job.constraints else ' safe'}"
    progress = RunProgress(
        title, job.seeds, prepared.iterations, prepared.asked, options.quiet, bound_of(prepared.config)
    )
    loggers = Loggers(folder, prepared, position.iteration * prepared.iteration_steps, options.wandb, progress.say)

    def watch(iteration: int, chunk: Chunk) -> bool:
        step = iteration * prepared.iteration_steps
        loggers.write(step, chunk.metrics)
        progress.update(iteration, chunk.metrics)
        for moment in prepared.snapshot_iterations:
            if iteration - chunk.length < moment <= iteration:
                folder.save_snapshot(moment, policies_of(chunk.state, prepared.group))
        calls = (options.callback, iteration), (options.on_chunk, step)
        return any(bool(call(now, chunk.metrics)) for call, now in calls if call is not None)

    if job.steps < prepared.iteration_steps:
        progress.say(
            f"[yellow]steps = {job.steps:,}:[/] an iteration has {prepared.iteration_steps:,}, so this is one of them"
        )
    with contextlib.closing(loggers), progress:
        faulty = functools.partial(report_faults, folder, progress.say)
        last = drive(prepared.group, prepared.iterations, folder, position, options, watch, faulty)
    with counting("choosing", options.quiet) as tick:
        choose_policies(folder, prepared, policies_of(last.state, prepared.group), last.iteration, progress.say, tick)
    return folder


def drive(
    group: Group,
    iterations: int,
    folder: store.Run,
    position: Position,
    options: Options,
    watch: Watch,
    on_faults: OnFaults | None = None,
) -> Position:
    """Trains a group into a folder, up to so many iterations in all. Returns where it ends.

    Each chunk goes to `metrics.csv` and to `watch`, which may end training. A signal ends it with a checkpoint.
    """
    state, done = position
    learner = group.configs[0].learner
    steps = learner.n_envs * learner.n_steps

    def on_chunk(chunk: Chunk) -> bool:
        iteration = done + chunk.iteration
        before = iteration - chunk.length
        folder.append_metrics(store.rows_of_chunk(chunk.metrics, group.seeds, before, steps))
        stop = bool(watch(iteration, chunk))
        if heard or stop or options.checkpoint_due(before, iteration, iterations):
            meta = {"step": iteration * steps, "iteration": iteration}
            folder.save_checkpoint(chunk.state, meta, CHECKPOINTS_KEPT)
        if heard:
            raise Interrupted(
                heard[0], f"stopped after iteration {iteration}; go on with: tqpo train --resume {folder.folder}"
            )
        return stop

    try:
        with listening() as heard:
            if done < iterations:
                left, most = iterations - done, options.max_skips
                state, metrics = run(group, left, options.chunk_length, on_chunk, state, most, on_faults)
                return Position(state, done + len(metrics["steps"]))
    except NonFiniteError as error:
        raise bundle(folder, error) from error
    except BaseException:
        folder.close()
        raise
    return position


def report_faults(folder: store.Run, say: Say, reports: list[str]) -> None:
    """A line to read now, the traceback in a file."""
    if not reports:
        return
    path = folder.path(FAULTS)
    before = path.read_text() if path.exists() else ""
    folder.write_file(FAULTS, (before + "\n\n".join([*reports, ""])).encode())
    for report in reports[:FAULTS_SAID]:
        say(f"[yellow]restarted[/] {escape(report.splitlines()[0])} (more in {path})")
    if len(reports) > FAULTS_SAID:
        say(f"[yellow]restarted[/] {len(reports) - FAULTS_SAID} times more")


def bundle(folder: store.Run, error: NonFiniteError) -> TqpoError:
    """Leaves what reproduces a failed run in the folder; the error that says where."""
    for failure in error.failures:
        name = f"failure/seed-{failure.seed}"
        arrays, _ = store.pack(failure.state)
        folder.write_file(f"{name}.safetensors", arrays)
        facts = {"seed": failure.seed, "iteration": failure.iteration, "iterations": failure.iterations}
        folder.write_json(f"{name}.json", facts | {"error": str(error)})
    folder.close()
    return TqpoError(f"{error}; what reproduces it is in {folder.folder / 'failure'}")
