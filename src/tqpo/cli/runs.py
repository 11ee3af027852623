"""What is done with trained runs: `tqpo evaluate`, `plot`, `compare`, `watch`, `report`."""

import dataclasses
import json
import pathlib
import sys

from tqpo.cli.common import (
    COSTS,
    MISSED,
    File,
    Folder,
    Folders,
    Number,
    constraint_text,
    costs,
    interval,
    new_table,
    open_all,
    progress,
    runs_among,
    show_evaluation,
    wide_console,
)
from tqpo.errors import ConfigError


@dataclasses.dataclass
class Evaluate:
    """Run fresh episodes of a trained policy: return, safety, cost quantile with intervals, and a verdict."""

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
    fail_on_miss: bool = False
    """Exit with status 3 if the verdict is that a constraint is missed."""

    def __call__(self) -> None:
        from tqpo import store
        from tqpo.output.conclude import judge
        from tqpo.training.evaluations import more_of

        with progress("evaluating", hidden=self.json) as tick:
            evaluation = judge(self.run, self.episodes, self.physics, self.deterministic, tick)
        if self.json:
            print(json.dumps(evaluation))
        else:
            show_evaluation(evaluation, self.run)
            if more := more_of(store.open_run(self.run), evaluation):
                print(f"{self.run} keeps its evaluation of {more:,} episodes; this one is shown only", file=sys.stderr)
        if self.fail_on_miss and (evaluation["verdict"] or {}).get("word") == "misses":
            sys.exit(MISSED)


@dataclasses.dataclass
class Plot:
    """Draw learning curves, the multiplier, and the histogram of episode costs of one or several runs."""

    runs: Folders
    """Folders that training wrote."""
    out: File = None
    """Where to write PNG and SVG files; by default plots/ in the run, or here if there are several."""

    def __call__(self) -> None:
        from tqpo.output import conclude

        folders = open_all(self.runs)
        usual = place(self.runs[0], "plots") if len(self.runs) == 1 else pathlib.Path("plots")
        for path in conclude.write_plots(folders, self.out or usual):
            print(path)


@dataclasses.dataclass
class Compare:
    """Compare evaluated runs in a table, with intervals."""

    runs: Folders
    """Folders that training wrote."""

    def __call__(self) -> None:
        from tqpo.training.certificates import certificates_of
        from tqpo.training.evaluations import evaluations_of
        from tqpo.training.job import Job

        numbers = ("episodes", "return", "Pr[C ≤ d]", *COSTS)
        columns = ("task", "algorithm", "episodes", "return", "constraint", *numbers[2:], "verdict")
        table = new_table("Fresh episodes, all seeds pooled, 95 % intervals", ("run", *columns), right=numbers)
        missing = []
        for folder in runs_among(self.runs):
            job = Job.from_description(folder.config)
            if not (evaluations := evaluations_of(folder)):
                missing.append(folder.folder)
                continue
            first, pooled, certificates = evaluations[0], evaluations[0]["pooled"], certificates_of(folder)
            for c, asked in zip(pooled["constraints"], first["constraints"], strict=True):
                table.add_row(
                    folder.folder.name,
                    job.task,
                    job.title,
                    f"{pooled['episodes']:,}" + (", MuJoCo" if "mujoco" in first["label"] else ""),
                    interval(pooled["return"], "{:.2f}"),
                    constraint_text(asked),
                    interval(c["safety_prob"], "{:.1%}"),
                    *costs(c, asked["cost_limit"]),
                    "\n".join([c["verdict"]["word"], *said_of(certificates, asked, first)]),
                )
        if table.row_count:
            wide_console().print(table)
        for path in missing:
            print(f"{path} has no evaluation: run tqpo evaluate {path}", file=sys.stderr)
        if not table.row_count:
            raise ConfigError("nothing to compare")


def said_of(certificates: list[dict], asked: dict, judged: dict) -> list[str]:
    """What a run's certificates say of a constraint, of the kind of action that is judged: each word, and of how many
    seeds where there are several."""
    from tqpo.training.certificates import ACTIONS

    kind, seeds = ACTIONS[judged["deterministic"]], len(judged["seeds"])
    words = [
        row["word"]
        for entry in certificates
        if entry["environment"]["actions"] == kind
        for row in entry["claims"]
        if (row["costs"], row["cost_limits"], row["safety"])
        == ([asked["name"]], [asked["cost_limit"]], asked["safety"])
    ][:seeds]
    counts = {word: words.count(word) for word in ("certified", "refuted", "undecided") if word in words}
    return [word if seeds == 1 else f"{n} {word}" for word, n in counts.items()]


@dataclasses.dataclass
class Watch:
    """Make a video of an episode (GIF, or MP4 where ffmpeg is), drawn from above or by MuJoCo in 3-D."""

    run: Folder
    """The folder that training wrote."""
    out: File = None
    """The file to write, .gif or .mp4; by default episode.gif in the run."""
    seed: Number = None
    """Which seed's policy; by default the first."""
    episode: int = 0
    """Which episode of the evaluation."""
    deterministic: bool = False
    """Act with the policy's mean. By default it acts as it does in its verdict."""
    sampled: bool = False
    """Act with samples of the policy."""
    physics: str = "jax"
    """jax, drawn from above; or mujoco, its 3-D view where OpenGL works."""

    def __call__(self) -> None:
        from tqpo import store
        from tqpo.output import conclude

        if self.deterministic and self.sampled:
            raise ConfigError("--deterministic and --sampled: one or the other")
        folder = store.open_run(self.run)
        out = self.out or place(self.run, "episode.gif")
        mean = self.deterministic if self.deterministic or self.sampled else None
        print(conclude.write_episode(folder, out, self.seed, self.episode, mean, self.physics))


@dataclasses.dataclass
class Report:
    """Write a run as one self-contained HTML page."""

    run: Folder
    """The folder that training wrote."""
    out: File = None
    """The file to write; by default report.html in the run."""

    def __call__(self) -> None:
        from tqpo import store
        from tqpo.output import conclude

        folder = store.open_run(self.run)
        print(conclude.write_page(folder, self.out or place(self.run, "report.html")))


def place(run: pathlib.Path, name: str) -> pathlib.Path:
    """Where a file about a run goes: into its folder; for one that comes with the package, here."""
    from tqpo import store

    return pathlib.Path(f"{run}-{name}") if store.is_shipped(run) else run / name
