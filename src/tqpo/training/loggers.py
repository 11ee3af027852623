"""Where metrics go besides `metrics.csv`: TensorBoard and, if asked, Weights & Biases."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tqpo import store
from tqpo.training.events import EventWriter
from tqpo.training.job import Prepared
from tqpo.training.progress import Say


class Loggers:
    """One that fails is dropped with a message; training goes on."""

    def __init__(self, folder: store.Run, prepared: Prepared, step: int, wandb_project: str | None, say: Say):
        self.job, self.say = prepared.job, say
        self.writers: dict[str, Any] = {}
        with self.forgiving("TensorBoard"):
            for seed in self.job.seeds:
                self.writers[f"seed-{seed}"] = EventWriter(
                    folder.path(f"events/seed-{seed}"), step + 1 if step else None
                )
        self.wandb: Any = None
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
