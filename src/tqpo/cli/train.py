"""`tqpo train`."""

import dataclasses
import itertools
import pathlib
import re
import signal
import sys
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from tqpo.cli.common import File, Number, Settings, Text, assignments, progress, show_evaluation
from tqpo.errors import ConfigError, Interrupted

NOT_CERTIFIED = 3  # exit status


@dataclasses.dataclass
class Problem:
    algo: str = "tqpo"
    """An algorithm or variant (see `tqpo algorithms`)."""
    safety: float = 0.9
    """The probability with which an episode must stay within the limit."""
    cost_limit: float = 15.0
    """The limit: the largest episode cost that counts as safe."""
    constraint: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME:limit=X,safety=P|NAME:mean=X")] = ()
    """Instead of --safety and --cost-limit, and as often as you like: a bound on the cost NAME, e.g.
    hazards:limit=15,safety=0.9 or energy:mean=200."""


@dataclasses.dataclass
class Training:
    seeds: int = 1
    """How many runs, with seeds 0, 1, 2, … They train together in one program."""
    first_seed: int = 0
    """The first of those seeds."""
    steps: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="(default: 5e6)")] = None
    """Environment steps of each run. With --resume: go on to so many, with a finished run too."""
    preset: str = "fast"
    """fast (small networks) or paper (the published configuration, for a GPU)."""
    set: Settings = ()
    """Settings of the algorithm, e.g. learning_rate=1e-3 hidden=128,128."""
    snapshots: int = 8
    """Policies from the last third of training that the final one is chosen from; 1 keeps the last."""
    episodes: int = 1000
    """Fresh episodes per seed for the evaluation at the end; 0 leaves it out."""
    resume: File = None
    """Go on with the run in this folder instead."""
    init_from: Text = None
    """Start with what the run in this folder learned: another limit, level or layout, the same observations."""


@dataclasses.dataclass
class Environment:
    task_set: Settings = ()
    """Settings of the task, e.g. max_steps=500; arguments of gymnasium.make or of the factory of your own environment."""
    cost_fn: Text = None
    """module:function that gives the cost of a step: (obs, action, next_obs, info) -> number or dict."""
    max_steps: Number = None
    """Truncate each episode of your own environment after so many steps; by default it ends them itself."""
    vector: str = "sync"
    """Your own environments run one after the other (sync), each in a process (async) or on a Ray cluster (ray)."""
    env_timeout: float = 60.0
    """Seconds that one step of your own environment may take."""
    env_restarts: int = 3
    """How often each of your own environments is restarted after an exception, a crash or a hang."""


@dataclasses.dataclass
class Output:
    out: File = None
    """Folder for the run; by default a new one under runs/."""
    checkpoint_every: int = 20
    """Iterations between two checkpoints."""
    require_certificate: bool = False
    """Exit status 3 where the policy of some seed is not certified."""
    quiet: bool = False
    """Print nothing but the verdict."""
    wandb: Text = None
    """Also log to this Weights & Biases project."""


@dataclasses.dataclass
class Train:
    """Train a policy that keeps its episode cost under a limit with a stated probability, then say how safe it is.

    For example: tqpo train SimpleEnv --algo tqpo --safety 0.9 --cost-limit 15
    """

    task: Annotated[Positional[str], arg(metavar="[TASK]")] = "SimpleEnv"
    """A task (see `tqpo tasks`), or your own environment: gym:ID, or module:factory from the current folder."""
    problem: Problem = dataclasses.field(default_factory=Problem)
    training: Training = dataclasses.field(default_factory=Training)
    environment: Environment = dataclasses.field(default_factory=Environment)
    output: Output = dataclasses.field(default_factory=Output)

    def __call__(self) -> None:
        from tqpo.api import finished
        from tqpo.training import loop

        job, resumed, output = self.job(), self.training.resume, self.output
        episodes, more = self.training.episodes, None
        if resumed is not None:
            episodes, more = self._begun_with(resumed, job)
        options = loop.Options(output.quiet, None, output.checkpoint_every, wandb=output.wandb, episodes=episodes)
        if resumed is None:
            folder = loop.train(job, output.out or fresh_folder(job), options)
        elif more is None and finished(resumed) is not None:
            again = f"tqpo evaluate {resumed} judges it again, --steps N goes on to more steps"
            print(f"{resumed} is finished and judged; {again}")
            return
        else:
            folder = loop.resume(resumed, options, more)
        with folder:
            if episodes:
                self._conclude(folder, episodes)
            else:
                folder.finish()
            show_certificates(folder)
            if self.output.require_certificate and not all_certified(folder):
                sys.exit(NOT_CERTIFIED)

    def _conclude(self, folder, episodes: int) -> None:
        """Evaluation and report, shown, and where they are."""
        from tqpo.output import conclude

        try:
            with progress("evaluating", hidden=self.output.quiet) as tick:
                evaluation, written = conclude.conclude(folder, episodes, progress=tick)
        except KeyboardInterrupt:
            folder.finish()
            done = f"training is done and kept; tqpo evaluate {folder.folder} judges it"
            raise Interrupted(signal.SIGINT, done) from None
        show_evaluation(evaluation, folder.folder, self.output.quiet)
        if not self.output.quiet:
            print("\n".join(f"{name:<7} {path}" for name, path in written.items()))

    def job(self):
        from tqpo.training.job import Job, seeds_of

        fields = {"task": self.task, **vars(self.problem), **vars(self.training), **vars(self.environment)}
        fields |= {
            "seeds": seeds_of(self.training.seeds, self.training.first_seed),
            "steps": Job.steps if self.training.steps is None else int(self.training.steps),
            "settings": assignments(self.training.set),
            "task_settings": assignments(self.environment.task_set),
            "constraints": tuple(self.problem.constraint),
        }
        return Job(**{f.name: fields[f.name] for f in dataclasses.fields(Job) if f.name in fields})

    def _begun_with(self, path: pathlib.Path, mine) -> tuple[int, int | None]:
        """The evaluation's episodes: those given now, or as a run was begun; and to how many steps it is extended, if it is.

        A resumed run keeps its settings: another one given beside --resume is an error, unless it is the same.
        """
        from tqpo import store
        from tqpo.training.job import Job

        with store.open_run(path) as folder:
            begun, episodes = Job.from_description(folder.config), folder.config.get("episodes", Training.episodes)
        default = Train().job()
        for field in (field for field in dataclasses.fields(begun) if field.name != "steps"):
            given, was = getattr(mine, field.name), getattr(begun, field.name)
            if given not in (getattr(default, field.name), was):
                raise ConfigError(f"{field.name} = {given}: {path} was begun with {was}; leave it out to resume")
        if self.output.out is not None and self.output.out.resolve() != path.resolve():
            raise ConfigError("--out and --resume name two folders: a resumed run stays where it is")
        more = None if self.training.steps is None or mine.steps == begun.steps else mine.steps
        return episodes if self.training.episodes == Training.episodes else self.training.episodes, more


def all_certified(folder) -> bool:
    """Whether the policy of every seed is certified for what it was trained for."""
    from tqpo.training.certificates import of_training

    entries = of_training(folder)
    return bool(entries) and all(entry["verdict"] == "certified" for entry in entries)


def show_certificates(folder) -> None:
    """How training ends: certified, or plainly not, with what to type."""
    from rich.console import Console

    from tqpo.training.certificates import of_training, verdict_of

    for entry in of_training(folder):
        colour = {"certified": "green", "refuted": "red"}.get(entry["verdict"], "yellow")
        console = Console(highlight=False, markup=False)
        console.print(verdict_of(entry, folder), style=f"bold {colour}", soft_wrap=True)


def fresh_folder(job) -> pathlib.Path:
    """runs/SimpleEnv-tqpo-90, or the next free name after it."""
    task = re.sub(r"[^\w.-]+", "-", job.task.removeprefix("gym:"))
    name = f"{task}-{job.algo}" + (f"-{100 * job.safety:g}" if not job.constraints else "")
    numbered = (pathlib.Path("runs", name if i == 1 else f"{name}-{i}") for i in itertools.count(1))
    return next(path for path in numbered if not path.exists())
