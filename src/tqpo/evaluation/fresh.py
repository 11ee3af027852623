"""Fresh episodes of a policy, wherever its environment runs: in JAX, in MuJoCo or on the host."""

import os
from collections.abc import Callable
from typing import Any

import equinox as eqx

from tqpo.envs import Task
from tqpo.envs.budget import Budgeted, BudgetedTwin, unwrapped
from tqpo.errors import ConfigError
from tqpo.evaluation.episodes import Policy, Progress, Totals, run_episodes
from tqpo.evaluation.host_episodes import run_twin
from tqpo.types import Env, Key, Spec

PHYSICS = ("jax", "mujoco")


def check_physics(env: Spec, physics: str, name: str = "this environment") -> None:
    """Raises for a simulator that the environment does not have."""
    ours = isinstance(unwrapped(env), Task)
    if physics not in (PHYSICS if ours else PHYSICS[:1]):
        raise ConfigError(f"physics = {physics!r}: {'jax or mujoco' if ours else f'{name} has its own'}")


def with_budget(env: Spec, make_twin: Callable[[], Any]) -> Callable[[], Any]:
    """What makes a twin that shows its budget where the environment does."""
    return eqx.Partial(BudgetedTwin, make_twin, env.budget, env.ends) if isinstance(env, Budgeted) else make_twin


def fresh_episodes(
    env: Spec,
    policy: Policy,
    key: Key,
    episodes: int,
    deterministic: bool = False,
    progress: Progress | None = None,
    physics: str = "jax",
) -> tuple[Totals, list[str]]:
    """The episodes, and the reports of faults among them."""
    check_physics(env, physics)
    task = unwrapped(env)
    if physics == "mujoco" and isinstance(task, Task):
        from tqpo.envs.mujoco import MujocoTask

        twin = with_budget(env, eqx.Partial(MujocoTask, task.config))
        how = {"deterministic": deterministic, "workers": os.cpu_count() or 1, "progress": progress}
        return run_twin(twin, policy, key, episodes, **how), []
    if isinstance(env, Env):
        return run_episodes(env, policy, key, episodes, deterministic=deterministic, progress=progress), []
    from tqpo.evaluation import host_episodes

    host: Any = env
    return host_episodes.run_episodes(host, policy, key, episodes, deterministic=deterministic, progress=progress)
