"""The library in three words: `tqpo.train`, `tqpo.load`, `tqpo.evaluate`."""

import os
from typing import Any

import jax
import numpy as np

from tqpo import finish, session, store
from tqpo.acting import ActorPolicy
from tqpo.errors import ActionError, ConfigError


def train(
    task: str = "SimpleEnv",
    *,
    out: str | os.PathLike,
    seeds: int | tuple[int, ...] = 1,
    episodes: int = 1000,
    quiet: bool = False,
    **job: Any,
) -> dict[str, Any]:
    """Trains into a new folder and evaluates; returns the evaluation (`evaluation.summarise` has its form).

    `job` are the other fields of `session.Job`: algo, preset, safety, cost_limit, steps, snapshots, settings, task_settings.
    """
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    try:
        wanted = session.Job(task=task, seeds=numbers, **job)
    except TypeError as error:
        fields = ", ".join(session.Job.__dataclass_fields__)
        raise ConfigError(f"{error}; a job has {fields}") from None
    with session.train(wanted, out, session.Host(quiet=quiet)) as folder:
        found = finish.add_evaluation(folder, episodes, "jax", deterministic=False)
        folder.finish()
    return found


def evaluate(
    path: str | os.PathLike, *, episodes: int = 1000, physics: str = "jax", deterministic: bool = False
) -> dict[str, Any]:
    """Fresh episodes of a run's policies: return, safety, quantile, each with an interval, and a verdict. Writes nothing."""
    return session.evaluate_run(store.open_run(path), episodes, physics, deterministic)


class LoadedPolicy:
    """A trained policy for one environment: observations in, actions in [-1, 1] out, as NumPy arrays.

    A recurrent policy remembers: call `reset` when an episode starts, and pass it the reward of the last step.
    """

    def __init__(self, policy: ActorPolicy, seed: int = 0):
        self._policy = policy
        self._key = jax.random.key(seed)
        self._act = jax.jit(lambda policy, *args: policy.act(*args), static_argnums=4)
        self.obs_size = int(policy.moments.mean.shape[-1])
        self.reset()

    def reset(self) -> None:
        """Forgets what it saw: a new episode begins."""
        self._carry = self._policy.init()

    def act(self, obs: Any, *, deterministic: bool = True, reward: float = 0.0) -> np.ndarray:
        """The action for an observation; a sample of the trained policy with `deterministic=False`."""
        obs = np.asarray(obs, np.float32)
        if obs.shape != (self.obs_size,) or not np.all(np.isfinite(obs)):
            raise ActionError(f"obs of shape {obs.shape}: this policy takes {self.obs_size} finite numbers")
        self._key, key = jax.random.split(self._key)
        carry = self._policy.feedback(self._carry, jax.numpy.float32(reward))
        action, self._carry = self._act(self._policy, obs, carry, key, deterministic)
        return np.clip(np.asarray(action), -1.0, 1.0)


def load(path: str | os.PathLike, seed: int | None = None) -> LoadedPolicy:
    """The policy of a run; of one of its seeds, by default the first."""
    policies = session.load_policies(store.open_run(path))
    seed = next(iter(policies)) if seed is None else seed
    if seed not in policies:
        raise ConfigError(f"seed = {seed}: this run has {', '.join(map(str, policies))}")
    return LoadedPolicy(policies[seed])
