"""What there is, and how fast: `tqpo tasks`, `algorithms`, `bench`."""

import dataclasses
import json
import pathlib

from tyro.conf import Positional

from tqpo.cli.common import File, Text, new_table, wide_console
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
    """Measure environment steps per second: JAX tasks, MuJoCo twin and Safety-Gymnasium, in one run."""

    what: Positional[str] = "envs"
    """What to measure: envs."""
    tasks: tuple[str, ...] = ("SimpleEnv", "DynamicEnv", "GremlinEnv")
    """Which tasks; by default those of the paper."""
    batches: tuple[int, ...] = (64, 256, 1024, 4096, 16384)
    """Numbers of environments stepped at once."""
    seconds: float = 2.0
    """Time for each measurement, at least."""
    twin: bool = True
    """Also measure the MuJoCo twin in one process."""
    original: Text = None
    """A Python with Safety-Gymnasium, to measure that too; by default that of make safety-gymnasium, if it is there."""
    out: File = None
    """Write the numbers as JSON here."""

    def __call__(self) -> None:
        from tqpo.reproduce.bench import bench_envs

        if self.what != "envs":
            raise ConfigError(f"bench {self.what!r}: there is envs")
        usual = pathlib.Path(".venv-safety-gymnasium/bin/python")
        original = self.original or (str(usual) if usual.exists() else None)
        result = bench_envs(self.tasks, self.batches, self.seconds, self.twin, original)
        if self.out:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(result, indent=1) + "\n")
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
