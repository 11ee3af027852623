"""A training job from the first step to the verdict: folder, live view, checkpoints, signals, evaluation.

`config.json` keeps the `Job` and all that was derived from it, so that a job that is resumed can be held against the one that was
begun. Environments on the host begin anew when a run is resumed.
"""

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
from rich.markup import escape

from tqpo import evaluation, networks, statistics, store
from tqpo.acting import ActorPolicy, Policy, Progress, Totals
from tqpo.algorithms.settings import Constraint
from tqpo.envs import Task
from tqpo.envs.budget import Budgeted, BudgetedTwin, unwrapped
from tqpo.errors import ConfigError, Interrupted, StoreError, TqpoError
from tqpo.job import Job
from tqpo.live import View
from tqpo.normalize import Moments
from tqpo.program import Chunk, Group, Metrics, NonFiniteError, init_group, run
from tqpo.sinks import Sinks
from tqpo.types import Env, Key, PyTree, Spec

CHECKPOINTS_KEPT = 3
EVALUATION_SEED = 1_000_003  # episodes of an evaluation share no key with training
SELECTION_SEED = 2_000_003  # nor with those that choose among snapshots
SELECTION_CONFIDENCE = 0.9  # two-sided: who is chosen for being best is worse than it looks
FAULTS = "faults.txt"  # reports of environments on the host that were restarted

Callback = Callable[[int, Metrics], Any]  # iterations done, metrics [iterations, runs, …] of the last chunk; True: stop


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
    """How a job is run, none of which changes its result, but for a callback that stops it."""

    quiet: bool = False
    chunk: int | None = None  # iterations between two looks of the host; None: 1 on a CPU, 8 on a GPU
    checkpoint_every: int = 20  # iterations
    max_skips: int = 50  # updates in a row that are not finite, before a run stops
    wandb: str | None = None  # a Weights & Biases project
    callback: Callback | None = None

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
    title = f"{job.algo} on {job.task}, {job.goal()}{'' if job.constraints else ' safe'}"
    view = View(title, job.seeds, job.iterations, job.asked(), host.quiet)
    sinks = Sinks(folder, job, done * per_iteration, host.wandb, view)
    clock, last = time.monotonic(), done

    def save(iteration: int, state: PyTree) -> None:
        folder.save_checkpoint(state, {"step": iteration * per_iteration, "iteration": iteration}, CHECKPOINTS_KEPT)

    def on_chunk(chunk: Chunk) -> bool:
        nonlocal clock, last
        length = len(chunk.metrics["steps"])
        last = iteration = done + chunk.iteration
        report_faults(folder, view, chunk.faults)
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
        stop = host.callback is not None and bool(host.callback(iteration, chunk.metrics))
        if crossed or heard or stop or iteration >= job.iterations:
            save(iteration, chunk.state)
        if heard:
            raise Interrupted(
                heard[0], f"stopped after iteration {iteration}; go on with: tqpo train --resume {folder.folder}"
            )
        return stop

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
    choose_policies(folder, job, group, policies_of(state), last, view)
    return folder


def report_faults(folder: store.Run, view: View, reports: tuple[str, ...]) -> None:
    """A line to read now, the traceback in a file."""
    if not reports:
        return
    path = folder.path(FAULTS)
    before = path.read_text() if path.exists() else ""
    folder.write_file(FAULTS, (before + "\n\n".join([*reports, ""])).encode())
    for report in reports:
        view.say(f"[yellow]restarted[/] {escape(report.splitlines()[0])} (more in {path})")


def policies_of(state: PyTree) -> ActorPolicy:
    """The actors of all runs with their normalisers, [runs, …]."""
    return ActorPolicy(state.learner.network.actor, state.learner.moments)


def choose_policies(folder: store.Run, job: Job, group: Group, final: ActorPolicy, last: int, view: View) -> None:
    """Saves the best snapshot of each seed: the highest return among those that keep every constraint with some confidence, in
    episodes that no evaluation uses; where none does, the one that misses by least. λ keeps moving, so the last iterate, of
    iteration `last`, is rarely the best."""
    moments, tried = [], []
    for moment in (m for m in job.snapshot_iterations if m < last):
        try:
            tried.append(folder.load_snapshot(moment, final))
            moments.append(moment)
        except StoreError as error:
            view.say(f"[yellow]a snapshot is left out:[/] {error}")
    moments, tried = [*moments, last], [*tried, final]
    asked, episodes = job.asked(), job.selection_episodes
    chosen, facts = [], []
    if len(tried) > 1:
        view.say(f"choosing among {len(tried)} snapshots, {episodes} episodes each …")
    for place, seed in enumerate(job.seeds):
        key = jax.random.fold_in(jax.random.key(SELECTION_SEED), seed)
        scores = []
        for stacked in tried if len(tried) > 1 else []:
            policy = jax.tree.map(lambda x, i=place: x[i], stacked)
            found, _ = fresh_episodes(group.env, policy, key, episodes)
            kept, slack = zip(*(keeps(c, found) for c in asked), strict=True) if asked else ((True,), (0.0,))
            safe = float((found.costs[:, asked[0].channel] <= asked[0].limit).mean()) if asked else 1.0
            scores.append((all(kept), float(found.returns.mean()) if all(kept) else min(slack), safe))
        best = max(range(len(scores)), key=lambda i: scores[i][:2]) if scores else len(tried) - 1
        chosen.append(jax.tree.map(lambda x, i=place: x[i], tried[best]))
        shares = {str(i): s[2] for i, s in zip(moments, scores, strict=False)}
        facts.append({"seed": seed, "iteration": moments[best], "safe_share_of_snapshots": shares})
        why = "" if not scores or scores[best][0] else ": none is safe enough, this one misses by least"
        view.say(f"seed {seed}: the policy of iteration {moments[best]} of {last} is kept{why}")
    stacked = jax.tree.map(lambda *x: jax.numpy.stack(x), *chosen)
    save_policies(folder, job, group, stacked, facts)


def keeps(c: Constraint, found: Totals) -> tuple[bool, float]:
    """Whether episodes keep a constraint with some confidence, and by how much their own share or mean does."""
    costs, limit = found.costs[:, c.channel], float(c.limit)
    if c.kind == "mean":
        high = statistics.mean_interval(costs, SELECTION_CONFIDENCE).high
        return bool(high <= limit), float((limit - costs.mean()) / max(limit, 1e-9))
    safe = int((costs <= limit).sum())
    low = statistics.clopper_pearson(safe, len(costs), SELECTION_CONFIDENCE).low
    return bool(low >= c.safety), safe / len(costs) - float(c.safety)


def fresh_episodes(
    env: Spec,
    policy: Policy,
    key: Key,
    episodes: int,
    deterministic: bool = False,
    progress: Progress | None = None,
) -> tuple[Totals, list[str]]:
    """Episodes of a policy wherever the environment runs, and the reports of faults among them."""
    if isinstance(env, Env):
        return evaluation.run_episodes(env, policy, key, episodes, deterministic=deterministic, progress=progress), []
    from tqpo import hosted

    host: Any = env
    return hosted.run_episodes(host, policy, key, episodes, deterministic=deterministic, progress=progress)


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


def save_policies(folder: store.Run, job: Job, group: Group, policies: ActorPolicy, chosen: list) -> None:
    """The policies of all seeds with their frozen normalisers, [runs, …], in one file."""
    description = {
        "network": dataclasses.asdict(group.configs[0].learner.network),
        "obs_size": group.env.obs_size,
        "action_size": group.env.action_size,
        "discrete": group.env.discrete,
        "action": action_form(group.env),
        "seeds": list(job.seeds),
        "chosen": chosen,
    }
    folder.save_policy(policies, description)


def action_form(env: Spec) -> dict[str, Any] | None:
    """How an action becomes what an environment on the host takes; None: as it is."""
    if isinstance(env, Env):
        return None
    from tqpo.hosting.spec import border_of

    host: Any = env
    return border_of(host).describe_action()


def template(description: Mapping[str, Any]) -> ActorPolicy:
    """The shape of the policies that a description speaks of, [runs, …]."""
    try:
        network = dict(description["network"])
        spec = networks.NetworkSpec(**{**network, "hidden": tuple(network["hidden"])})
        obs, action, runs = description["obs_size"], description["action_size"], len(description["seeds"])
    except (KeyError, TypeError) as error:
        raise StoreError(f"policy.json does not describe a policy: {error}") from None

    def build(key):
        discrete = bool(description.get("discrete", False))
        actor = networks.make_network(key, spec, obs, action, {}, discrete=discrete).actor
        return ActorPolicy(actor, Moments(*(jax.numpy.zeros(s) for s in ((obs,), (obs,), ()))))

    return eqx.filter_eval_shape(jax.vmap(build), jax.random.split(jax.random.key(0), runs))


def load_policies(folder: store.Run) -> dict[int, ActorPolicy]:
    """The policy of each seed."""
    _, description = folder.load_policy()
    stacked, description = folder.load_policy(template(description))
    return {seed: jax.tree.map(lambda x, i=i: x[i], stacked) for i, seed in enumerate(description["seeds"])}


def with_budget(env: Spec, make_twin: Callable[[], Any]) -> Callable[[], Any]:
    """What makes a twin that shows its budget where the environment does."""
    return eqx.Partial(BudgetedTwin, make_twin, env.budget) if isinstance(env, Budgeted) else make_twin


def constraints(job: Job) -> tuple[Constraint, ...]:
    """Those that a policy is judged by."""
    return job.asked()


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
    totals, faults = {}, []
    task = unwrapped(env)
    ours = isinstance(task, Task)
    if physics not in (("jax", "mujoco") if ours else ("jax",)):
        raise ConfigError(f"physics = {physics!r}: {'jax or mujoco' if ours else f'{job.task} has its own'}")
    for seed, policy in load_policies(folder).items():
        key = evaluation_key(seed)
        if physics == "mujoco" and isinstance(task, Task):
            from tqpo.envs.mujoco import MujocoTask

            make_twin = with_budget(env, eqx.Partial(MujocoTask, task.config))
            found = evaluation.run_episodes_host(
                make_twin,
                policy,
                key,
                episodes,
                deterministic=deterministic,
                workers=os.cpu_count() or 1,
                progress=progress,
            )
        else:
            found, reports = fresh_episodes(env, policy, key, episodes, deterministic, progress)
            faults += reports
        totals[seed] = found
    how = f"{'deterministic' if deterministic else 'sampled'} actions{f', {physics} physics' if ours else ''}"
    settings = {"task": job.task, "algo": job.algo, "physics": physics, "episodes_per_seed": episodes}
    if faults:
        settings["faults"] = faults
    return evaluation.summarise(
        totals, job.asked(), env.cost_names, deterministic=deterministic, label=how, settings=settings
    )
