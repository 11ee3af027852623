"""Where a group stands while it trains: the states of all its runs and their metrics so far, to go on from after a loss."""

import io
import pathlib
import re
import shutil
from typing import Any

import numpy as np

from tqpo import store
from tqpo.errors import StoreError
from tqpo.training.program import Metrics
from tqpo.types import PyTree

FOLDER = ".groups"


class Keep:
    """A folder under the results, there only while its group trains."""

    def __init__(self, out: pathlib.Path, name: str, settings: dict[str, Any]):
        self.settings = settings  # what is kept is good for these alone
        self.folder = out / FOLDER / re.sub(r"[^\w-]+", "-", name).strip("-")

    def load(self, template: PyTree) -> tuple[int, PyTree, Metrics] | None:
        """Iterations done, states and metrics; None to begin at the start."""
        if not self.folder.exists():
            return None
        try:
            with store.open_run(self.folder, write=True) as run:
                if run.config == self.settings and (found := run.resume(template)):
                    state, meta = found
                    with np.load(run.path(metrics_name(meta["iteration"])), allow_pickle=False) as saved:
                        return meta["iteration"], state, dict(saved)
        except (StoreError, OSError, ValueError):
            pass  # what cannot be read is trained again
        self.drop()
        return None

    def save(self, iteration: int, state: PyTree, metrics: Metrics) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, **metrics)  # pyright: ignore[reportArgumentType]
        there = self.folder.exists()
        with store.open_run(self.folder, write=True) if there else store.create(self.folder, self.settings) as run:
            run.write_file(metrics_name(iteration), buffer.getvalue())
            run.save_checkpoint(state, {"step": iteration, "iteration": iteration}, keep=1)
            for old in self.folder.glob(metrics_name("*")):
                if old.name != metrics_name(iteration):
                    old.unlink()

    def drop(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def metrics_name(iteration: int | str) -> str:
    return f"metrics-{iteration}.npz"
