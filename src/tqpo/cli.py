"""The command line: parsing and calling."""

import dataclasses
import json
import pathlib
import sys
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from tqpo.errors import ConfigError, Interrupted, TqpoError

Folder = Positional[pathlib.Path]


@dataclasses.dataclass
class Train:
    """Train a policy that keeps its episode cost under a limit with a stated probability, then say how safe it is.

    For example: tqpo train SimpleEnv --algo tqpo --safety 0.9 --cost-limit 15
    """

    task: Positional[str] = "SimpleEnv"
    """A task (see `tqpo tasks`)."""
    algo: str = "tqpo"
    """An algorithm or variant (see `tqpo algorithms`)."""
    safety: float = 0.9
    """The probability with which an episode must stay within the limit."""
    cost_limit: float = 15.0
    """The limit: the largest episode cost that counts as safe."""
    seeds: int = 1
    """How many runs, with seeds 0, 1, 2, … They train together in one program."""
    first_seed: int = 0
    """The first of those seeds."""
    steps: float = 5e6
    """Environment steps of each run."""
    preset: str = "fast"
    """fast (small networks, the default) or paper (the published configuration, made for a GPU)."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """Settings of the algorithm, e.g. learning_rate=1e-3."""
    task_set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """Settings of the task, e.g. max_steps=500."""
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
        from tqpo import session

        host = session.Host(quiet=self.quiet, wandb=self.wandb, checkpoint_every=self.checkpoint_every)
        if self.resume is not None:
            self._refuse_changes()
            folder = session.resume(self.resume, host)
        else:
            job = self.job()
            folder = session.train(job, self.out or fresh_folder(job), host)
        with folder:
            if self.episodes:
                conclude(folder, self.episodes, self.quiet)
            folder.finish()

    def job(self):
        from tqpo.session import Job

        if self.seeds < 1:
            raise ConfigError(f"seeds = {self.seeds}: at least 1")
        return Job(
            task=self.task,
            algo=self.algo,
            preset=self.preset,
            safety=self.safety,
            cost_limit=self.cost_limit,
            seeds=tuple(range(self.first_seed, self.first_seed + self.seeds)),
            steps=int(self.steps),
            snapshots=self.snapshots,
            settings=assignments(self.set),
            task_settings=assignments(self.task_set),
        )

    def _refuse_changes(self) -> None:
        """A resumed run keeps its settings: another one given beside --resume is an error, unless it is the same."""
        from tqpo import store
        from tqpo.session import Job

        with store.open_run(self.resume or "") as folder:
            begun = Job.from_description(folder.config)
        default, mine = Train().job(), self.job()
        for field in dataclasses.fields(begun):
            given, was = getattr(mine, field.name), getattr(begun, field.name)
            if given not in (getattr(default, field.name), was):
                raise ConfigError(f"{field.name} = {given}: {self.resume} was begun with {was}; leave it out to resume")
        if self.out is not None and self.out.resolve() != (self.resume or self.out).resolve():
            raise ConfigError("--out and --resume name two folders: a resumed run stays where it is")


@dataclasses.dataclass
class Evaluate:
    """Run fresh episodes of a trained policy: return, safety probability and cost quantile, with intervals and a verdict."""

    run: Folder
    """The folder that training wrote."""
    episodes: int = 1000
    """Episodes per seed."""
    physics: str = "jax"
    """jax, or mujoco for the reference simulator."""
    deterministic: bool = False
    """Act with the policy's mean instead of a sample."""
    json: bool = False
    """Print the result as JSON."""

    def __call__(self) -> None:
        from tqpo import finish, store

        with store.open_run(self.run, write=True) as folder:
            with progress("evaluating", hidden=self.json) as tick:
                found = finish.add_evaluation(folder, self.episodes, self.physics, self.deterministic, tick)
            if folder.finished:
                folder.finish()
        if self.json:
            print(json.dumps(found))
        else:
            show_evaluation(found)


@dataclasses.dataclass
class Plot:
    """Draw learning curves, the multiplier, and the histogram of episode costs of one or several runs."""

    runs: Positional[tuple[pathlib.Path, ...]]
    """Folders that training wrote."""
    out: pathlib.Path | None = None
    """Where to write PNG and SVG files; by default plots/ in the first run."""

    def __call__(self) -> None:
        from tqpo import finish

        folders = open_all(self.runs)
        for path in finish.write_plots(folders, self.out or folders[0].folder / "plots"):
            print(path)


@dataclasses.dataclass
class Compare:
    """Compare evaluated runs in a table, with intervals."""

    runs: Positional[tuple[pathlib.Path, ...]]
    """Folders that training wrote."""

    def __call__(self) -> None:
        from rich.table import Table

        from tqpo import finish
        from tqpo.session import Job

        table = Table(title="Fresh episodes, all seeds pooled, 95 % intervals")
        for column in ("run", "task", "algorithm", "return", "Pr[C ≤ d]", "asked", "cost quantile", "limit", "verdict"):
            table.add_column(column, justify="left" if column in {"run", "task", "algorithm", "verdict"} else "right")
        for folder in open_all(self.runs):
            job = Job.from_description(folder.config)
            found = finish.evaluations_of(folder)
            if not found:
                raise ConfigError(f"{folder.folder} has no evaluation: run tqpo evaluate {folder.folder}")
            pooled = found[0]["pooled"]
            c = pooled["constraints"][0]
            table.add_row(
                folder.folder.name,
                job.task,
                finish.label_of(job),
                interval(pooled["return"], "{:.1f}"),
                interval(c["safety_prob"], "{:.1%}"),
                f"{job.safety:.0%}",
                interval(c["episode_cost_quantile"], "{:.0f}"),
                f"{job.cost_limit:g}",
                c["verdict"]["word"],
            )
        wide_console().print(table)


@dataclasses.dataclass
class Watch:
    """Make a video of an episode (GIF, or MP4 where ffmpeg is), drawn from above or by MuJoCo in 3-D."""

    run: Folder
    """The folder that training wrote."""
    out: pathlib.Path | None = None
    """The file to write, .gif or .mp4; by default episode.gif in the run."""
    seed: int | None = None
    """Which seed's policy; by default the first."""
    episode: int = 0
    """Which episode of the evaluation."""
    deterministic: bool = False
    """Act with the policy's mean instead of a sample."""
    physics: str = "jax"
    """jax, drawn from above; or mujoco, its 3-D view where OpenGL works."""

    def __call__(self) -> None:
        from tqpo import finish, store

        folder = store.open_run(self.run)
        out = self.out or folder.folder / "episode.gif"
        print(finish.write_episode(folder, out, self.seed, self.episode, self.deterministic, self.physics))


@dataclasses.dataclass
class Report:
    """Write a run as one self-contained HTML page."""

    run: Folder
    """The folder that training wrote."""
    out: pathlib.Path | None = None
    """The file to write; by default report.html in the run."""

    def __call__(self) -> None:
        from tqpo import finish, store

        folder = store.open_run(self.run)
        print(finish.write_page(folder, self.out or folder.folder / "report.html"))


@dataclasses.dataclass
class Tasks:
    """List the tasks."""

    def __call__(self) -> None:
        from rich.console import Console
        from rich.table import Table

        from tqpo.envs import DESCRIPTIONS, make

        table = Table(title="Tasks")
        for column in ("task", "what to do", "cost sources", "observation", "steps"):
            table.add_column(column)
        for name, text in DESCRIPTIONS.items():
            env = make(name)
            table.add_row(name, text, ", ".join(env.cost_names[1:]), str(env.obs_size), str(env.max_steps))
        Console().print(table)


@dataclasses.dataclass
class Algorithms:
    """List the algorithms and their variants."""

    def __call__(self) -> None:
        from rich.console import Console
        from rich.table import Table

        from tqpo.algorithms.presets import DESCRIPTIONS

        table = Table(title="Algorithms", caption="Presets: fast (default), paper")
        for column in ("name", "constraint", "what it is"):
            table.add_column(column)
        for name, (constraint, text) in DESCRIPTIONS.items():
            table.add_row(name, constraint, text)
        Console().print(table)


@dataclasses.dataclass
class Bench:
    """Measure environment steps per second: JAX tasks, MuJoCo twin and, if installed, MJX, in one run."""

    what: Positional[str] = "envs"
    """What to measure: envs."""
    tasks: tuple[str, ...] = ()
    """Which tasks; by default all."""
    batches: tuple[int, ...] = (64, 256, 1024, 4096, 16384)
    """Numbers of environments stepped at once."""
    seconds: float = 2.0
    """Time for each measurement, at least."""
    twin: bool = True
    """Also measure the MuJoCo twin in one process."""
    out: pathlib.Path | None = None
    """Write the numbers as JSON here."""

    def __call__(self) -> None:
        from rich.console import Console

        from tqpo.bench import EnvBench, bench_envs, table
        from tqpo.envs import TASKS

        if self.what != "envs":
            raise ConfigError(f"bench {self.what!r}: there is envs")
        options = EnvBench(self.tasks or tuple(TASKS), self.batches, self.seconds, self.twin, self.out)
        Console().print(table(bench_envs(options)))


@dataclasses.dataclass
class Reproduce:
    """Train the paper's runs and lay the results beside its numbers. Made for a GPU; what is done is not done again."""

    what: Positional[str]
    """table1, table2, first (SimpleEnv, every part once) or fast (the fast preset at five levels)."""
    task: tuple[str, ...] = ()
    """Only these tasks."""
    algo: tuple[str, ...] = ()
    """Only these algorithms or variants."""
    seeds: int = 5
    """Runs of each cell."""
    steps: float = 5e6
    """Environment steps of each run."""
    out: pathlib.Path = pathlib.Path("results/paper")
    """Folder for one JSON file per cell."""

    def __call__(self) -> None:
        from rich.console import Console

        from tqpo.errors import UnknownNameError
        from tqpo.paper import SETS
        from tqpo.reproduce import Plan, reproduce, table

        if self.what not in SETS:
            raise UnknownNameError(f"nothing to reproduce called {self.what!r}; there are {', '.join(SETS)}")
        cells = [c for c in SETS[self.what] if c.task in (self.task or {c.task}) and c.algo in (self.algo or {c.algo})]
        plan = Plan(cells, self.out, tuple(range(self.seeds)), int(self.steps))
        Console(width=150).print(table(reproduce(plan)))


COMMANDS = (Train, Evaluate, Plot, Compare, Watch, Report, Tasks, Algorithms, Bench, Reproduce)


def wide_console():
    """The terminal; where there is none, wide enough that tables stay whole."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=140)


def assignments(pairs: tuple[str, ...]) -> dict:
    """NAME=VALUE pairs; a value is JSON where it can be (numbers, true, lists), else text."""
    out = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"{pair!r} is not a setting: write NAME=VALUE")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        out[name] = tuple(value) if isinstance(value, list) else value
    return out


def fresh_folder(job) -> pathlib.Path:
    """runs/SimpleEnv-tqpo-90, or the next free name after it."""
    name = f"{job.task}-{job.algo}-{100 * job.safety:g}"
    base = pathlib.Path("runs")
    taken = 1
    while (base / (name if taken == 1 else f"{name}-{taken}")).exists():
        taken += 1
    return base / (name if taken == 1 else f"{name}-{taken}")


def open_all(paths: tuple[pathlib.Path, ...]) -> list:
    from tqpo import store

    if not paths:
        raise ConfigError("no run given: name at least one folder that training wrote")
    return [store.open_run(path) for path in paths]


def progress(title: str, hidden: bool):
    """A context manager that gives a callback (done, total), shown as a bar in a terminal."""
    import contextlib

    from rich.console import Console
    from rich.progress import Progress

    @contextlib.contextmanager
    def show():
        console = Console(stderr=True, quiet=hidden)
        with Progress(console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    return show()


def interval(found: dict, form: str) -> str:
    low, high = ("…" if found[end] is None else form.format(found[end]) for end in ("low", "high"))
    return f"{form.format(found['value'])} [{low}, {high}]".replace("[", "\\[")


def show_evaluation(found: dict) -> None:
    from rich.table import Table

    table = Table(title=found["label"])
    for column in ("seed", "episodes", "return", "Pr[C ≤ d]", "cost quantile", "mean cost", "verdict"):
        table.add_column(column, justify="left" if column == "verdict" else "right")
    scopes = [(str(s["seed"]), s) for s in found["seeds"]]
    if len(scopes) > 1:
        scopes.append(("all", found["pooled"]))
    for name, scope in scopes:
        c = scope["constraints"][0]
        table.add_row(
            name,
            f"{scope['episodes']:,}",
            interval(scope["return"], "{:.2f}"),
            interval(c["safety_prob"], "{:.1%}"),
            interval(c["episode_cost_quantile"], "{:.0f}"),
            interval(c["episode_cost_mean"], "{:.1f}"),
            c["verdict"]["word"],
        )
    console = wide_console()
    console.print(table)
    if found["verdict"]:
        colour = {"meets": "green", "misses": "red"}.get(found["verdict"]["word"], "yellow")
        console.print(f"[bold {colour}]{found['verdict']['sentence']}[/]", soft_wrap=True)


def conclude(folder, episodes: int, quiet: bool) -> None:
    """The end of training: evaluation, figures, video, page, and where they are."""
    from tqpo import finish

    with progress("evaluating", hidden=quiet) as tick:
        finish.add_evaluation(folder, episodes, "jax", True, tick)
        found = finish.add_evaluation(folder, episodes, "jax", False, tick)
    finish.write_plots([folder], folder.folder / "plots")
    finish.write_episode(folder, folder.folder / "episode.gif")
    finish.write_page(folder, folder.folder / "report.html")
    show_evaluation(found)
    if not quiet:
        print(
            f"report  {folder.folder / 'report.html'}\nvideo   {folder.folder / 'episode.gif'}\nrun     {folder.folder}"
        )


def main() -> None:
    """Runs a command. Errors are one line and exit status 2; an interrupt is 128 plus the signal."""
    commands = {cls.__name__.lower(): cls for cls in COMMANDS}
    try:
        command = tyro.extras.subcommand_cli_from_dict(commands, description="Safe RL with a stated probability.")
        command()
    except Interrupted as error:
        print(error, file=sys.stderr)
        sys.exit(error.code)
    except TqpoError as error:
        print(f"tqpo: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
