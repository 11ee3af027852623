"""A run's policies in fresh episodes; the results are kept in its `evaluation.json`."""

from collections.abc import Mapping
from typing import Any

import jax

from tqpo import store
from tqpo.envs import Task
from tqpo.envs.budget import unwrapped
from tqpo.evaluation import summary
from tqpo.evaluation.episodes import Progress
from tqpo.evaluation.fresh import check_physics, fresh_of_each
from tqpo.training.job import prepared_of
from tqpo.training.policies import load_policies

EVALUATION = "evaluation.json"
EVALUATION_SEED = 1_000_003  # episodes of an evaluation share no key with training


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
    """Fresh episodes of every seed's policy, summed up as `summary.summarise` does."""
    prepared = prepared_of(folder.config)
    job, env = prepared.job, prepared.env
    check_physics(env, physics, job.task)
    policies = load_policies(folder)
    keys = {seed: evaluation_key(seed) for seed in policies}
    totals, faults = fresh_of_each(env, policies, keys, episodes, deterministic, progress, physics)
    simulator = f", {physics} physics" if isinstance(unwrapped(env), Task) else ""
    label = f"{'deterministic' if deterministic else 'sampled'} actions{simulator}"
    settings = {"task": job.task, "algo": job.algo, "physics": physics, "episodes_per_seed": episodes}
    settings["policy_sha256"] = folder.policy_sha256()
    if faults:
        settings["faults"] = faults
    return summary.summarise(
        totals, prepared.asked, env.cost_names, deterministic=deterministic, label=label, settings=settings
    )


def add_evaluation(
    folder: store.Run, episodes: int, physics: str, deterministic: bool, progress: Progress | None = None
) -> dict[str, Any]:
    """Evaluates and keeps the result beside earlier ones; one of the same kind is replaced, unless it has more episodes."""
    evaluation = evaluate_run(folder, episodes, physics, deterministic, progress)
    if more_of(folder, evaluation):
        return evaluation
    finished = folder.finished  # a file that changes opens the run again
    others = [e for e in evaluations_of(folder) if e["label"] != evaluation["label"]]
    ordered = [*others, evaluation] if deterministic else [evaluation, *others]
    folder.write_json(EVALUATION, summary.document(ordered))
    if finished:
        folder.finish()
    return evaluation


def evaluations_of(folder: store.Run) -> list[dict[str, Any]]:
    return folder.read_json(EVALUATION)["evaluations"] if folder.path(EVALUATION).exists() else []


def more_of(folder: store.Run, evaluation: Mapping[str, Any]) -> int:
    """How many episodes the run keeps of the same policy and kind, where those are more; else 0."""
    now = evaluation["settings"]["policy_sha256"], evaluation["label"]
    same = [e for e in evaluations_of(folder) if (e["settings"].get("policy_sha256"), e["label"]) == now]
    return next((n for e in same if (n := e["pooled"]["episodes"]) > evaluation["pooled"]["episodes"]), 0)


def judged_by_mean(folder: store.Run) -> bool:
    """Whether the verdict, which is the first evaluation's, is about mean actions: what was judged is what acts."""
    return any(evaluation["deterministic"] for evaluation in evaluations_of(folder)[:1])
