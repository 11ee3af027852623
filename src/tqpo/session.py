"""A training job from the first step to the verdict: folder, live view, checkpoints, signals, evaluation.

A `Job` is plain data; everything that follows from it (task, configs, program) is derived, and `config.json` keeps both, so that a
job that is resumed can be held against the one that was begun.
"""

import contextlib
import dataclasses
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from tqpo import evaluation, networks, statistics, store
from tqpo.acting import ActorPolicy, Progress
from tqpo.algorithms.presets import VARIANTS, preset
from tqpo.algorithms.settings import Constraint
from tqpo.envs import Task, make
from tqpo.errors import ConfigError, Interrupted, StoreError, TqpoError
from tqpo.events import EventWriter
from tqpo.live import View
from tqpo.normalize import Moments
from tqpo.program import Chunk, Group, NonFiniteError, init_group, run
from tqpo.types import PyTree

CHECKPOINTS_KEPT = 3
EVALUATION_SEED = 1_000_003  # episodes of an evaluation share no key with training
SELECTION_SEED = 2_000_003  # nor with those that choose among snapshots
SELECTION_EPISODES = 384
SELECTION_CONFIDENCE = 0.9  # two-sided: who is chosen for being best is worse than it looks
SNAPSHOT_SHARE = 1 / 3  # of training, at its end, in which snapshots are taken


@dataclasses.dataclass(frozen=True)
class Job:
    """What to train. `settings` are settings of the algorithm by name, `task_settings` fields of the task's config."""

    task: str = "SimpleEnv"
    algo: str = "tqpo"
    preset: str = "fast"
    safety: float = 0.9
    cost_limit: float = 15.0
    seeds: tuple[int, ...] = (0,)
    steps: int = 5_000_000
    snapshots: int = 8  # policies from the last third of training that the final one is chosen from; 1: the last
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    task_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.safety < 1:
            raise ConfigError(f"safety = {self.safety}: a probability strictly between 0 and 1, such as 0.9")
        if not (self.cost_limit >= 0 and math.isfinite(self.cost_limit)):
            raise ConfigError(f"cost_limit = {self.cost_limit}: a number that is not negative")
        if self.steps < 1:
            raise ConfigError(f"steps = {self.steps}: at least 1")
        if self.snapshots < 1:
            raise ConfigError(f"snapshots = {self.snapshots}: at least 1")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ConfigError(f"seeds = {self.seeds}: at least one, all different, none negative")

    @property
    def base_algorithm(self) -> str:
        return VARIANTS.get(self.algo, (self.algo, {}))[0]

    def config(self) -> Any:
        return preset(self.preset, self.algo, safety=self.safety, cost_limit=self.cost_limit, **self.settings)

    def env(self) -> Task:
        return make(self.task, **self.task_settings)

    def group(self) -> Group:
        return Group(self.env(), self.base_algorithm, (self.config(),) * len(self.seeds), self.seeds)

    @property
    def iterations(self) -> int:
        learner = self.config().learner
        return math.ceil(self.steps / (learner.n_envs * learner.n_steps))

    @property
    def snapshot_iterations(self) -> list[int]:
        """When snapshots are taken; the last is the end."""
        start = self.iterations * (1 - SNAPSHOT_SHARE)
        return sorted({round(x) for x in np.linspace(start, self.iterations, self.snapshots + 1)[1:]})

    def describe(self) -> dict[str, Any]:
        """As `config.json` keeps it: the job, and all that followed from it."""
        derived = {"algorithm": dataclasses.asdict(self.config()), "task": dataclasses.asdict(self.env().config)}
        return {"job": dataclasses.asdict(self), "derived": derived}

    @staticmethod
    def from_description(config: Mapping[str, Any]) -> "Job":
        try:
            fields = dict(config["job"])
            return Job(**{**fields, "seeds": tuple(fields["seeds"]), **tuples(fields)})
        except (KeyError, TypeError) as error:
            raise StoreError(f"config.json is not that of a training job: {error}") from None


def tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they were before JSON made lists of their tuples."""

    def fix(value: Any) -> Any:
        return tuple(fix(x) for x in value) if isinstance(value, list) else value

    return {name: {k: fix(v) for k, v in fields.get(name, {}).items()} for name in ("settings", "task_settings")}


@contextlib.contextmanager
def listening() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying of them. A second SIGINT is Python's own KeyboardInterrupt."""
    heard: list[int] = []

    def note(number: int, _frame: Any) -> None:
        if number == signal.SIGINT and heard:
            raise KeyboardInterrupt
        heard.append(number)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: leave signals to whoever has them
        yield heard
        return
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclasses.dataclass(frozen=True)
class Host:
    """How a job is run, none of which changes its result."""

    quiet: bool = False
    chunk: int | None = None  # iterations between two looks of the host; None: 1 on a CPU, 8 on a GPU
    checkpoint_every: int = 20  # iterations
    max_skips: int = 50  # updates in a row that are not finite, before a run stops
    wandb: str | None = None  # a Weights & Biases project

    def __post_init__(self) -> None:
        if self.checkpoint_every < 1:
            raise ConfigError(f"checkpoint_every = {self.checkpoint_every}: at least 1")

    @property
    def chunk_length(self) -> int:
        return self.chunk or (1 if jax.default_backend() == "cpu" else 8)


def train(job: Job, out: str | os.PathLike, host: Host | None = None) -> store.Run:
    """Trains a job into a new folder. Returns the run, open for writing, its policies saved."""
    group = job.group()  # a wrong setting is an error before there is a folder
    folder = store.create(out, job.describe())
    return _train(job, group, folder, init_group(group), 0, host or Host())


def resume(path: str | os.PathLike, host: Host | None = None) -> store.Run:
    """Goes on with a job where its last good checkpoint left it."""
    folder = store.open_run(path, write=True)
    job = Job.from_description(folder.config)
    if plain(job.describe()) != plain(folder.config):
        folder.close()
        raise ConfigError(
            f"{folder.folder} was begun with other settings than this version derives from its config.json"
        )
    try:
        group = job.group()
        state = init_group(group)
        found = folder.resume(state)
    except BaseException:
        folder.close()
        raise
    state, iteration = (found[0], int(found[1]["iteration"])) if found else (state, 0)
    return _train(job, group, folder, state, iteration, host or Host())


def plain(value: Any) -> Any:
    """A value as JSON would give it back."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value if isinstance(value, str | bool | type(None)) else float(value)


def _train(job: Job, group: Group, folder: store.Run, state: PyTree, done: int, host: Host) -> store.Run:
    learner = group.configs[0].learner
    per_iteration = learner.n_envs * learner.n_steps
    title = f"{job.algo} on {job.task}, {job.safety:.0%} safe"
    view = View(title, job.seeds, job.iterations, job.cost_limit, job.safety, host.quiet)
    sinks = Sinks(folder, job, done * per_iteration, host, view)
    clock = time.monotonic()

    def save(iteration: int, state: PyTree) -> None:
        folder.save_checkpoint(state, {"step": iteration * per_iteration, "iteration": iteration}, CHECKPOINTS_KEPT)

    def on_chunk(chunk: Chunk) -> bool:
        nonlocal clock
        length = len(chunk.metrics["steps"])
        iteration = done + chunk.iteration
        rows = store.rows_of_chunk(chunk.metrics, job.seeds, iteration - length, per_iteration)
        folder.append_metrics(rows)
        sinks.write(iteration * per_iteration, chunk.metrics)
        now = time.monotonic()
        view.update(iteration, chunk.metrics, now - clock)
        clock = now
        for moment in job.snapshot_iterations:
            if iteration - length < moment <= iteration:
                folder.save_snapshot(moment, policies_of(chunk.state))
        crossed = iteration // host.checkpoint_every > (iteration - length) // host.checkpoint_every
        if crossed or heard or iteration >= job.iterations:
            save(iteration, chunk.state)
        if heard:
            raise Interrupted(
                heard[0], f"stopped after iteration {iteration}; go on with: tqpo train --resume {folder.folder}"
            )
        return False

    try:
        with view, listening() as heard:
            if done < job.iterations:
                state, _ = run(group, job.iterations - done, host.chunk_length, on_chunk, state, host.max_skips)
    except NonFiniteError as error:
        raise _bundle(folder, error) from error
    except BaseException:
        folder.close()
        raise
    finally:
        sinks.close()
    choose_policies(folder, job, group, policies_of(state), view)
    return folder


def policies_of(state: PyTree) -> ActorPolicy:
    """The actors of all runs with their normalisers, [runs, …]."""
    return ActorPolicy(state.learner.network.actor, state.learner.moments)


def choose_policies(folder: store.Run, job: Job, group: Group, final: ActorPolicy, view: View) -> None:
    """Saves the best snapshot of each seed: the highest return among those that are safe with some confidence, in episodes that
    no evaluation uses; where none is, the safest. λ keeps moving, so the last iterate is rarely the best."""
    moments, tried = [], []
    for moment in job.snapshot_iterations[:-1]:
        try:
            tried.append(folder.load_snapshot(moment, final))
            moments.append(moment)
        except StoreError as error:
            view.say(f"[yellow]a snapshot is left out:[/] {error}")
    moments, tried = [*moments, job.iterations], [*tried, final]
    limit = constraints(job)[0]
    chosen, facts = [], []
    if len(tried) > 1:
        view.say(f"choosing among {len(tried)} snapshots, {SELECTION_EPISODES} episodes each …")
    for place, seed in enumerate(job.seeds):
        key = jax.random.fold_in(jax.random.key(SELECTION_SEED), seed)
        scores = []
        for stacked in tried if len(tried) > 1 else []:
            policy = jax.tree.map(lambda x, i=place: x[i], stacked)
            found = evaluation.run_episodes(group.env, policy, key, SELECTION_EPISODES)
            safe = int((found.costs[:, limit.channel] <= limit.limit).sum())
            low = statistics.clopper_pearson(safe, SELECTION_EPISODES, SELECTION_CONFIDENCE).low
            scores.append((bool(low >= job.safety), float(found.returns.mean()) if low >= job.safety else safe, safe))
        best = max(range(len(scores)), key=lambda i: scores[i][:2]) if scores else len(tried) - 1
        chosen.append(jax.tree.map(lambda x, i=place: x[i], tried[best]))
        shares = {str(i): s[2] / SELECTION_EPISODES for i, s in zip(moments, scores, strict=False)}
        facts.append({"seed": seed, "iteration": moments[best], "safe_share_of_snapshots": shares})
        view.say(f"seed {seed}: the policy of iteration {moments[best]} of {job.iterations} is kept")
    stacked = jax.tree.map(lambda *x: jax.numpy.stack(x), *chosen)
    save_policies(folder, job, group, stacked, facts)


def _bundle(folder: store.Run, error: NonFiniteError) -> TqpoError:
    """Leaves what reproduces a failed run in the folder; the error that says where."""
    for failure in error.failures:
        name = f"failure/seed-{failure.run.seed}"
        arrays, _ = store.pack(failure.state)
        folder.write_file(f"{name}.safetensors", arrays)
        facts = {"seed": failure.run.seed, "iteration": failure.iteration, "iterations": failure.iterations}
        folder.write_json(f"{name}.json", facts | {"error": str(error)})
    folder.close()
    return TqpoError(f"{error}; what reproduces it is in {folder.folder / 'failure'}")


class Sinks:
    """TensorBoard and, if asked, Weights & Biases. One that fails is dropped with a message; training goes on."""

    def __init__(self, folder: store.Run, job: Job, step: int, host: Host, view: View):
        self.job, self.view = job, view
        self.writers: dict[str, Any] = {}
        with self.forgiving("TensorBoard"):
            for seed in job.seeds:
                self.writers[f"seed-{seed}"] = EventWriter(
                    folder.path(f"events/seed-{seed}"), step + 1 if step else None
                )
        self.wandb: Any = None
        if host.wandb:
            with self.forgiving("Weights & Biases"):
                import wandb  # pyright: ignore[reportMissingImports]

                self.wandb = wandb.init(project=host.wandb, config=job.describe(), resume="allow", id=folder.id)

    @contextlib.contextmanager
    def forgiving(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.view.say(f"[yellow]{name} failed and is left out from here on:[/] {error}")
            self.writers = {} if name == "TensorBoard" else self.writers
            self.wandb = None if name != "TensorBoard" else self.wandb

    def write(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        last = {name: np.asarray(x[-1], float).reshape(len(self.job.seeds), -1) for name, x in metrics.items()}
        scalars = [
            {
                name if x.shape[1] == 1 else f"{name}/{k}": float(x[i, k])
                for name, x in last.items()
                for k in range(x.shape[1])
            }
            for i in range(len(self.job.seeds))
        ]
        with self.forgiving("TensorBoard"):
            for writer, values in zip(self.writers.values(), scalars, strict=False):
                writer.scalars(step, values)
        if self.wandb is not None:
            with self.forgiving("Weights & Biases"):
                named = {
                    f"seed-{s}/{k}": v for s, row in zip(self.job.seeds, scalars, strict=True) for k, v in row.items()
                }
                self.wandb.log(named, step=step)

    def close(self) -> None:
        with self.forgiving("TensorBoard"):
            for writer in self.writers.values():
                writer.close()
        if self.wandb is not None:
            with self.forgiving("Weights & Biases"):
                self.wandb.finish()


def save_policies(folder: store.Run, job: Job, group: Group, policies: ActorPolicy, chosen: list) -> None:
    """The policies of all seeds with their frozen normalisers, [runs, …], in one file."""
    description = {
        "network": dataclasses.asdict(group.configs[0].learner.network),
        "obs_size": group.env.obs_size,
        "action_size": group.env.action_size,
        "seeds": list(job.seeds),
        "chosen": chosen,
    }
    folder.save_policy(policies, description)


def template(description: Mapping[str, Any]) -> ActorPolicy:
    """The shape of the policies that a description speaks of, [runs, …]."""
    try:
        network = dict(description["network"])
        spec = networks.NetworkSpec(**{**network, "hidden": tuple(network["hidden"])})
        obs, action, runs = description["obs_size"], description["action_size"], len(description["seeds"])
    except (KeyError, TypeError) as error:
        raise StoreError(f"policy.json does not describe a policy: {error}") from None

    def build(key):
        actor = networks.make_network(key, spec, obs, action, {}).actor
        return ActorPolicy(actor, Moments(*(jax.numpy.zeros(s) for s in ((obs,), (obs,), ()))))

    return eqx.filter_eval_shape(jax.vmap(build), jax.random.split(jax.random.key(0), runs))


def load_policies(folder: store.Run) -> dict[int, ActorPolicy]:
    """The policy of each seed."""
    _, description = folder.load_policy()
    stacked, description = folder.load_policy(template(description))
    return {seed: jax.tree.map(lambda x, i=i: x[i], stacked) for i, seed in enumerate(description["seeds"])}


def constraints(job: Job) -> tuple[Constraint, ...]:
    return job.config().constraints


def evaluation_key(seed: int) -> jax.Array:
    """The key of the evaluation's episodes: a video shows the ones that were counted."""
    return jax.random.fold_in(jax.random.key(EVALUATION_SEED), seed)


def evaluate_run(
    folder: store.Run,
    episodes: int = 1000,
    physics: str = "jax",
    deterministic: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fresh episodes of every seed's policy, summed up; see `evaluate` for the form."""
    job = Job.from_description(folder.config)
    env = job.env()
    totals = {}
    for seed, policy in load_policies(folder).items():
        key = evaluation_key(seed)
        if physics == "mujoco":
            from tqpo.envs.mujoco import MujocoTask

            make_twin = eqx.Partial(MujocoTask, env.config)
            found = evaluation.run_episodes_host(
                make_twin,
                policy,
                key,
                episodes,
                deterministic=deterministic,
                workers=os.cpu_count() or 1,
                progress=progress,
            )
        elif physics == "jax":
            found = evaluation.run_episodes(env, policy, key, episodes, deterministic=deterministic, progress=progress)
        else:
            raise ConfigError(f"physics = {physics!r}: jax or mujoco")
        totals[seed] = found
    how = f"{'deterministic' if deterministic else 'sampled'} actions, {physics} physics"
    settings = {"task": job.task, "algo": job.algo, "physics": physics, "episodes_per_seed": episodes}
    return evaluation.summarise(
        totals, constraints(job), env.cost_names, deterministic=deterministic, label=how, settings=settings
    )
