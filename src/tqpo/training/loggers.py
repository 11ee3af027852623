"""Where metrics go besides `metrics.csv`: TensorBoard and, if asked, Weights & Biases."""

import contextlib
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tqpo import store
from tqpo.training.job import Job
from tqpo.training.progress import View

FLUSH_EVERY = 10.0  # s; a flush waits for the disk


class EventFile:
    """A TensorBoard file of one session. Of `purge_step` and later steps TensorBoard forgets what earlier files said.

    tensorboardX's `SummaryWriter` writes from a thread; where that dies of a full disk, the next call waits for ever. So
    records are written here and now, and an error is the caller's.
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


class Sinks:
    """One that fails is dropped with a message; training goes on."""

    def __init__(self, folder: store.Run, job: Job, step: int, wandb_project: str | None, view: View):
        self.job, self.view = job, view
        self.writers: dict[str, Any] = {}
        self.wandb: Any = None
        with self.forgiving("TensorBoard"):
            for seed in job.seeds:
                self.writers[f"seed-{seed}"] = EventFile(folder.path(f"events/seed-{seed}"), step + 1 if step else None)
        if wandb_project:
            with self.forgiving("Weights & Biases"):
                import wandb  # pyright: ignore[reportMissingImports]

                self.wandb = wandb.init(project=wandb_project, config=job.describe(), resume="allow", id=folder.id)

    @contextlib.contextmanager
    def forgiving(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.view.say(f"[yellow]{name} failed and is left out from here on:[/] {error}")
            self.writers = {} if name == "TensorBoard" else self.writers
            self.wandb = None if name != "TensorBoard" else self.wandb

    def write(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        last = {name: np.asarray(x[-1], float).reshape(len(self.job.seeds), -1) for name, x in metrics.items()}
        scalars = [
            {
                name if x.shape[1] == 1 else f"{name}/{k}": float(x[i, k])
                for name, x in last.items()
                for k in range(x.shape[1])
            }
            for i in range(len(self.job.seeds))
        ]
        with self.forgiving("TensorBoard"):
            for writer, values in zip(self.writers.values(), scalars, strict=False):
                writer.scalars(step, values)
        if self.wandb is not None:
            with self.forgiving("Weights & Biases"):
                named = {
                    f"seed-{s}/{k}": v for s, row in zip(self.job.seeds, scalars, strict=True) for k, v in row.items()
                }
                self.wandb.log(named, step=step)

    def close(self) -> None:
        with self.forgiving("TensorBoard"):
            for writer in self.writers.values():
                writer.close()
        if self.wandb is not None:
            with self.forgiving("Weights & Biases"):
                self.wandb.finish()
