"""What one job of a sweep does, wherever it runs and however often it is started."""

import pathlib
import time

from tqpo import store
from tqpo.errors import StoreError
from tqpo.store.run import MANIFEST
from tqpo.sweep.cluster import Task
from tqpo.sweep.plan import Sweep
from tqpo.training import loop
from tqpo.training.evaluations import add_evaluation
from tqpo.training.job import Job
from tqpo.training.loop import Host

PATIENCE = (
    600.0  # s to wait for the lock of a machine that was lost: NFS gives it back after its lease, 90 s by default
)
ASK_EVERY = 1.0  # s


def task(sweep: Sweep, name: str, path: pathlib.Path) -> Task:
    host = Host(quiet=True, checkpoint_every=sweep.checkpoint_every)
    return name, run_job, (sweep.jobs[name], path, host, sweep.episodes)


def run_job(job: Job, path: pathlib.Path, host: Host, episodes: int) -> None:
    """Begins a run or goes on with it, evaluates and finishes it; leaves a finished one alone."""
    deadline = time.monotonic() + PATIENCE
    while not finished(path):
        try:
            folder = loop.resume(path, host) if (path / MANIFEST).exists() else loop.train(job, path, host)
        except store.LockedError:  # whoever wrote here last is not known to be gone
            if time.monotonic() > deadline:
                raise
            time.sleep(ASK_EVERY)
            continue
        with folder:
            add_evaluation(folder, episodes, "jax", deterministic=False)
            folder.finish()


def finished(path: pathlib.Path) -> bool:
    try:
        return store.open_run(path).finished
    except StoreError:
        return False
