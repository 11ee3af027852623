"""What a learner must know of an environment on the host, found by building one and taking a step in it."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from tqpo.errors import ConfigError, EnvError
from tqpo.host import bridge, costs
from tqpo.host.guard import FAILURES, Plan, Reading, alarm
from tqpo.host.reference import GYM, allowance, build, find, is_reference, takes
from tqpo.host.spaces import Border, ContractError
from tqpo.types import Env

VECTORS = ("sync", "async", "ray")
AUTORESETS = ("SameStep", "NextStep", "Disabled")
UNLIMITED = 2**31 - 1  # steps of an episode that nobody limits


@dataclasses.dataclass(frozen=True)
class Hosting:
    """How environments on the host are run."""

    vector: str = "sync"  # one after the other in this process, "async": each in a process of its own, "ray": on actors
    timeout: float = 60.0  # s that one call may take
    restarts: int = 3  # of each environment, after faults
    autoreset: str = "SameStep"  # Gymnasium's mode, where the vector is ours; the transitions are the same

    def __post_init__(self) -> None:
        if self.vector not in VECTORS:
            raise ConfigError(f"vector = {self.vector!r}: {' or '.join(VECTORS)}")
        if self.autoreset not in AUTORESETS:
            raise ConfigError(f"autoreset = {self.autoreset!r}: one of {', '.join(AUTORESETS)}")
        if not self.timeout > 0:
            raise ConfigError(f"env_timeout = {self.timeout}: positive, in seconds")
        if self.restarts < 0:
            raise ConfigError(f"env_restarts = {self.restarts}: not negative")


@dataclasses.dataclass(frozen=True)
class HostSpec:
    """An environment on the host: a `types.Spec`, and how to build it."""

    task: str
    settings: tuple[tuple[str, Any], ...]
    cost_fn: str | None
    hosting: Hosting
    own_vector: bool  # the factory makes Gymnasium vectors
    obs_size: int
    action_size: int
    discrete: bool
    cost_names: tuple[str, ...]
    max_steps: int
    min_steps: int = 1

    def plan(self) -> Plan:
        """As workers get it."""
        return Plan(
            functools.partial(build, self.task, self.settings, **patience(self.task, self.hosting.timeout)),
            border_of(self),
            find(self.cost_fn) if self.cost_fn else None,
            self.cost_names,
            self.hosting.timeout,
            self.hosting.restarts,
        )

    def describe(self) -> dict[str, Any]:
        """What `config.json` keeps, to see whether a resumed run meets the same environment."""
        names = ("obs_size", "action_size", "discrete", "max_steps")
        return {name: getattr(self, name) for name in names} | {"cost_names": list(self.cost_names)}


def make_own(
    task: str, settings: Mapping[str, Any] | None = None, cost_fn: str | None = None, hosting: Hosting | None = None
) -> "HostSpec | Env":
    """The environment that a reference names: one on the host, or a pure JAX environment as it is."""
    try:
        return _probe(task, tuple(sorted((settings or {}).items())), cost_fn, hosting or Hosting())
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        raise ConfigError(f"task settings {settings}: numbers, text or lists of them") from None


@functools.lru_cache(maxsize=32)
def _probe(task: str, settings: tuple, cost_fn: str | None, hosting: Hosting) -> "HostSpec | Env":
    if not is_reference(task):
        raise ConfigError(f"{task!r}: write gym:ID, module:factory or bridge:PYTHON:MODULE:NAME")
    own_vector = not task.startswith(GYM) and takes(find(task), "num_envs")
    if cost_fn:
        find(cost_fn)
    env: Any = make_one(task, settings, own_vector, hosting.timeout)
    if isinstance(env, Env) and not hasattr(env, "observation_space"):
        if cost_fn:
            raise ConfigError(f"cost_fn = {cost_fn}: {task} is a JAX environment, whose steps hold their cost")
        return env
    try:
        return HostSpec(
            task=task,
            settings=settings,
            cost_fn=cost_fn,
            hosting=hosting,
            own_vector=own_vector,
            **_facts(task, env, cost_fn, own_vector, hosting.timeout),
        )
    finally:
        close(env)


def close(env: Any) -> None:  # a protocol would hide it
    env.close()


def make_one(task: str, settings: tuple, own_vector: bool, timeout: float) -> Any:
    """One environment, or a vector of two."""
    try:
        with alarm(timeout):
            env = build(task, settings, **patience(task, timeout), **({"num_envs": 2} if own_vector else {}))
    except (ConfigError, EnvError):
        raise
    except FAILURES as error:
        raise EnvError(f"{task}: it cannot be built: {type(error).__name__}: {error}") from error
    needed = ("observation_space", "action_space", "reset", "step")
    if missing := [name for name in needed if not hasattr(env, name)]:
        if isinstance(env, Env):
            return env
        raise EnvError(f"{task}: a {type(env).__name__} is no environment: it has no {', '.join(missing)}")
    return env


def patience(task: str, timeout: float) -> dict[str, Any]:
    """The time-outs of a bridge: sooner than the guard's own, for it knows the last words of the other process."""
    if not task.startswith(bridge.PREFIX):
        return {}
    return {"options": bridge.Options(timeout=0.9 * timeout, start_timeout=0.9 * timeout)}


def _facts(task: str, env: Any, cost_fn: str | None, own_vector: bool, timeout: float) -> dict[str, Any]:
    """Sizes and cost names, from one step of one episode."""
    border = _border(env, own_vector)
    reading = Reading(border, find(cost_fn) if cost_fn else None)
    try:
        with alarm(allowance(task, timeout, 2)):
            if own_vector:
                from tqpo.host.own_vector import first_costs

                found = first_costs(env, reading)
            else:
                obs, _ = env.reset(seed=0)
                reading.begin(obs)
                action = border.action_space.sample()
                *_, found, _, _ = reading.step(action, env.step(action))
        costs.channels(found, costs.names_of(found))
    except ContractError as error:
        raise EnvError(f"{task}, its first step: {error}") from error
    except FAILURES as error:
        raise EnvError(f"{task}, its first step: {type(error).__name__}: {error}") from error
    return {
        "obs_size": border.obs_size,
        "action_size": border.action_size,
        "discrete": border.discrete,
        "cost_names": costs.names_of(found),
        "max_steps": time_limit(env) or UNLIMITED,
    }


def _border(env: Any, own_vector: bool) -> Border:
    if own_vector:
        return Border(env.single_observation_space, env.single_action_space)
    return Border(env.observation_space, env.action_space)


@functools.lru_cache(maxsize=32)
def border_of(spec: HostSpec) -> Border:
    env = make_one(spec.task, spec.settings, spec.own_vector, spec.hosting.timeout)
    try:
        return _border(env, spec.own_vector)
    finally:
        env.close()


def time_limit(env: Any) -> int | None:
    """The steps after which an environment truncates, where it says so."""
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    while limit is None and env is not None:
        limit = env.__dict__.get("_max_episode_steps")
        env = getattr(env, "env", None)
    return limit
