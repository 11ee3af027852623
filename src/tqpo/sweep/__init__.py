"""Many runs from one file: `plan` reads it, `work` is what one job does, `progress` shows how far all are."""

import pathlib

from tqpo.sweep import work
from tqpo.sweep.cluster import Runner
from tqpo.sweep.plan import Sweep, read
from tqpo.sweep.progress import JobsProgress
from tqpo.training.loop import Options

__all__ = ["Sweep", "read", "run"]


def run(sweep: Sweep, out: pathlib.Path, runner: Runner) -> dict[str, Exception]:
    """Trains every job that is not finished yet, each into its own folder under `out`. Returns what failed, by name."""
    out = out.absolute()
    options = Options(quiet=True, checkpoint_every=sweep.checkpoint_every, episodes=sweep.episodes)
    tasks = [
        (name, work.run_job, (job, out / name, options, sweep.episodes, sweep.report))
        for name, job in sweep.jobs.items()
        if not work.finished(out / name)
    ]
    with JobsProgress({name: out / name for name in sweep.jobs}) as progress:
        for name, result in runner(tasks, on_wait=progress.look):
            progress.end(name, result)
    return progress.failed
