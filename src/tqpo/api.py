"""The library in three words: `tqpo.train`, `tqpo.load`, `tqpo.evaluate`."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from tqpo import store
from tqpo.errors import ActionError, ConfigError
from tqpo.evaluation.episodes import ActorPolicy
from tqpo.host.actions import to_env
from tqpo.host.reference import name_of
from tqpo.training import loop
from tqpo.training.evaluations import add_evaluation, evaluate_run
from tqpo.training.job import Job
from tqpo.training.policies import load_policies


def train(
    task: str = "SimpleEnv",
    *,
    out: str | os.PathLike,
    seeds: int | tuple[int, ...] = 1,
    episodes: int = 1000,
    quiet: bool = False,
    cost_fn: Callable[..., Any] | str | None = None,
    callback: loop.Callback | None = None,
    **job: Any,
) -> dict[str, Any]:
    """Trains into a new folder and evaluates; returns the evaluation (`evaluation.summarise` has its form).

    `task` may be your own environment, `gym:ID` or `module:factory`, and `cost_fn(obs, action, next_obs, info)` a function that
    gives its cost. `callback(iteration, metrics)` is called after each chunk of iterations, with metrics [iterations, runs, …] by
    name; training stops if it returns True. `job` are the other fields of `tqpo.training.job.Job`: algo, preset, safety,
    cost_limit, constraints, steps, snapshots, settings, task_settings, vector, env_timeout, env_restarts.
    """
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    try:
        job["cost_fn"] = None if cost_fn is None else name_of(cost_fn)
        wanted = Job(task=task, seeds=numbers, **job)
    except TypeError as error:
        fields = ", ".join(Job.__dataclass_fields__)
        raise ConfigError(f"{error}; a job has {fields}") from None
    with loop.train(wanted, out, loop.Host(quiet=quiet, callback=callback)) as folder:
        found = add_evaluation(folder, episodes, "jax", deterministic=False)
        folder.finish()
    return found


def evaluate(
    path: str | os.PathLike, *, episodes: int = 1000, physics: str = "jax", deterministic: bool = False
) -> dict[str, Any]:
    """Fresh episodes of a run's policies: return, safety, quantile, each with an interval, and a verdict. Writes nothing."""
    return evaluate_run(store.open_run(path), episodes, physics, deterministic)


class LoadedPolicy:
    """A trained policy for one environment: observations in, actions out, as NumPy arrays.

    Actions are in [-1, 1]; of your own Gymnasium environment they are what its `step` takes, and observations are flat
    (`gymnasium.spaces.flatten` where it has a dict of them).
    A recurrent policy remembers: call `reset` when an episode starts, and pass it the reward of the last step.
    """

    def __init__(self, policy: ActorPolicy, seed: int = 0, action: Mapping[str, Any] | None = None):
        self._policy = policy
        self._form = {name: np.array(x, int if name == "start" else np.float32) for name, x in (action or {}).items()}
        self._key = jax.random.key(seed)
        self._act = jax.jit(lambda policy, *args: policy.act(*args), static_argnums=4)
        self.obs_size = int(policy.moments.mean.shape[-1])
        self.reset()

    def reset(self) -> None:
        """Forgets what it saw: a new episode begins."""
        self._carry = self._policy.init()

    def act(self, obs: Any, *, deterministic: bool = True, reward: float = 0.0) -> Any:
        """The action for an observation; a sample of the trained policy with `deterministic=False`."""
        obs = np.asarray(obs, np.float32)
        if obs.shape != (self.obs_size,) or not np.all(np.isfinite(obs)):
            raise ActionError(f"obs of shape {obs.shape}: this policy takes {self.obs_size} finite numbers")
        self._key, key = jax.random.split(self._key)
        carry = self._policy.feedback(self._carry, jax.numpy.float32(reward))
        action, self._carry = self._act(self._policy, obs, carry, key, deterministic)
        action = np.clip(np.asarray(action), -1.0, 1.0)
        given = to_env(action, **self._form) if self._form else action
        return int(given) if "start" in self._form else given


def load(path: str | os.PathLike, seed: int | None = None) -> LoadedPolicy:
    """The policy of a run; of one of its seeds, by default the first."""
    folder = store.open_run(path)
    policies = load_policies(folder)
    seed = next(iter(policies)) if seed is None else seed
    if seed not in policies:
        raise ConfigError(f"seed = {seed}: this run has {', '.join(map(str, policies))}")
    return LoadedPolicy(policies[seed], action=folder.load_policy()[1].get("action"))
