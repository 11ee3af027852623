"""What a trained run is turned into: evaluation, figures, a video, a page."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from tqpo import store
from tqpo.envs import Task
from tqpo.errors import ConfigError
from tqpo.evaluation.episodes import Policy, trace
from tqpo.evaluation.host_episodes import play_twin
from tqpo.output import plots
from tqpo.output.playback import record_episode
from tqpo.output.report import Report, write_report
from tqpo.output.video import write_video
from tqpo.training.evaluations import evaluation_key, evaluations_of
from tqpo.training.job import Job
from tqpo.training.policies import load_policies
from tqpo.types import Env, Key

EVERY = 4  # steps between two frames of a video


def label_of(job: Job) -> str:
    named = job.algo if job.preset == "fast" else f"{job.algo} ({job.preset})"
    return f"{named} {job.goal()}"


def curves_of(folder: store.Run, place: int = 0, label: str = "") -> list[plots.Curve]:
    """The learning curves in a run's `metrics.csv`, of the constraint at that place; none if there is no such constraint."""
    job = Job.from_description(folder.config)
    columns = folder.metrics()
    if not columns or place >= len(job.asked()):
        return []
    runs = len(job.seeds)
    length = len(columns["iteration"]) // runs
    table = {name: x[: length * runs].reshape(length, runs) for name, x in columns.items()}
    own = {name.removesuffix(f".{place}"): x for name, x in table.items() if name.endswith(f".{place}")}
    shown = {name: x for name, x in table.items() if "." not in name} | own
    asked = job.asked()[place]
    level = float(asked.safety) if asked.kind == "quantile" else None
    info = plots.RunInfo(label or label_of(job), float(asked.limit), level)
    return plots.make_curves(shown, table["step"][:, 0], [info] * runs)


def write_plots(folders: Sequence[store.Run], out: pathlib.Path) -> list[pathlib.Path]:
    """Learning curves, multiplier and tilt, and the histogram of episode costs, of one run or several together.

    Each constraint after the first has curves of its own, `learning-2` and so on.
    """
    jobs = [Job.from_description(folder.config) for folder in folders]
    several = len({job.task for job in jobs}) > 1
    labels = [f"{job.task}: {label_of(job)}" if several else label_of(job) for job in jobs]
    evaluations = []
    for folder in folders:
        whose = f"{folder.folder.name} · " if len(folders) > 1 else ""
        evaluations += [e | {"label": whose + e["label"]} for e in evaluations_of(folder)[:1]]
    written = []
    for place in range(max(len(job.asked()) for job in jobs)):
        curves = [c for folder, name in zip(folders, labels, strict=True) for c in curves_of(folder, place, name)]
        if not curves:
            continue
        end = f"-{place + 1}" if place else ""
        title = title_of(jobs[0], place) if len(folders) == 1 else f"constraint {place + 1}" if place else ""
        written += plots.save(plots.learning_curves(curves, title), out / f"learning{end}")
        if any("multiplier" in c.metrics for c in curves):
            written += plots.save(plots.multiplier_curves(curves, title), out / f"multiplier{end}")
    if evaluations:
        written += plots.save(plots.cost_histogram(evaluations), out / "cost")
    return written


def title_of(job: Job, place: int) -> str:
    """The task, and the cost in question where there are several constraints."""
    asked = job.asked()
    return job.task if len(asked) == 1 else f"{job.task}: {job.env().cost_names[asked[place].channel]}"


def write_episode(
    folder: store.Run,
    path: pathlib.Path,
    seed: int | None = None,
    episode: int = 0,
    deterministic: bool = False,
    physics: str = "jax",
) -> pathlib.Path:
    """A video of one episode of the evaluation: drawn from above, or MuJoCo's 3-D view."""
    job, policies = Job.from_description(folder.config), load_policies(folder)
    env = job.env()
    seed = next(iter(policies)) if seed is None else seed
    if seed not in policies:
        raise ConfigError(f"seed = {seed}: this run has {', '.join(map(str, policies))}")
    if not isinstance(env, Env):
        from tqpo.evaluation import host_episodes

        host: Any = env
        return write_video(
            path, *host_episodes.film(host, policies[seed], evaluation_key(seed), episode, deterministic)
        )
    if not isinstance(env, Task):
        raise ConfigError(f"{job.task} is a JAX environment of your own: there is no picture of it to draw")
    film = {"jax": drawn_frames, "mujoco": filmed_frames}.get(physics)
    if film is None:
        raise ConfigError(f"physics = {physics!r}: jax or mujoco")
    frames = film(env, policies[seed], evaluation_key(seed), episode, deterministic)
    return write_video(path, frames, EVERY * env.config.step_duration)


def drawn_frames(env: Task, policy: Policy, key: Key, episode: int, deterministic: bool) -> Iterator[np.ndarray]:
    from tqpo.envs.render import Caption, draw

    seen = trace(env, policy, key, episode, deterministic)
    returns = np.concatenate([[0.0], np.cumsum(seen.rewards)])
    costs = np.concatenate([[0.0], np.cumsum(seen.costs[:, 0])])
    for t in range(0, len(seen.obs), EVERY):
        state = jax.tree.map(lambda x, t=t: x[t], seen.states)
        yield draw(state, seen.obs[t], env.config, Caption(float(returns[t]), float(costs[t])), size=400)


def filmed_frames(env: Task, policy: Policy, key: Key, episode: int, deterministic: bool) -> list[np.ndarray]:
    from tqpo.envs.mujoco import MujocoTask

    frames: list[np.ndarray] = []

    class Filmed(MujocoTask):
        """The twin, with a frame kept now and then."""

        def observe(self) -> np.ndarray:
            if self.steps % EVERY == 0:
                frames.append(self.render())
            return super().observe()

    play_twin(lambda: Filmed(env.config), policy, key, [episode], deterministic)
    return frames


def write_page(folder: store.Run, path: pathlib.Path) -> pathlib.Path:
    """The run as one page."""
    job = Job.from_description(folder.config)
    env, episodes, limit = job.env(), [], float(job.asked()[0].limit)
    for seed, policy in list(load_policies(folder).items())[:3]:
        if not isinstance(env, Task):
            break  # the player draws our tasks only
        title = f"seed {seed}, the first evaluated episode"
        episodes.append(record_episode(env, policy, evaluation_key(seed), cost_limit=limit, title=title))
    session = folder.manifest.get("sessions", [{}])[-1]
    goal = job.goal() if job.constraints else f"Pr[episode cost ≤ {limit:g}] ≥ {job.safety:.0%}"
    report = Report(
        title=f"{job.algo} on {job.task}",
        subtitle=f"Return at its best while {goal}",
        evaluations=evaluations_of(folder),
        curves=curves_of(folder),
        episodes=episodes,
        settings=folder.config["job"] | folder.config["derived"]["algorithm"],
        provenance=session,
    )
    return write_report(path, report)
