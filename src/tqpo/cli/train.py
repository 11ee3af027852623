"""`tqpo train`."""

import dataclasses
import itertools
import pathlib
import re
import signal
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from tqpo.cli.common import assignments, progress, show_evaluation
from tqpo.errors import ConfigError, Interrupted


@dataclasses.dataclass
class Train:
    """Train a policy that keeps its episode cost under a limit with a stated probability, then say how safe it is.

    For example: tqpo train SimpleEnv --algo tqpo --safety 0.9 --cost-limit 15
    """

    task: Positional[str] = "SimpleEnv"
    """A task (see `tqpo tasks`), or your own environment: gym:ID, or module:factory from the current folder."""
    algo: str = "tqpo"
    """An algorithm or variant (see `tqpo algorithms`)."""
    safety: float = 0.9
    """The probability with which an episode must stay within the limit."""
    cost_limit: float = 15.0
    """The limit: the largest episode cost that counts as safe."""
    constraint: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME:limit=X,safety=P|NAME:mean=X")] = ()
    """Instead of --safety and --cost-limit, and as often as you like: a bound on the cost NAME, e.g.
    hazards:limit=15,safety=0.9 or energy:mean=200."""
    cost_fn: str | None = None
    """module:function that gives the cost of a step of your own environment: (obs, action, next_obs, info) -> number or
    dict."""
    vector: str = "sync"
    """Your own environments run one after the other (sync), each in a process (async) or on a Ray cluster (ray)."""
    env_timeout: float = 60.0
    """Seconds that one step of your own environment may take."""
    env_restarts: int = 3
    """How often each of your own environments is restarted after an exception, a crash, a hang or a value that is not
    finite."""
    seeds: int = 1
    """How many runs, with seeds 0, 1, 2, … They train together in one program."""
    first_seed: int = 0
    """The first of those seeds."""
    steps: float = 5e6
    """Environment steps of each run."""
    preset: str = "fast"
    """fast (small networks) or paper (the published configuration, for a GPU)."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """Settings of the algorithm, e.g. learning_rate=1e-3."""
    task_set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """Settings of the task, e.g. max_steps=500; arguments of gymnasium.make or of the factory of your own environment."""
    out: pathlib.Path | None = None
    """Folder for the run; by default a new one under runs/."""
    resume: pathlib.Path | None = None
    """Go on with the run in this folder instead."""
    episodes: int = 1000
    """Fresh episodes per seed for the evaluation at the end; 0 leaves it out."""
    snapshots: int = 8
    """Policies from the last third of training that the final one is chosen from; 1 keeps the last."""
    checkpoint_every: int = 20
    """Iterations between two checkpoints."""
    quiet: bool = False
    """Print nothing but the verdict."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""

    def __call__(self) -> None:
        from tqpo.training import loop

        options = loop.Options(quiet=self.quiet, wandb=self.wandb, checkpoint_every=self.checkpoint_every)
        if self.resume is None:
            job = self.job()
            folder = loop.train(job, self.out or fresh_folder(job), options)
        else:
            self._refuse_changes()
            if judged(self.resume):
                print(f"{self.resume} is finished and judged; tqpo evaluate {self.resume} judges it again")
                return
            folder = loop.resume(self.resume, options)
        with folder:
            if self.episodes:
                self._conclude(folder)
            else:
                folder.finish()

    def _conclude(self, folder) -> None:
        """Evaluation and report, shown, and where they are."""
        from tqpo.output import conclude

        try:
            with progress("evaluating", hidden=self.quiet) as tick:
                evaluation, written = conclude.conclude(folder, self.episodes, progress=tick)
        except KeyboardInterrupt:
            folder.finish()
            done = f"training is done and kept; tqpo evaluate {folder.folder} judges it"
            raise Interrupted(signal.SIGINT, done) from None
        show_evaluation(evaluation)
        if not self.quiet:
            print("\n".join(f"{name:<7} {path}" for name, path in written.items()))

    def job(self):
        from tqpo.training.job import Job, seeds_of

        given = {
            "seeds": seeds_of(self.seeds, self.first_seed),
            "steps": int(self.steps),
            "settings": assignments(self.set),
            "task_settings": assignments(self.task_set),
            "constraints": tuple(self.constraint),
        }
        names = {field.name for field in dataclasses.fields(self)} - given.keys()
        return Job(**given, **{f.name: getattr(self, f.name) for f in dataclasses.fields(Job) if f.name in names})

    def _refuse_changes(self) -> None:
        """A resumed run keeps its settings: another one given beside --resume is an error, unless it is the same."""
        from tqpo import store
        from tqpo.training.job import Job

        with store.open_run(self.resume or "") as folder:
            begun = Job.from_description(folder.config)
        default, mine = Train().job(), self.job()
        for field in dataclasses.fields(begun):
            given, was = getattr(mine, field.name), getattr(begun, field.name)
            if given not in (getattr(default, field.name), was):
                raise ConfigError(f"{field.name} = {given}: {self.resume} was begun with {was}; leave it out to resume")
        if self.out is not None and self.out.resolve() != (self.resume or self.out).resolve():
            raise ConfigError("--out and --resume name two folders: a resumed run stays where it is")


def judged(path: pathlib.Path) -> bool:
    """Whether a run is finished and evaluated, so that nothing is left to do."""
    from tqpo import store
    from tqpo.training.evaluations import evaluations_of

    with store.open_run(path) as folder:
        return folder.finished and bool(evaluations_of(folder))


def fresh_folder(job) -> pathlib.Path:
    """runs/SimpleEnv-tqpo-90, or the next free name after it."""
    task = re.sub(r"[^\w.-]+", "-", job.task.removeprefix("gym:"))
    name = f"{task}-{job.algo}" + (f"-{100 * job.safety:g}" if not job.constraints else "")
    numbered = (pathlib.Path("runs", name if i == 1 else f"{name}-{i}") for i in itertools.count(1))
    return next(path for path in numbered if not path.exists())
