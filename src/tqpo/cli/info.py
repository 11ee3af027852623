"""What there is, and how fast: `tqpo tasks`, `algorithms`, `bench`."""

import dataclasses
import pathlib

from tyro.conf import Positional

from tqpo.errors import ConfigError


@dataclasses.dataclass
class Tasks:
    """List the tasks, or say what each number of a task's observation is."""

    observation: str | None = None
    """A task's name: prints the slices of its observation as a Markdown table."""

    def __call__(self) -> None:
        if self.observation is not None:
            from tqpo.envs import make
            from tqpo.envs.observation import slice_table

            print(slice_table(make(self.observation).observation_table()))
            return
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

        from tqpo.algorithms.presets import DESCRIPTIONS, PRESETS

        table = Table(title="Algorithms", caption=f"Presets: {', '.join(PRESETS)}; fast is the default")
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

        from tqpo.envs import TASKS
        from tqpo.reproduce.bench import EnvBench, bench_envs, table

        if self.what != "envs":
            raise ConfigError(f"bench {self.what!r}: there is envs")
        options = EnvBench(self.tasks or tuple(TASKS), self.batches, self.seconds, self.twin, self.out)
        Console().print(table(bench_envs(options)))
