"""What a trained run is turned into: evaluation, figures, a video, a page."""

import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from tqpo import store
from tqpo.envs import Task
from tqpo.envs.budget import unwrapped
from tqpo.errors import ConfigError
from tqpo.evaluation.episodes import Policy, Progress, trace
from tqpo.evaluation.fresh import with_budget
from tqpo.evaluation.host_episodes import play_twin
from tqpo.output import plots
from tqpo.output.playback import record_episode
from tqpo.output.report import Report, write_report
from tqpo.output.video import write_video
from tqpo.training.certificates import certificates_of
from tqpo.training.evaluations import (
    add_evaluation,
    evaluate_run,
    evaluation_key,
    evaluations_of,
    judged_by_mean,
)
from tqpo.training.job import Prepared, prepared_of
from tqpo.training.policies import load_policies, load_policy
from tqpo.types import Env, Key

PAGE = "report.html"
EVERY = 4  # steps between two frames of a video


def conclude(
    folder: store.Run, episodes: int = 1000, report: bool = True, progress: Progress | None = None
) -> tuple[dict[str, Any], dict[str, pathlib.Path]]:
    """The end of training: evaluates a run's policies with so many episodes of each, and marks the run as finished.

    With `report` it also evaluates their deterministic actions, and writes figures, a video (of our tasks) and a page.
    Returns the evaluation of sampled actions, and what was written by name.
    """
    written = {}
    if report:
        add_evaluation(folder, episodes, "jax", True, progress)
    evaluation = add_evaluation(folder, episodes, "jax", False, progress)
    if report:
        write_plots([folder], folder.folder / "plots")
        written |= {"report": write_page(folder, folder.folder / PAGE), "run": folder.folder}
        if isinstance(unwrapped(prepared_of(folder.config).env), Task):
            written["video"] = write_episode(folder, folder.folder / "episode.gif")
    folder.finish()
    return evaluation, written


def judge(
    path: str | os.PathLike, episodes: int, physics: str, deterministic: bool, progress: Progress | None = None
) -> dict[str, Any]:
    """Evaluates a run, keeps the result in it and renews its figures and its page, if it has one.

    A policy that came with the package keeps nothing.
    """
    if store.is_shipped(path):
        return evaluate_run(store.open_run(path), episodes, physics, deterministic, progress)
    with store.open_run(path, write=True) as folder:
        finished = folder.finished
        evaluation = add_evaluation(folder, episodes, physics, deterministic, progress)
        if (folder.folder / PAGE).exists():
            renewed = [*write_plots([folder], folder.folder / "plots"), write_page(folder, folder.folder / PAGE)]
            for file in renewed:  # with new checksums
                folder.write_file(file.relative_to(folder.folder).as_posix(), file.read_bytes())
            if finished:
                folder.finish()
    return evaluation


def label_of(prepared: Prepared) -> str:
    return f"{prepared.job.title} {prepared.goal}"


def curves_of(folder: store.Run, prepared: Prepared, place: int = 0, label: str = "") -> list[plots.Curve]:
    """The learning curves in a run's `metrics.csv`, of the constraint at that place; none if there is none."""
    columns = folder.metrics()
    if not columns or place >= len(prepared.asked):
        return []
    runs = len(prepared.job.seeds)
    length = len(columns["iteration"]) // runs
    table = {name: x[: length * runs].reshape(length, runs) for name, x in columns.items()}
    own = {name.removesuffix(f".{place}"): x for name, x in table.items() if name.endswith(f".{place}")}
    shown = {name: x for name, x in table.items() if "." not in name} | own
    asked = prepared.asked[place]
    level = float(asked.safety) if asked.kind == "quantile" else None
    info = plots.RunInfo(label or label_of(prepared), float(asked.limit), level)
    return plots.make_curves(shown, table["step"][:, 0], [info] * runs)


def write_plots(folders: Sequence[store.Run], out: pathlib.Path) -> list[pathlib.Path]:
    """Learning curves, multiplier and tilt, and the episode costs, of one run or several together.

    Each constraint after the first has figures of its own, `learning-2` and so on.
    """
    jobs = [prepared_of(folder.config) for folder in folders]
    labels = labels_of(folders, jobs)
    evaluations = []
    for folder, label in zip(folders, labels, strict=True):
        found = evaluations_of(folder)[:1]
        evaluations += found if len(folders) == 1 else [e | {"label": label} for e in found]
    written = []
    for place in range(max(len(p.asked) for p in jobs)):
        parts = zip(folders, jobs, labels, strict=True)
        curves = [curve for folder, p, label in parts for curve in curves_of(folder, p, place, label)]
        end = f"-{place + 1}" if place else ""
        title = title_of(jobs[0], place) if len(folders) == 1 else f"constraint {place + 1}" if place else ""
        if curves:
            written += plots.save(plots.learning_curves(curves, title), out / f"learning{end}")
        if any("multiplier" in c.metrics for c in curves):
            written += plots.save(plots.multiplier_curves(curves, title), out / f"multiplier{end}")
        if bounded := [e for e in evaluations if len(e["constraints"]) > place]:
            written += plots.save(plots.cost_histogram(bounded, place, title), out / f"cost{end}")
    return written


def labels_of(folders: Sequence[store.Run], jobs: Sequence[Prepared]) -> list[str]:
    """A label for each run that no other has: algorithm and goal, with the task or the folder where those are alike."""
    several = len({p.job.task for p in jobs}) > 1
    labels = [f"{p.job.name}: {label_of(p)}" if several else label_of(p) for p in jobs]
    names = [folder.folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder.folder) for folder in folders]
    return [f"{name}: {label}" if labels.count(label) > 1 else label for name, label in zip(names, labels, strict=True)]


def title_of(prepared: Prepared, place: int) -> str:
    """The task, and the cost in question where there are several constraints."""
    asked, task = prepared.asked, prepared.job.name
    return task if len(asked) == 1 else f"{task}: {prepared.env.cost_names[asked[place].channel]}"


def write_episode(
    folder: store.Run,
    path: pathlib.Path,
    seed: int | None = None,
    episode: int = 0,
    deterministic: bool | None = None,
    physics: str = "jax",
) -> pathlib.Path:
    """A video of one episode of the evaluation: drawn from above, or MuJoCo's 3-D view; by default of the kind of action
    that the verdict is about."""
    seed, policy = load_policy(folder, seed)
    deterministic = judged_by_mean(folder) if deterministic is None else deterministic
    env, key = prepared_of(folder.config).env, evaluation_key(seed)
    if not isinstance(env, Env):
        from tqpo.evaluation import host_episodes

        host: Any = env
        return write_video(path, *host_episodes.film(host, policy, key, episode, deterministic))
    if not isinstance(task := unwrapped(env), Task):
        raise ConfigError(f"{folder.config['job']['task']} is a JAX environment of your own: there is no picture of it")
    film = {"jax": drawn_frames, "mujoco": filmed_frames}.get(physics)
    if film is None:
        raise ConfigError(f"physics = {physics!r}: jax or mujoco")
    return write_video(path, film(env, policy, key, episode, deterministic), EVERY * task.config.step_duration)


def drawn_frames(env: Env, policy: Policy, key: Key, episode: int, deterministic: bool) -> Iterator[np.ndarray]:
    from tqpo.envs.render import Caption, draw

    task: Any = unwrapped(env)
    seen = trace(env, policy, key, episode, deterministic)
    returns = np.concatenate([[0.0], np.cumsum(seen.rewards)])
    costs = np.concatenate([[0.0], np.cumsum(seen.costs[:, 0])])
    for t in range(0, len(seen.obs), EVERY):
        state = jax.tree.map(lambda x, t=t: x[t], seen.states)
        yield draw(state, seen.obs[t], task.config, Caption(float(returns[t]), float(costs[t])), size=400)


def filmed_frames(env: Env, policy: Policy, key: Key, episode: int, deterministic: bool) -> list[np.ndarray]:
    from tqpo.envs.mujoco import MujocoTask

    frames: list[np.ndarray] = []
    task: Any = unwrapped(env)

    class Filmed(MujocoTask):
        """The twin, which keeps every few frames."""

        def observe(self) -> np.ndarray:
            if self.steps % EVERY == 0:
                frames.append(self.render())
            return super().observe()

    play_twin(with_budget(env, lambda: Filmed(task.config)), policy, key, [episode], deterministic)
    return frames


def write_page(folder: store.Run, path: pathlib.Path) -> pathlib.Path:
    """The run as one page."""
    prepared = prepared_of(folder.config)
    job, env = prepared.job, prepared.env
    limit = next((float(c.limit) for c in prepared.asked if c.channel == 0), None)  # the player shows the total cost
    episodes = [
        record_episode(
            env,
            policy,
            evaluation_key(seed),
            deterministic=judged_by_mean(folder),
            cost_limit=limit,
            title=f"seed {seed}, the first evaluated episode",
        )
        for seed, policy in list(load_policies(folder).items())[:3]
        if isinstance(env, Env) and isinstance(unwrapped(env), Task)  # the player draws our tasks only
    ]
    goal = prepared.goal if job.constraints else f"Pr[episode cost ≤ {job.cost_limit:g}] ≥ {job.safety:.0%}"
    report = Report(
        title=f"{job.algo} on {job.name}",
        subtitle=f"Return at its best while {goal}",
        evaluations=evaluations_of(folder),
        curves=[curves_of(folder, prepared, place, job.title) for place in range(len(prepared.asked))],
        certificates=certificates_of(folder),
        episodes=episodes,
        settings=folder.config["job"] | folder.config["derived"]["algorithm"],
        provenance=folder.manifest.get("sessions", [{}])[-1],
    )
    return write_report(path, report)
