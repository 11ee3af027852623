"""`tqpo sweep`."""

import dataclasses
import functools
import os
import pathlib

from tyro.conf import Positional

from tqpo.cli.common import COSTS, File, Number, Text, costs, interval, new_table, wide_console
from tqpo.errors import ConfigError, TqpoError


@dataclasses.dataclass
class Sweep:
    """Train the runs that a TOML file lists, on a Ray cluster or on this machine. Finished runs are kept.

    For example: tqpo sweep levels.toml --address auto --out /shared/levels
    """

    file: Positional[pathlib.Path]
    """The TOML file; docs/scaling.md describes it."""
    address: Text = None
    """The address of a Ray cluster, or auto; by default Ray is started on this machine."""
    out: File = None
    """Folder for the runs, which every machine must see; by default sweeps/NAME."""
    local: bool = False
    """Use processes of this machine, without Ray."""
    jobs: Number = None
    """With --local: how many jobs at a time; by default as many as their cpus and gpus allow, with one GPU."""

    def __call__(self) -> None:
        import jax

        from tqpo import sweep
        from tqpo.sweep import cluster

        jax.config.update("jax_platforms", "cpu")  # this process only plans; devices are the tasks'
        if self.local and self.address:
            raise ConfigError("--local and --address: a sweep runs here or on a cluster")
        if self.jobs is not None and (self.jobs < 1 or not self.local):
            raise ConfigError(f"jobs = {self.jobs}: at least 1, with --local")
        if not self.local:
            cluster.import_ray()
        plan = sweep.read(self.file)
        out = self.out or pathlib.Path("sweeps") / self.file.stem
        needs = {"gpus": plan.gpus, "retries": plan.retries}
        if self.local:
            room = int(1 / plan.gpus) if plan.gpus else int((os.cpu_count() or 1) / max(plan.cpus, 1e-9))
            at_once = self.jobs or min(max(1, room), len(plan.jobs))
            runner = functools.partial(cluster.run_local, at_once=at_once, **needs)
        else:
            runner = functools.partial(cluster.run_tasks, cpus=plan.cpus, address=self.address, **needs)
        failed = sweep.run(plan, out, runner)
        show_results({name: job for name, job in plan.jobs.items() if name not in failed}, out)
        if failed:
            raise TqpoError("; ".join(f"{out / name}: {error}" for name, error in failed.items()))


def show_results(jobs, out: pathlib.Path) -> None:
    """What the runs differ in, and what their evaluations say, all seeds of a job pooled."""
    from tqpo import store
    from tqpo.sweep.plan import varying
    from tqpo.training.evaluations import evaluations_of

    columns = varying(jobs.values())
    numbers = (*columns, "return", "Pr[C ≤ d]", *COSTS, "starts")
    title = f"{out}: fresh episodes, all seeds pooled, 95 % intervals"
    table = new_table(title, ("run", *numbers[:-1], "verdict", "starts"), numbers)
    for place, name in enumerate(jobs):
        folder = store.open_run(out / name)
        first = evaluations_of(folder)[0]
        pooled, c = first["pooled"], first["pooled"]["constraints"][0]
        table.add_row(
            name,
            *(str(values[place]) for values in columns.values()),
            interval(pooled["return"], "{:.2f}"),
            interval(c["safety_prob"], "{:.1%}"),
            *costs(c, first["constraints"][0]["cost_limit"]),
            c["verdict"]["word"],
            str(len(folder.manifest["sessions"])),
        )
    wide_console().print(table)
