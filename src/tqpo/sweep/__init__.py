"""Many runs from one file: `plan` reads it, `work` is what one job does wherever it runs, `view` shows how far they are."""

import pathlib

from tqpo.errors import Interrupted
from tqpo.sweep import work
from tqpo.sweep.cluster import Runner
from tqpo.sweep.plan import Sweep, read
from tqpo.sweep.view import View
from tqpo.training import loop

__all__ = ["Sweep", "read", "run"]


def run(sweep: Sweep, out: pathlib.Path, runner: Runner) -> dict[str, Exception]:
    """Trains every job that is not finished yet, each into its own folder under `out`. Returns what went wrong, by folder."""
    out = out.absolute()
    todo = [name for name in sweep.jobs if not work.finished(out / name)]
    failed: dict[str, Exception] = {}
    with View(sweep, out) as view, loop.listening() as heard:

        def look() -> None:
            if heard:
                raise Interrupted(heard[0], "stopped; the same command goes on")
            view.show()

        for name, result in runner([work.task(sweep, name, out / name) for name in todo], on_wait=look):
            if isinstance(result, Exception):
                failed[name] = view.failed[name] = result
            look()
    return failed
