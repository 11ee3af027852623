"""What a learner must know of an environment on the host. It is seen by building one and taking a step in it."""

import copy
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from tqpo.errors import ConfigError, EnvError
from tqpo.host import bridge, costs
from tqpo.host.guard import FAILURES, WorkerSpec, alarm, read_step
from tqpo.host.own_vector import first_costs
from tqpo.host.reference import GYM, allowance, build, find, is_reference, takes
from tqpo.host.spaces import Border, ContractError
from tqpo.types import Env

VECTORS = ("sync", "async", "ray")
UNLIMITED = 2**31 - 1  # steps of an episode that nobody limits


@dataclasses.dataclass(frozen=True)
class HostOptions:
    """How environments on the host are run."""

    vector: str = "sync"  # one after the other in this process, "async": each in a process of its own, "ray": on actors
    timeout: float = 60.0  # s that one call may take
    restarts: int = 3  # of each environment, after faults

    def __post_init__(self) -> None:
        if self.vector not in VECTORS:
            raise ConfigError(f"vector = {self.vector!r}: {' or '.join(VECTORS)}")
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
    options: HostOptions
    own_vector: bool  # the factory makes Gymnasium vectors
    border: Border = dataclasses.field(compare=False, repr=False)
    cost_names: tuple[str, ...]
    max_steps: int
    min_steps: int = 1

    @property
    def obs_size(self) -> int:
        return self.border.obs_size

    @property
    def action_size(self) -> int:
        return self.border.action_size

    @property
    def discrete(self) -> bool:
        return self.border.discrete

    def worker(self) -> WorkerSpec:
        return WorkerSpec(
            make=functools.partial(build, self.task, self.settings, **patience(self.task, self.options.timeout)),
            border=self.border,
            cost_fn=find(self.cost_fn) if self.cost_fn else None,
            cost_names=self.cost_names,
            timeout=self.options.timeout,
            restarts=self.options.restarts,
        )

    def describe(self) -> dict[str, Any]:
        """What `config.json` keeps, to see whether a resumed run meets the same environment."""
        names = ("obs_size", "action_size", "discrete", "max_steps")
        return {name: getattr(self, name) for name in names} | {"cost_names": list(self.cost_names)}


def make_own(
    task: str, settings: Mapping[str, Any] | None = None, cost_fn: str | None = None, options: HostOptions | None = None
) -> "HostSpec | Env":
    """The environment that a reference names: one on the host, or a pure JAX environment as it is."""
    try:
        return _probe(task, tuple(sorted((settings or {}).items())), cost_fn, options or HostOptions())
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        raise ConfigError(f"task settings {settings}: numbers, text or lists of them") from None


@functools.lru_cache(maxsize=32)
def _probe(task: str, settings: tuple, cost_fn: str | None, options: HostOptions) -> "HostSpec | Env":
    """Builds one environment, or a vector of two, and takes one step in it."""
    if not is_reference(task):
        raise ConfigError(f"{task!r}: write gym:ID, module:factory or bridge:PYTHON:MODULE:NAME")
    own_vector = not task.startswith(GYM) and takes(find(task), "num_envs")
    cost_function = find(cost_fn) if cost_fn else None
    env: Any = _build(task, settings, own_vector, options.timeout)
    if isinstance(env, Env) and not hasattr(env, "observation_space"):
        if cost_fn:
            raise ConfigError(f"cost_fn = {cost_fn}: {task} is a JAX environment, whose steps hold their cost")
        return env
    host: Any = env
    try:
        if own_vector:
            border = Border(host.single_observation_space, host.single_action_space)
        else:
            border = Border(host.observation_space, host.action_space)
        by_name = _first_costs(task, host, border, cost_function, own_vector, options.timeout)
        names, limit = costs.names_of(by_name), time_limit(host) or UNLIMITED
        return HostSpec(task, settings, cost_fn, options, own_vector, border, names, limit)
    finally:
        host.close()


def _build(task: str, settings: tuple, own_vector: bool, timeout: float) -> Any:
    try:
        with alarm(timeout):
            env = build(task, settings, **patience(task, timeout), **({"num_envs": 2} if own_vector else {}))
    except (ConfigError, EnvError):
        raise
    except FAILURES as error:
        raise EnvError(f"{task}: it cannot be built: {type(error).__name__}: {error}") from error
    needed = ("observation_space", "action_space", "reset", "step")
    missing = [name for name in needed if not hasattr(env, name)]
    if missing and not isinstance(env, Env):
        raise EnvError(f"{task}: a {type(env).__name__} is no environment: it has no {', '.join(missing)}")
    return env


def patience(task: str, timeout: float) -> dict[str, Any]:
    """The time-outs of a bridge: sooner than the guard's own, for it knows the last words of the other process."""
    if not task.startswith(bridge.PREFIX):
        return {}
    return {"options": bridge.Options(timeout=0.9 * timeout, start_timeout=0.9 * timeout)}


def _first_costs(task: str, env: Any, border: Border, cost_fn: Any, own_vector: bool, timeout: float) -> dict[str, Any]:
    """The costs by name in the first step of an episode."""
    try:
        with alarm(allowance(task, timeout, 2)):
            if own_vector:
                by_name = first_costs(env, cost_fn)
            else:
                obs, action = copy.deepcopy(env.reset(seed=0)[0]), border.action_space.sample()
                _, _, by_name, _, _ = read_step(border, cost_fn, obs, action, env.step(action))
        costs.channels(by_name, costs.names_of(by_name))
        return by_name
    except ContractError as error:
        raise EnvError(f"{task}, its first step: {error}") from error
    except FAILURES as error:
        raise EnvError(f"{task}, its first step: {type(error).__name__}: {error}") from error


def time_limit(env: Any) -> int | None:
    """The steps after which an environment truncates, where it says so."""
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    while limit is None and env is not None:
        limit = env.__dict__.get("_max_episode_steps")
        env = getattr(env, "env", None)
    return limit
