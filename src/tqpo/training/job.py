"""A training job as plain data, and `prepare`d: with the environment and the configuration that follow from it.

A constraint is text: `NAME:limit=15,safety=0.9` asks for Pr[C ≤ 15] ≥ 0.9 of the cost NAME, `NAME:mean=200` for
E[C] ≤ 200.
"""

import dataclasses
import json
import math
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tqpo import references
from tqpo.algorithms.presets import TASK_SETTINGS, VARIANTS, changes_on, preset
from tqpo.algorithms.settings import Constraint, field_names, replace
from tqpo.envs import Task, TaskConfig, make
from tqpo.envs.budget import Budget, Budgeted, unwrapped
from tqpo.errors import ConfigError, StoreError, UnknownNameError
from tqpo.evaluation.episodes import check_count
from tqpo.host.reference import is_reference
from tqpo.host.spec import HostOptions
from tqpo.maths import statistics
from tqpo.store import sealed
from tqpo.training.program import Group
from tqpo.types import UNLIMITED, Env, Spec

SNAPSHOT_SHARE = 1 / 3  # of training, at its end, in which snapshots are taken
DIAL_SHARE, DIAL_POSITIONS = 0.8, 32  # the same where they are the positions of a dial, and how many at least
SELECTION_EPISODES, SELECTION_OUTAGE = 384, 0.1  # where one episode in ten may be unsafe, and in proportion where fewer
HOST_SELECTION_EPISODES = 64  # on the host, where episodes are dear
TEST_EPISODES = 10_000  # at most, of a certificate
HOST_TEST_EPISODES = 1_000
GONE = {
    "log_gain": 0.0,
    "lowest_level": 1.0,
    "ramp": 0.0,
}  # settings of earlier versions, with the value that changed nothing


@dataclasses.dataclass(frozen=True)
class Job:
    """What to train.

    `task` is one of ours, `gym:ID` or `module:factory`; `cost_fn` is `module:function`. `settings` are those of the
    algorithm by name, `task_settings` those of the task or the user's factory. `vector`, `max_steps` and what begins with
    `env_` are for environments on the host.
    """

    task: str = "SimpleEnv"  # the environment
    algo: str = "tqpo"  # an algorithm or a variant of one
    preset: str = "fast"  # where the settings below start from
    safety: float = 0.9  # the share of episodes that must stay within the limit
    cost_limit: float = 15.0  # the largest episode cost that counts as safe
    seeds: tuple[int, ...] = (0,)  # one run each
    steps: int = 5_000_000  # environment steps of each run
    snapshots: int = 8  # policies from the last third of training that the final one is chosen from; 1: the last
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the algorithm, by name
    task_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the task, by name
    constraints: tuple[str, ...] = ()  # instead of safety and cost_limit, such as hazards:limit=15,safety=0.9
    cost_fn: str | None = None  # module:function that gives the cost of a step
    vector: str = "sync"  # one after the other; async: a process each; ray: on a cluster
    env_timeout: float = 60.0  # seconds that one step may take
    env_restarts: int = 3  # faults of one environment before training ends
    max_steps: int | None = None  # after which an episode is truncated; null: the environment ends it
    init_from: str | None = None  # a run whose policies, critics and multipliers this one starts with
    first_steps: int | None = None  # of a run that was extended: what it was begun with

    def __post_init__(self) -> None:
        for name in ("safety", "cost_limit", "steps", "snapshots", "env_timeout", "env_restarts"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, numbers.Real):
                raise ConfigError(f"{name} = {value!r}: a number")
        if isinstance(self.constraints, str):
            raise ConfigError(f"constraints = {self.constraints!r}: a list of such texts")
        if not 0 < self.safety < 1:
            raise ConfigError(f"safety = {self.safety}: a probability strictly between 0 and 1, such as 0.9")
        if not (self.cost_limit >= 0 and math.isfinite(self.cost_limit)):
            raise ConfigError(f"cost_limit = {self.cost_limit}: a number that is not negative")
        check_count("steps", self.steps)
        check_count("snapshots", self.snapshots)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ConfigError(f"seeds = {self.seeds}: at least one, all different, none negative")
        if self.constraints and (self.safety, self.cost_limit) != (Job.safety, Job.cost_limit):
            raise ConfigError("constraints take the place of safety and cost_limit: give one or the other")
        self.host_options()  # refuses what cannot be
        if self.max_steps and not is_reference(self.task):
            raise ConfigError(
                f"max_steps = {self.max_steps}: of {self.task} it is set by --task-set max_steps={self.max_steps}"
            )
        if self.cost_fn and not is_reference(self.task):
            raise ConfigError(f"cost_fn = {self.cost_fn}: {self.task} has its own cost")

    @property
    def base_algorithm(self) -> str:
        """The algorithm that this one is, or is a variant of."""
        return VARIANTS.get(self.algo, (self.algo, {}))[0]

    @property
    def name(self) -> str:
        """The task as people call it."""
        return references.shown(self.task)

    @property
    def title(self) -> str:
        """The algorithm, with its preset where that is not the usual one."""
        return self.algo if self.preset == Job.preset else f"{self.algo} ({self.preset})"

    def env(self) -> Spec:
        """The environment, or what is known of one on the host."""
        if not is_reference(self.task):
            try:
                task = make(self.task, **(TASK_SETTINGS.get(self.preset, {}) | dict(self.task_settings)))
            except UnknownNameError as error:
                raise UnknownNameError(f"{error}; a Gymnasium environment is written gym:{self.task}") from None
            return task
        from tqpo.host.probe import make_own

        return make_own(self.task, self.task_settings, self.cost_fn, self.host_options())

    def host_options(self) -> HostOptions:
        return HostOptions(self.vector, float(self.env_timeout), self.env_restarts, self.max_steps)

    def prepare(self, derived: Mapping[str, Any] | None = None) -> "Prepared":
        """The job with its environment and its configuration; imports and looks at an environment of the user's.

        `derived` are settings that followed from the job before, by name; they are taken as they are.
        """
        env = self.env()
        if derived is None:
            kind = {"own": is_reference(self.task), "host": not isinstance(env, Env)}
            config = preset(self.preset, self.algo, **kind, **self._changes(env))
            if self.base_algorithm == "budget" and "margin" not in self.settings:
                config = with_margins(config, TEST_EPISODES if isinstance(env, Env) else HOST_TEST_EPISODES)
        else:
            usual = type(preset(Job.preset, self.algo))()
            config = replace(usual, **{k: v for k, v in derived.items() if k in field_names(usual)})
        if "iterations" in field_names(config):
            begun = self.first_steps or self.steps
            config = replace(config, iterations=math.ceil(begun / steps_of(config.learner)))
        trained = env
        if config.learner.observe_budget:  # where training ends episodes at the limit, those that judge it go on
            bounds = self.judged_by(config.constraints)
            env, trained = observed(env, bounds), observed(env, bounds, config.learner.end_at_limit)
        return Prepared(self, env, config, Group(trained, self.base_algorithm, (config,) * len(self.seeds), self.seeds))

    def _changes(self, env: Spec) -> dict[str, Any]:
        """What the job changes in its preset."""
        asked: dict[str, Any] = {"safety": self.safety, "cost_limit": self.cost_limit}
        if self.constraints:
            usual = preset(self.preset, self.algo).constraints[0]
            asked = {"constraints": tuple(parse_constraint(text, env.cost_names, usual) for text in self.constraints)}
        return asked | changes_on(self.task, self.preset, self.algo) | dict(self.settings)

    def judged_by(self, constraints: tuple[Constraint, ...]) -> tuple[Constraint, ...]:
        """The constraints by which a policy is judged: with `safety` and `cost_limit` a probability, even where the
        algorithm bounds a mean."""
        if self.constraints:
            return constraints
        return tuple(dataclasses.replace(c, kind="quantile") for c in constraints)

    @staticmethod
    def from_description(config: Mapping[str, Any]) -> "Job":
        """The job that a `config.json` tells of. Fields that this version no longer has do not count."""
        known = {field.name for field in dataclasses.fields(Job)}
        try:
            fields = {name: frozen(value) for name, value in config["job"].items() if name in known}
            return Job(**fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"config.json is not that of a training job: {error}") from None


def prepared_of(config: Mapping[str, Any]) -> "Prepared":
    """The job of a `config.json`, prepared with the settings that the file tells of: those of a preset may have changed
    since. Settings that this version no longer has do not count."""
    job = Job.from_description(config)
    known = field_names(preset(Job.preset, job.algo)) | {"cost_limit", "safety", "margin"}
    settings = {name: value for name, value in job.settings.items() if name in known}
    return dataclasses.replace(job, settings=settings).prepare(flat(config["derived"]["algorithm"]))


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings of a `config.json` by their own names, as `settings.replace` takes them."""
    values = {}
    for name, value in settings.items():
        if name == "constraints":
            values[name] = tuple(Constraint(**constraint) for constraint in value)
        else:
            values |= flat(value) if isinstance(value, Mapping) else {name: frozen(value)}
    return values


def frozen(value: Any) -> Any:
    """A value as it was before JSON or TOML made lists of its tuples."""
    if isinstance(value, Mapping):
        return {name: frozen(x) for name, x in value.items()}
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def seeds_of(seeds: int | Iterable[int], first: int = 0) -> tuple[int, ...]:
    """So many seeds from the first on; or those that are listed."""
    if isinstance(seeds, int):
        return tuple(range(first, first + check_count("seeds", seeds)))
    return tuple(seeds)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A job with its environment and its configuration. All else follows from them."""

    job: Job
    env: Spec  # that judges policies
    config: Any
    group: Group  # of its seeds

    @property
    def on_host(self) -> bool:
        return not isinstance(self.env, Env)

    @property
    def iteration_steps(self) -> int:
        """Environment steps of one iteration of one run."""
        return steps_of(self.config.learner)

    @property
    def iterations(self) -> int:
        return iterations_of(self.describe())

    @property
    def snapshot_iterations(self) -> list[int]:
        """When snapshots are taken; the last is the end. Those of a dial are its positions, along the whole path."""
        share, count = SNAPSHOT_SHARE, self.job.snapshots
        if has_dial(self.config):
            share, count = DIAL_SHARE, max(count, DIAL_POSITIONS)
        start = self.iterations * (1 - share)
        return sorted({round(x) for x in np.linspace(start, self.iterations, count + 1)[1:]})

    @property
    def selection_episodes(self) -> int:
        """Of each candidate, to put them in order. The rarer unsafe ones may be, the more it takes to see some."""
        if self.on_host:
            return HOST_SELECTION_EPISODES
        rarest = min((1 - float(c.safety) for c in self.asked if c.kind == "quantile"), default=SELECTION_OUTAGE)
        return min(round(SELECTION_EPISODES * max(1.0, SELECTION_OUTAGE / rarest)), TEST_EPISODES)

    @property
    def test_episodes(self) -> int:
        return HOST_TEST_EPISODES if self.on_host else TEST_EPISODES

    @property
    def asked(self) -> tuple[Constraint, ...]:
        """The constraints by which a policy is judged."""
        return self.job.judged_by(self.config.constraints)

    @property
    def goal(self) -> str:
        """The constraints in a few words."""
        if not self.job.constraints:
            return f"{self.job.safety:.0%}"
        return ", ".join(say_constraint(c, self.env.cost_names) for c in self.asked)

    def describe(self) -> dict[str, Any]:
        """As `config.json` keeps it: the job, and all that followed from it."""
        derived = {"algorithm": dataclasses.asdict(self.config), "task": describe_env(self.env)}
        return {"job": dataclasses.asdict(self.job), "derived": derived} | needs(self.job)

    def matches(self, config: Mapping[str, Any]) -> bool:
        """Whether a `config.json` tells of this job, and of what this version derives from it."""
        task = dataclasses.asdict(TaskConfig()) if isinstance(unwrapped(self.env), Task) else {}
        derived = {"algorithm": dataclasses.asdict(type(self.config)()), "task": task}
        was = flat(config["derived"]["algorithm"])
        if any(was.get(name, value) != value for name, value in GONE.items()):
            return False
        return agree(config, plain(self.describe()), plain({"job": dataclasses.asdict(Job()), "derived": derived}))


def needs(job: Job) -> dict[str, str]:
    """What a program must give that opens the run, where that cannot be imported by name."""
    named = {"env": job.task, "cost_fn": job.cost_fn or "", "trunk": str(job.settings.get("trunk", ""))}
    local = {name: references.shown(x) for name, x in named.items() if references.is_local(x)}
    if not local:
        return {}
    all_of, trunk = (", ".join(f"{k}={v}" for k, v in local.items() if k in names) for names in (named, {"trunk"}))
    act = f"tqpo.load(run{', ' * bool(trunk)}{trunk})"
    return {"needs": f"objects without an importable name: tqpo.evaluate(run, {all_of}), as resume and report; {act}"}


def iterations_of(config: Mapping[str, Any]) -> int:
    """How many iterations the run of a `config.json` has."""
    learner = config["derived"]["algorithm"]["learner"]
    return math.ceil(config["job"]["steps"] / (learner["n_envs"] * learner["n_steps"]))


def together(jobs: Sequence[Prepared]) -> Group:
    """The runs of several jobs that one program can train."""
    first = jobs[0].group
    pairs = [(config, seed) for p in jobs for config, seed in zip(p.group.configs, p.group.seeds, strict=True)]
    return Group(first.env, first.algorithm, *zip(*pairs, strict=True))


def plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    return json.loads(sealed.encode(value))


def agree(old: Any, new: Any, defaults: Any = None) -> bool:
    """Whether settings from a file are those of now. One that is gone does not count; one that the file is too old to
    have counts as its default."""
    if isinstance(old, dict) and isinstance(new, dict):
        usual = defaults if isinstance(defaults, dict) else {}
        return all(agree(old.get(name, usual.get(name)), value, usual.get(name)) for name, value in new.items())
    if isinstance(old, list) and isinstance(new, list):
        usual = defaults[0] if isinstance(defaults, list) and defaults else None  # of each entry
        return len(old) == len(new) and all(agree(a, b, usual) for a, b in zip(old, new, strict=True))
    return old == new


def steps_of(learner: Any) -> int:
    """Environment steps of one iteration of one run."""
    return learner.n_envs * learner.n_steps


def with_margins(config: Any, episodes: int) -> Any:
    """A config whose constraints on a probability, where they have no margin, hold back what follows from the window that
    training sees and the episodes of a certificate."""
    window = config.learner.episode_window

    def own(c: Constraint) -> Constraint:
        free = c.kind == "quantile" and not c.margin
        return dataclasses.replace(c, margin=statistics.held_back(c.safety, window, episodes)) if free else c

    return dataclasses.replace(config, constraints=tuple(own(c) for c in config.constraints))


def has_dial(config: Any) -> bool:
    return getattr(config, "dial", False)


def observed(env: Spec, constraints: tuple[Constraint, ...], ends: bool = False) -> Spec:
    """The environment with its budget in view: what is left of each limit on a probability, and of a known length."""
    bounded = [c for c in constraints if c.kind == "quantile"]
    channels, limits = tuple(c.channel for c in bounded), tuple(float(c.limit) for c in bounded)
    budget = Budget(channels, limits, env.max_steps if env.max_steps < UNLIMITED else None)
    if isinstance(env, Env):
        return Budgeted(env, budget, ends)
    if ends:
        raise ConfigError("end_at_limit = True: for environments in JAX only")
    host: Any = env
    return dataclasses.replace(host, obs_size=host.obs_size + budget.size, budget=budget)


def describe_env(env: Spec) -> dict[str, Any]:
    """An environment's own constants if it is one of ours, else its sizes."""
    if isinstance(task := unwrapped(env), Task):
        return dataclasses.asdict(task.config)
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
