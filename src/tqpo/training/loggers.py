"""Where metrics go besides `metrics.csv`: TensorBoard and, if asked, Weights & Biases."""

import contextlib
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tqpo import store
from tqpo.training.job import Prepared
from tqpo.training.progress import Say

FLUSH_EVERY = 10.0  # s; a flush waits for the disk


class EventFile:
    """A TensorBoard file of one session. Of `purge_step` and later steps TensorBoard forgets what earlier files said.

    tensorboardX's `SummaryWriter` writes from a thread; where that dies of a full disk, the next call waits for ever.
    So records are written here and now, and an error is the caller's.
    """

    def __init__(self, folder: pathlib.Path, purge_step: int | None):
        from tensorboardX.event_file_writer import EventsWriter  # pyright: ignore[reportMissingImports]
        from tensorboardX.proto import event_pb2, summary_pb2  # pyright: ignore[reportMissingImports]

        folder.mkdir(parents=True, exist_ok=True)
        self._event, self._summary, self._flushed = event_pb2.Event, summary_pb2.Summary, 0.0  # type: ignore[attr-defined]
        number = sum(1 for _ in folder.iterdir())  # TensorBoard reads files in the order of their names
        self._file = EventsWriter(str(folder / "events"), filename_suffix=f".{number:04d}")
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)  # type: ignore[attr-defined]
            self._file.write_event(self._event(wall_time=time.time(), step=purge_step, session_log=start))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        points = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._file.write_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=points)))
        if time.monotonic() - self._flushed > FLUSH_EVERY:
            self._file.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        self._file.close()


class Loggers:
    """One that fails is dropped with a message; training goes on."""

    def __init__(self, folder: store.Run, prepared: Prepared, step: int, wandb_project: str | None, say: Say):
        self.seeds, self.say = prepared.job.seeds, say
        self.writers: list[EventFile] = []  # one per seed
        self.wandb: Any = None
        with self.forgiving("TensorBoard"):
            purge = step + 1 if step else None
            self.writers = [EventFile(folder.path(f"events/seed-{seed}"), purge) for seed in self.seeds]
        if wandb_project:
            with self.forgiving("Weights & Biases"):
                import wandb  # pyright: ignore[reportMissingImports]

                self.wandb = wandb.init(project=wandb_project, config=prepared.describe(), resume="allow", id=folder.id)

    @contextlib.contextmanager
    def forgiving(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.say(f"[yellow]{name} failed and is left out from here on:[/] {error}")
            if name == "TensorBoard":
                self.writers = []
            else:
                self.wandb = None

    def write(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """The last iteration of a chunk's metrics; of several entries each has a name of its own."""
        scalars: list[dict[str, float]] = [{} for _ in self.seeds]
        for name, x in metrics.items():
            for row, values in zip(scalars, np.asarray(x[-1], float).reshape(len(self.seeds), -1), strict=True):
                names = [name] if len(values) == 1 else [f"{name}/{k}" for k in range(len(values))]
                row.update(zip(names, values.tolist(), strict=True))
        with self.forgiving("TensorBoard"):
            for writer, row in zip(self.writers, scalars, strict=False):
                writer.scalars(step, row)
        if self.wandb is not None:
            with self.forgiving("Weights & Biases"):
                by_seed = zip(self.seeds, scalars, strict=True)
                self.wandb.log({f"seed-{seed}/{k}": v for seed, row in by_seed for k, v in row.items()}, step=step)

    def close(self) -> None:
        with self.forgiving("TensorBoard"):
            for writer in self.writers:
                writer.close()
        if self.wandb is not None:
            with self.forgiving("Weights & Biases"):
                self.wandb.finish()
