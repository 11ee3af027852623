"""The library in three words: `tqpo.train`, `tqpo.load`, `tqpo.evaluate`."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from tqpo import store
from tqpo.envs.budget import Budget
from tqpo.errors import ActionError, ConfigError
from tqpo.evaluation.episodes import ActorPolicy, check_count
from tqpo.host.actions import to_env
from tqpo.host.reference import name_of
from tqpo.output.conclude import conclude, judge
from tqpo.training import loop
from tqpo.training.certificates import of_training, verdict_of
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
    """Trains into a new folder and evaluates; returns the evaluation (`tqpo.evaluation.summary` describes it) with the
    `certificates` of the kept policies (`tqpo.training.certificates`).

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
    options = loop.Options(quiet=quiet, callback=callback, episodes=check_count("episodes", episodes))
    with loop.train(wanted, out, options) as folder:
        evaluation, _ = conclude(folder, episodes, report)
        certificates = of_training(folder)
        if not quiet:
            print(*(verdict_of(entry, folder) for entry in certificates), sep="\n")
    return evaluation | {"certificates": certificates}


def evaluate(
    path: str | os.PathLike, *, episodes: int = 1000, physics: str = "jax", deterministic: bool = False
) -> dict[str, Any]:
    """Fresh episodes of a run's policies: return, safety, quantile with intervals, and a verdict.

    The run keeps them, and its report is renewed, as `tqpo evaluate` does.
    """
    return judge(path, episodes, physics, deterministic)


class LoadedPolicy:
    """A trained policy for one environment: observations in, actions out, as NumPy arrays.

    Actions are in [-1, 1]; of your own Gymnasium environment they are what its `step` takes, and observations are flat
    (`gymnasium.spaces.flatten` where it has a dict of them).
    A recurrent policy remembers: call `reset` when an episode starts, and pass it the reward of the last step.
    A policy that sees its budget (`--algo budget`) must hear what each step cost: `reset()`, then `act(obs)`, `tell(cost)`
    in turn.
    """

    def __init__(self, policy: ActorPolicy, seed: int = 0, description: Mapping[str, Any] | None = None):
        self._policy = policy
        action, budget = (description or {}).get("action"), (description or {}).get("budget")
        self._budget = None if budget is None else Budget.of(budget)
        self._cost_names = tuple(budget["cost_names"]) if budget else ()
        self._form = {name: np.array(x, int if name == "start" else np.float32) for name, x in (action or {}).items()}
        self._key = jax.random.key(seed)
        self._act = jax.jit(lambda policy, *args: policy.act(*args), static_argnums=4)
        self.obs_size = int(policy.moments.mean.shape[-1]) - (self._budget.size if self._budget else 0)
        self.reset()

    def reset(self) -> None:
        """Forgets what it saw: a new episode begins."""
        self._carry = self._policy.init()
        self._spent, self._t, self._told = (
            np.zeros(len(self._budget.limits) if self._budget else 0, np.float32),
            0,
            True,
        )

    def tell(self, cost: Any) -> None:
        """What the last action cost: a number, or the costs by name, as the environment gives them."""
        if self._budget is None:
            return
        by_name = cost if isinstance(cost, Mapping) else {"cost": cost}
        names = [self._cost_names[channel] for channel in self._budget.channels]
        if missing := [name for name in names if name not in by_name]:
            raise ActionError(f"tell(cost): this policy's budget is of {', '.join(names)}; {missing[0]} is missing")
        costs = np.array([float(by_name[name]) for name in names], np.float32)
        if not np.all(np.isfinite(costs)) or np.any(costs < 0):
            raise ActionError(f"tell(cost): {costs.tolist()}: finite costs that are not negative")
        self._spent, self._t, self._told = self._spent + costs, self._t + 1, True

    def act(self, obs: Any, *, deterministic: bool = True, reward: float = 0.0) -> Any:
        """The action for an observation; a sample of the trained policy with `deterministic=False`."""
        obs = np.asarray(obs, np.float32)
        if obs.shape != (self.obs_size,) or not np.all(np.isfinite(obs)):
            raise ActionError(f"obs of shape {obs.shape}: this policy takes {self.obs_size} finite numbers")
        if self._budget is not None:
            if not self._told:
                raise ActionError(
                    "this policy sees its budget: call tell(cost) after every step, reset() after an episode"
                )
            obs, self._told = np.concatenate([obs, self._budget.features(self._spent, np.asarray(self._t))]), False
        self._key, key = jax.random.split(self._key)
        carry = self._policy.feedback(self._carry, jax.numpy.float32(reward))
        action, self._carry = self._act(self._policy, obs, carry, key, deterministic)
        action = np.clip(np.asarray(action), -1.0, 1.0)
        given = to_env(action, **self._form) if self._form else action
        return int(given) if "start" in self._form else given


def load(path: str | os.PathLike, seed: int | None = None) -> LoadedPolicy:
    """The policy of a run; of one of its seeds, by default the first."""
    folder = store.open_run(path)
    _, policy = load_policy(folder, seed)
    return LoadedPolicy(policy, description=folder.load_policy()[1])
