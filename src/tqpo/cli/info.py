"""What there is, and how fast: `tqpo tasks`, `algorithms`, `bench`."""

import dataclasses
import json
import pathlib
from typing import Any

from tyro.conf import Positional

from tqpo.cli.common import File, Settings, Text, assignments, new_table, wide_console
from tqpo.errors import ConfigError


@dataclasses.dataclass
class Tasks:
    """List the tasks, or say what each number of a task's observation is."""

    observation: Text = None
    """A task's name: prints the slices of its observation as a Markdown table."""

    def __call__(self) -> None:
        from tqpo.envs import DESCRIPTIONS, TASKS, make

        if self.observation is not None:
            from tqpo.envs.observation import slice_table

            print(slice_table(make(self.observation).observation_table()))
            return
        table = new_table("Tasks", ("task", "what to do", "cost sources", "observation", "steps"))
        for name, text in DESCRIPTIONS.items():
            config = TASKS[name]  # without making the task, which takes seconds to see that its objects fit
            numbers = config.observation_table()[-1].stop, config.max_steps
            table.add_row(name, text, ", ".join(config.sources), *map(str, numbers))
        wide_console().print(table)


@dataclasses.dataclass
class Algorithms:
    """List the algorithms and their variants."""

    def __call__(self) -> None:
        from tqpo.algorithms.presets import DESCRIPTIONS, PRESETS

        table = new_table("Algorithms", ("name", "constraint", "what it is"))
        table.caption = f"Presets: {', '.join(PRESETS)}; the default is fast"
        for name, (constraint, text) in DESCRIPTIONS.items():
            table.add_row(name, constraint, text)
        wide_console().print(table)


@dataclasses.dataclass
class Bench:
    """Measure speed: environment steps of JAX tasks, MuJoCo twin and Safety-Gymnasium, or the parts of a training iteration."""

    what: Positional[str] = "envs"
    """What to measure: envs or learners."""
    tasks: tuple[str, ...] = ()
    """Which tasks; by default those of the paper, of learners SimpleEnv."""
    batches: tuple[int, ...] = (64, 256, 1024, 4096, 16384)
    """Of envs: numbers of environments stepped at once."""
    seconds: float = 2.0
    """Of envs: time for each measurement, at least."""
    twin: bool = True
    """Of envs: also measure the MuJoCo twin in one process."""
    original: Text = None
    """Of envs: a Python with Safety-Gymnasium, to measure that too; by default that of make safety-gymnasium, if it is there."""
    algo: str = "tqpo"
    """Of learners: an algorithm or a variant."""
    preset: str = "fast"
    """Of learners: its settings."""
    runs: tuple[int, ...] = (1,)
    """Of learners: numbers of runs trained together."""
    set: Settings = ()
    """Of learners: settings other than the preset's, e.g. n_envs=1024."""
    episodes: int = 1000
    """Of learners: fresh episodes of each run's policy that are timed."""
    rounds: int = 7
    """Of learners: turns of each measurement; medians are reported."""
    against: File = None
    """Of learners: another checkout of this package, measured in turn with this one."""
    ahead: bool = False
    """Of learners: compile all combinations at once before the first is measured, where there are cores and memory for it."""
    out: File = None
    """Write the numbers as JSON here."""

    def __call__(self) -> None:
        measures = {"envs": self._envs, "learners": self._learners}
        if self.what not in measures:
            raise ConfigError(f"bench {self.what!r}: there is {' and '.join(measures)}")
        result = measures[self.what]()
        if self.out:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(result, indent=1) + "\n")

    def _envs(self) -> dict[str, Any]:
        from tqpo.reproduce.bench import bench_envs

        usual = pathlib.Path(".venv-safety-gymnasium/bin/python")
        original = self.original or (str(usual) if usual.exists() else None)
        tasks = self.tasks or ("SimpleEnv", "DynamicEnv", "GremlinEnv")
        result = bench_envs(tasks, self.batches, self.seconds, self.twin, original)
        numbers = ("environments", "JAX", "compile [s]", "MuJoCo twin", "JAX / twin", "Safety-Gymnasium", "JAX / it")
        title = f"Environment steps per second ({result['provenance']['hardware']['device']})"
        table = new_table(title, ("task", *numbers), numbers)
        for name, entry in result["tasks"].items():
            shown = {"mujoco_twin": "{:,.0f}", "jax_over_twin": "{:,.0f}×", "original": "{:,.0f}"}
            shown["jax_over_original"] = "{:,.0f}×"
            others = [form.format(entry[key]) if key in entry else "" for key, form in shown.items()]
            for row in entry.get("jax", []):
                best = row == entry["best"]
                texts = f"{row['batch']:,}", f"{row['steps_per_s']:,.0f}", f"{row['compile_s']:.1f}"
                table.add_row(name, *texts, *(others if best else ()), style="bold" if best else None)
            if "jax" not in entry:
                table.add_row(name, "", "no JAX physics", "", *others)
        wide_console().print(table)
        return result

    def _learners(self) -> dict[str, Any]:
        from tqpo.reproduce.learners import PARTS, bench_learners

        job = {"algo": self.algo, "preset": self.preset, "settings": assignments(self.set), "episodes": self.episodes}
        tasks = self.tasks or ("SimpleEnv",)
        specs = [{"task": task, "runs": runs} | job for task in tasks for runs in self.runs]
        result = bench_learners(specs, self.rounds, self.against, self.ahead)
        numbers = (*(f"{part} [ms]" for part in PARTS), "steps/s", "start [s]")
        title = f"An iteration of {self.algo} ({self.preset}, {result['provenance']['hardware']['device']})"
        table = new_table(title, ("task", "runs", "package", *numbers), numbers)
        for row in result["rows"]:
            for name in ("this", "other") if self.against else ("this",):
                seen = row[name]
                times = [f"{1e3 * seen[f'{part}_s']:,.1f}" for part in PARTS]
                table.add_row(
                    row["task"], str(row["runs"]), name, *times, f"{seen['steps_per_s']:,.0f}", f"{seen['start_s']:.0f}"
                )
            if self.against:
                times = [f"{row['ratio'][part]:.2f}×" if part in row["ratio"] else "" for part in PARTS]
                table.add_row("", "", "other / this", *times, "", "", style="bold")
        wide_console().print(table)
        return result
