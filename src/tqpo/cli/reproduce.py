"""`tqpo reproduce`."""

import dataclasses
import functools
import pathlib

from tyro.conf import Positional

from tqpo.cli.common import Count, File, Settings, Text, assignments

CHECKPOINT_EVERY = 50  # iterations, where a machine can be lost
SHARE = 0.5  # of a GPU, if there is one: processes here share it


@dataclasses.dataclass
class Reproduce:
    """Train the paper's runs and lay the results beside its numbers. Made for a GPU. Finished cells are kept."""

    what: Positional[str]
    """table1 (with PPO-Lagrangian), table2, baseline, fast, or all; released; budget and its ablation; suite, a leaderboard on
    Safety-Gymnasium's tasks; dial, one run for all levels; figures and tables draw what is there; certificate simulates how
    often one is wrong (no training)."""
    task: tuple[str, ...] = ()
    """Only these tasks."""
    algo: tuple[str, ...] = ()
    """Only these algorithms or variants."""
    safety: tuple[float, ...] = ()
    """Only these levels."""
    seeds: int = 5
    """Runs of each cell."""
    steps: Count = None
    """Environment steps of each run; by default 5e6, of suite 10e6."""
    episodes: int = 1000
    """Fresh episodes of each final policy; 0 leaves them out."""
    judge: int = 0
    """Seeds of each cell of Table 1, or of budget, that MuJoCo judges."""
    judge_episodes: int = 100
    """Episodes of each of them."""
    snapshots: int = 1
    """Policies from the last third of training that each final one is chosen from; 1 keeps the last."""
    jobs: int = 1
    """Groups of runs at a time. On one GPU three to five fill it, with CUDA's MPS daemon running."""
    ray: bool = False
    """Place each group as a task on a Ray cluster; `out` must be a folder that all its machines see."""
    address: Text = None
    """The cluster's address, or auto; without one, Ray is started on this machine."""
    gpus: float = 0.25
    """With Ray: the share of a GPU that each group gets; 0 for machines without."""
    set: Settings = ()
    """Settings of the algorithm other than the preset's, e.g. delta=0.2. Give it a folder of its own."""
    out: File = None
    """Folder for one JSON file per cell, and for tables and figures; by default results/paper, of suite results/suite."""
    beside: tuple[pathlib.Path, ...] = ()
    """With tables or figures: other folders of results to show beside them, e.g. results/paper."""
    page: File = None
    """With tables or figures: also put the tables into this Markdown page, e.g. docs/reproduction.md."""

    def __call__(self) -> None:
        import jax

        from tqpo.errors import ConfigError, UnknownNameError
        from tqpo.evaluation.episodes import check_count
        from tqpo.reproduce import document, groups
        from tqpo.reproduce.cells import Plan
        from tqpo.reproduce.paper import SETS, STEPS, SUITE_STEPS
        from tqpo.sweep import cluster
        from tqpo.training.job import seeds_of

        jax.config.update("jax_platforms", "cpu")  # this process only plans; devices are the groups'
        if self.what == "certificate":
            self._simulate()
            return
        suite = self.what == "suite"
        out = self.out or pathlib.Path("results/suite" if suite else "results/paper")
        if self.what in {"figures", "tables"}:
            if self.set:
                raise ConfigError(f"{self.what} draws what is there: --set is for training")
            print(*document.write_all(out, self.page, self.beside), sep="\n")
            return
        if self.what not in SETS:
            known = ", ".join([*SETS, "figures", "tables", "certificate"])
            raise UnknownNameError(f"nothing to reproduce called {self.what!r}; there are {known}")
        if self.page:
            raise ConfigError("--page goes with tables or figures")
        check_count("jobs", self.jobs)
        changes = assignments(self.set)
        if fixed := sorted({"safety", "cost_limit", "constraints", "baseline", "tilt"} & set(changes)):
            raise ConfigError(f"{fixed[0]} is what a cell is and cannot be set; --safety and --algo choose among cells")
        if changes and not self.out:
            raise ConfigError(f"--set makes other results than those in {out}: give them a folder with --out")
        chosen = {"task": self.task, "algo": self.algo, "safety": self.safety}
        cells = [c for c in SETS[self.what] if all(getattr(c, k) in v for k, v in chosen.items() if v)]
        if not cells:
            asked = " ".join(str(x) for v in chosen.values() for x in v)
            raise UnknownNameError(f"{self.what} has no cell of {asked}")
        plan = Plan(
            tuple(cells),
            out.absolute(),
            seeds_of(self.seeds),
            int(self.steps or (SUITE_STEPS if suite else STEPS)),
            self.episodes,
            self.judge,
            self.judge_episodes,
            self.snapshots,
            checkpoint_every=CHECKPOINT_EVERY if self.ray else None,
            changes=tuple(changes.items()),
        )
        plan.check()
        plan.out.mkdir(parents=True, exist_ok=True)
        runner = functools.partial(cluster.run_local, at_once=self.jobs, gpus=SHARE)
        if self.ray:
            runner = functools.partial(cluster.run_tasks, gpus=self.gpus, address=self.address)
        document.show(groups.run_plan(plan, runner, self.jobs))

    def _simulate(self) -> None:
        """Candidates that exist in numbers only: `reproduce.certificate`."""
        from tqpo.reproduce import cells, certificate

        out = self.out or pathlib.Path("results/certificate")
        out.mkdir(parents=True, exist_ok=True)
        found = certificate.simulate()
        cells.write(out / "simulation.json", found)
        print(certificate.table(found), out / "simulation.json", sep="\n\n")
