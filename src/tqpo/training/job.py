"""A training job as plain data. Everything else (environment, configs, program) follows from it.

A constraint is text: `NAME:limit=15,safety=0.9` asks for Pr[C ≤ 15] ≥ 0.9 of the cost NAME, `NAME:mean=200` for E[C] ≤ 200.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tqpo.algorithms.presets import VARIANTS, preset
from tqpo.algorithms.settings import Constraint
from tqpo.envs import Task, make
from tqpo.errors import ConfigError, StoreError, UnknownNameError
from tqpo.host.reference import is_reference
from tqpo.training.program import Group
from tqpo.types import Env, Spec

SNAPSHOT_SHARE = 1 / 3  # of training, at its end, in which snapshots are taken
SELECTION_EPISODES = 384
HOST_SELECTION_EPISODES = 64  # on the host, where episodes are dear


@dataclasses.dataclass(frozen=True)
class Job:
    """What to train. `settings` are settings of the algorithm by name, `task_settings` of the task or the user's factory.

    `task` is one of ours, `gym:ID` or `module:factory`; `cost_fn` is `module:function`. The last three fields are for
    environments on the host.
    """

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
    constraints: tuple[str, ...] = ()  # instead of safety and cost_limit
    cost_fn: str | None = None
    vector: str = "sync"
    env_timeout: float = 60.0  # s
    env_restarts: int = 3

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
        if self.constraints and (self.safety, self.cost_limit) != (Job.safety, Job.cost_limit):
            raise ConfigError("constraints take the place of safety and cost_limit: give one or the other")
        if self.cost_fn and not is_reference(self.task):
            raise ConfigError(f"cost_fn = {self.cost_fn}: {self.task} has its own cost")

    @property
    def base_algorithm(self) -> str:
        return VARIANTS.get(self.algo, (self.algo, {}))[0]

    def env(self) -> Spec:
        """The environment, or what is known of one on the host."""
        if not is_reference(self.task):
            try:
                return make(self.task, **self.task_settings)
            except UnknownNameError as error:
                raise UnknownNameError(f"{error}; a Gymnasium environment is written gym:{self.task}") from None
        from tqpo.host.probe import make_own
        from tqpo.host.spec import HostOptions

        options = HostOptions(self.vector, float(self.env_timeout), self.env_restarts)
        return make_own(self.task, self.task_settings, self.cost_fn, options)

    @property
    def on_host(self) -> bool:
        return is_reference(self.task) and not isinstance(self.env(), Env)

    def config(self) -> Any:
        if not self.constraints:
            given: dict[str, Any] = {"safety": self.safety, "cost_limit": self.cost_limit}
        else:
            usual = preset(self.preset, self.algo).constraints[0]
            names = self.env().cost_names
            given = {"constraints": tuple(parse_constraint(text, names, usual) for text in self.constraints)}
        return preset(self.preset, self.algo, host=self.on_host, **(given | dict(self.settings)))

    def asked(self) -> tuple[Constraint, ...]:
        """The constraints as a policy is judged by them. With `safety` and `cost_limit` that is a probability, whatever
        the algorithm bounds in training."""
        found = self.config().constraints
        return found if self.constraints else tuple(dataclasses.replace(c, kind="quantile") for c in found)

    def goal(self) -> str:
        """The constraints in a few words."""
        if not self.constraints:
            return f"{self.safety:.0%}"
        names = self.env().cost_names
        return ", ".join(say_constraint(c, names) for c in self.asked())

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

    @property
    def selection_episodes(self) -> int:
        return HOST_SELECTION_EPISODES if self.on_host else SELECTION_EPISODES

    def describe(self) -> dict[str, Any]:
        """As `config.json` keeps it: the job, and all that followed from it."""
        derived = {"algorithm": dataclasses.asdict(self.config()), "task": describe_env(self.env())}
        return {"job": dataclasses.asdict(self), "derived": derived}

    @staticmethod
    def from_description(config: Mapping[str, Any]) -> "Job":
        try:
            fields = dict(config["job"])
            lists = {name: tuple(fields.get(name, ())) for name in ("seeds", "constraints")}
            return Job(**{**fields, **lists, **tuples(fields)})
        except (KeyError, TypeError) as error:
            raise StoreError(f"config.json is not that of a training job: {error}") from None


def tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they were before JSON made lists of their tuples."""

    def fix(value: Any) -> Any:
        return tuple(fix(x) for x in value) if isinstance(value, list) else value

    return {name: {k: fix(v) for k, v in fields.get(name, {}).items()} for name in ("settings", "task_settings")}


def describe_env(env: Spec) -> dict[str, Any]:
    """An environment's own constants if it is one of ours, else its sizes."""
    if isinstance(env, Task):
        return dataclasses.asdict(env.config)
    names = ("obs_size", "action_size", "discrete", "max_steps")
    return {name: getattr(env, name) for name in names} | {"cost_names": list(env.cost_names)}


def parse_constraint(text: str, cost_names: tuple[str, ...], usual: Constraint) -> Constraint:
    """A constraint from its text; what it leaves out is as `usual`."""
    name, colon, rest = text.partition(":")
    if name not in cost_names:
        raise ConfigError(f"constraint {text!r}: there is no cost {name!r}; there are {', '.join(cost_names)}")
    values = dict(re.findall(r"(\w+)=([^,=]+)(?:,|$)", rest))
    if not colon or ",".join(f"{k}={v}" for k, v in values.items()) != rest:
        raise ConfigError(f"constraint {text!r}: write NAME:limit=15,safety=0.9 or NAME:mean=200")
    if not ({"limit"} <= values.keys() <= {"limit", "safety", "margin"} or values.keys() == {"mean"}):
        raise ConfigError(f"constraint {text!r}: give limit with safety and margin if you like, or mean alone")
    try:
        numbers = {key: float(value) for key, value in values.items()}
    except ValueError:
        raise ConfigError(f"constraint {text!r}: limit, safety, margin and mean are numbers") from None
    channel = cost_names.index(name)
    if "mean" in numbers:
        return dataclasses.replace(usual, channel=channel, kind="mean", limit=numbers["mean"], margin=0.0)
    return dataclasses.replace(usual, channel=channel, kind="quantile", **numbers)


def say_constraint(c: Constraint, cost_names: tuple[str, ...]) -> str:
    name = cost_names[c.channel]
    return f"mean {name} ≤ {c.limit:g}" if c.kind == "mean" else f"Pr[{name} ≤ {c.limit:g}] ≥ {c.safety:.0%}"
