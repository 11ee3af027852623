"""The library in three words: `tqpo.train`, `tqpo.load`, `tqpo.evaluate`."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from tqpo import store
from tqpo.errors import ActionError, ConfigError
from tqpo.evaluation.episodes import ActorPolicy
from tqpo.host.reference import name_of
from tqpo.output.conclude import conclude
from tqpo.training import loop
from tqpo.training.evaluations import evaluate_run
from tqpo.training.job import Job, seeds_of
from tqpo.training.policies import load_policy


def train(
    task: str = "SimpleEnv",
    *,
    out: str | os.PathLike,
    seeds: int | tuple[int, ...] = 1,
    episodes: int = 1000,
    report: bool = False,
    quiet: bool = False,
    cost_fn: Callable[..., Any] | str | None = None,
    callback: loop.Callback | None = None,
    **job: Any,
) -> dict[str, Any]:
    """Trains into a new folder and evaluates; returns the evaluation (`tqpo.evaluation.summary` describes it).

    `task` may be your own environment, `gym:ID` or `module:factory`, and `cost_fn(obs, action, next_obs, info)` a
    function that gives its cost. With `report` the folder also gets what `tqpo train` writes: an evaluation of
    deterministic actions, figures, a video, a page. `callback(iteration, metrics)` is called after each chunk of
    iterations, with metrics [iterations, runs, …] by name; training stops if it returns True. `job` are the other fields
    of `tqpo.training.job.Job`: algo, preset, safety, cost_limit, constraints, steps, snapshots, settings,
    task_settings, vector, env_timeout, env_restarts.
    """
    try:
        job["cost_fn"] = None if cost_fn is None else name_of(cost_fn)
        wanted = Job(task=task, seeds=seeds_of(seeds), **job)
    except TypeError as error:
        fields = ", ".join(Job.__dataclass_fields__)
        raise ConfigError(f"{error}; a job has {fields}") from None
    with loop.train(wanted, out, loop.Options(quiet=quiet, callback=callback)) as folder:
        evaluation, _ = conclude(folder, episodes, report)
    return evaluation


def evaluate(
    path: str | os.PathLike, *, episodes: int = 1000, physics: str = "jax", deterministic: bool = False
) -> dict[str, Any]:
    """Fresh episodes of a run's policies: return, safety, quantile with intervals, and a verdict. Writes nothing."""
    return evaluate_run(store.open_run(path), episodes, physics, deterministic)


class LoadedPolicy:
    """A trained policy for one environment: observations in, actions out, as NumPy arrays.

    Actions are in [-1, 1]; of your own Gymnasium environment they are what its `step` takes, and observations are flat
    (`gymnasium.spaces.flatten` where it has a dict of them).
    A recurrent policy remembers: call `reset` when an episode starts, and pass it the reward of the last step.
    """

    def __init__(self, policy: ActorPolicy, seed: int = 0, action: Mapping[str, Any] | None = None):
        self._policy, self._form = policy, action
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
        return self._give(np.clip(np.asarray(action), -1.0, 1.0))

    def _give(self, action: np.ndarray) -> Any:
        """The action as the environment takes it."""
        if self._form is None:
            return action
        if "start" in self._form:
            return self._form["start"] + int(np.argmax(action))
        low, high = np.array(self._form["low"], np.float32), np.array(self._form["high"], np.float32)
        return low + (action.reshape(low.shape) + 1.0) / 2.0 * (high - low)


def load(path: str | os.PathLike, seed: int | None = None) -> LoadedPolicy:
    """The policy of a run; of one of its seeds, by default the first."""
    folder = store.open_run(path)
    _, policy = load_policy(folder, seed)
    return LoadedPolicy(policy, action=folder.load_policy()[1].get("action"))
