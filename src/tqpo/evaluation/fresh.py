"""Fresh episodes of a policy, wherever its environment runs: in JAX, in MuJoCo or on the host."""

import os
from collections.abc import Callable, Generator, Mapping
from typing import Any

import equinox as eqx

from tqpo.envs import Task
from tqpo.envs.budget import Budgeted, BudgetedTwin, unwrapped
from tqpo.errors import ConfigError
from tqpo.evaluation import episodes as jax_episodes
from tqpo.evaluation import host_episodes
from tqpo.evaluation.episodes import ActorPolicy, Policy, Progress, Totals, run_episodes, run_policies
from tqpo.types import Env, Key, Spec

PHYSICS = ("jax", "mujoco")


def check_physics(env: Spec, physics: str, name: str = "this environment") -> None:
    """Raises for a simulator that the environment does not have."""
    ours = isinstance(unwrapped(env), Task)
    if physics not in (PHYSICS if ours else PHYSICS[:1]):
        raise ConfigError(f"physics = {physics!r}: {'jax or mujoco' if ours else f'{name} has its own'}")


def with_budget(env: Spec, make_twin: Callable[[], Any]) -> Callable[[], Any]:
    """What makes a twin that shows its budget where the environment does."""
    return eqx.Partial(BudgetedTwin, make_twin, env.budget) if isinstance(env, Budgeted) else make_twin


def twin_of(env: Spec) -> Callable[[], Any]:
    """What makes the MuJoCo twin of a task of ours."""
    from tqpo.envs.mujoco import MujocoTask

    task: Any = unwrapped(env)
    return with_budget(env, eqx.Partial(MujocoTask, task.config))


def stream(
    env: Spec, policy: Policy, key: Key, episodes: int, physics: str = "jax", deterministic: bool = False
) -> Generator[tuple[Totals, list[str]]]:
    """At most so many episodes in parts, and the reports of faults among them, for as long as one asks. The same episodes
    in the same order whatever the size of the parts."""
    check_physics(env, physics)
    if physics == "mujoco":
        how = {"deterministic": deterministic, "workers": os.cpu_count() or 1}
        parts = host_episodes.stream_twin(twin_of(env), policy, key, episodes, **how)
    elif isinstance(env, Env):
        parts = jax_episodes.stream(env, policy, key, episodes, jax_episodes.usual_batch(), deterministic)
    else:
        host: Any = env
        yield from host_episodes.stream_host(host, policy, key, episodes, deterministic)
        return
    yield from ((part, []) for part in parts)


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
    if physics == "mujoco":
        how = {"deterministic": deterministic, "workers": os.cpu_count() or 1, "progress": progress}
        return host_episodes.run_twin(twin_of(env), policy, key, episodes, **how), []
    if isinstance(env, Env):
        return run_episodes(env, policy, key, episodes, deterministic=deterministic, progress=progress), []
    host: Any = env
    return host_episodes.run_episodes(host, policy, key, episodes, deterministic=deterministic, progress=progress)


def fresh_of_each(
    env: Spec,
    policies: Mapping[Any, ActorPolicy],
    keys: Mapping[Any, Key],
    episodes: int,
    deterministic: bool = False,
    progress: Progress | None = None,
    physics: str = "jax",
) -> tuple[dict[Any, Totals], list[str]]:
    """`fresh_episodes` of each policy with its key; in JAX those of all policies are one program."""
    if physics == "jax" and isinstance(env, Env):
        return run_policies(env, policies, keys, episodes, deterministic=deterministic, progress=progress), []
    found, faults = {}, []

    def count(done: int, _: int) -> None:
        if progress is not None:
            progress(len(found) * episodes + done, len(policies) * episodes)

    for name, policy in policies.items():
        found[name], reports = fresh_episodes(env, policy, keys[name], episodes, deterministic, count, physics)
        faults += reports
    return found, faults
