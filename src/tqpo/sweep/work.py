"""What one job of a sweep does, wherever it runs and however often it is started."""

import pathlib
import time
from collections.abc import Callable
from typing import TypeVar

from tqpo import store
from tqpo.errors import StoreError
from tqpo.output.conclude import conclude
from tqpo.store.run import MANIFEST
from tqpo.training import loop
from tqpo.training.job import Job

PATIENCE = 600.0  # s to wait for a lost machine's lock: NFS gives it back after its lease, 90 s by default
ASK_EVERY = 1.0  # s

T = TypeVar("T")


def run_job(job: Job, path: pathlib.Path, options: loop.Options, episodes: int, report: bool) -> None:
    """Begins a run or goes on with it, evaluates and finishes it; leaves a finished one alone."""

    def train() -> store.Run | None:
        if finished(path):
            return None
        return loop.resume(path, options) if (path / MANIFEST).exists() else loop.train(job, path, options)

    if folder := when_free(train):
        with folder:
            conclude(folder, episodes, report)


def when_free(attempt: Callable[[], T]) -> T:
    """What an attempt gives that needs a run's lock. A machine that was lost may still hold it for a while."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return attempt()
        except store.LockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(ASK_EVERY)


def finished(path: pathlib.Path) -> bool:
    try:
        return store.open_run(path).finished
    except StoreError:
        return False
