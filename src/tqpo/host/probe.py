"""The spec of an environment, from building one and taking a step in it."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tqpo.errors import ConfigError, EnvError
from tqpo.host import costs
from tqpo.host.guard import FAILURES, Guard, alarm
from tqpo.host.own_vector import OwnVector, mode_of
from tqpo.host.reference import build, factory_of, is_reference
from tqpo.host.spaces import Border, ContractError
from tqpo.host.spec import HostOptions, HostSpec
from tqpo.references import find, shown, takes
from tqpo.types import UNLIMITED, Env


def make_own(
    task: str, settings: Mapping[str, Any] | None = None, cost_fn: str | None = None, options: HostOptions | None = None
) -> HostSpec | Env:
    """The environment that a reference names: one on the host, or a pure JAX environment as it is."""
    if not is_reference(task):
        raise ConfigError(f"{task!r}: write gym:ID, module:factory or bridge:PYTHON:MODULE:NAME")
    given = tuple(sorted((settings or {}).items()))
    try:
        named = factory_of(task), find(cost_fn) if cost_fn else None
        return _probe(task, *named, given, cost_fn, options or HostOptions())
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        raise ConfigError(f"task settings {settings}: numbers, text or lists of them") from None


@functools.lru_cache(maxsize=32)
def _probe(
    task: str,
    factory: Callable[..., Any] | None,
    cost_function: Callable[..., Any] | None,
    settings: tuple,
    cost_fn: str | None,
    options: HostOptions,
) -> HostSpec | Env:
    vector = factory is not None and takes(factory, "num_envs")
    env = _build(task, settings, options.timeout, factory, **({"num_envs": 2} if vector else {}))
    if isinstance(env, Env) and not hasattr(env, "observation_space"):
        if cost_fn:
            raise ConfigError(f"cost_fn = {cost_fn}: {shown(task)} is a JAX environment, whose steps hold their cost")
        if options.max_steps:
            raise ConfigError(
                f"max_steps = {options.max_steps}: {shown(task)} is a JAX environment with max_steps of its own"
            )
        return env
    host: Any = env
    if vector and options.max_steps:
        raise ConfigError(f"max_steps = {options.max_steps}: {task} makes vectors, which end their own episodes")
    try:
        kind = "single_" if vector else ""
        border = Border(getattr(host, f"{kind}observation_space"), getattr(host, f"{kind}action_space"))
        spec = HostSpec(
            task=task,
            settings=settings,
            cost_fn=cost_fn,
            options=options,
            autoreset=mode_of(host).value if vector else None,
            obs_size=border.obs_size,
            action_size=border.action_size,
            discrete=border.discrete,
            cost_names=(),
            max_steps=min(time_limit(host) or UNLIMITED, options.max_steps or UNLIMITED),
            border=border,
            cost_function=cost_function,
            factory=factory,
        )
        unit = OwnVector(spec, 2) if vector else Guard(spec, 0)
        unit.env = host
        with alarm(unit.timeout):
            unit.reset([0, 1])
            unit.step(np.zeros((2, border.action_size), np.float32))
        return dataclasses.replace(spec, cost_names=costs.names_of(unit.costs))
    except EnvError:
        raise
    except ContractError as error:
        raise EnvError(f"{shown(task)}, its first step: {error}") from error
    except FAILURES as error:
        raise EnvError(f"{shown(task)}, its first step: {type(error).__name__}: {error}") from error
    finally:
        host.close()


def _build(task: str, settings: tuple, timeout: float, factory: Callable[..., Any] | None, **more: Any) -> Any:
    try:
        with alarm(timeout):
            env = build(task, settings, timeout, factory, **more)
    except (ConfigError, EnvError):
        raise
    except FAILURES as error:
        raise EnvError(f"{shown(task)}: it cannot be built: {type(error).__name__}: {error}") from error
    needed = ("observation_space", "action_space", "reset", "step")
    missing = [name for name in needed if not hasattr(env, name)]
    if missing and not isinstance(env, Env):
        raise EnvError(f"{shown(task)}: a {type(env).__name__} is no environment: it has no {', '.join(missing)}")
    return env


def time_limit(env: Any) -> int | None:
    """The steps after which an environment truncates, where it says so."""
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    while limit is None and env is not None:
        limit = env.__dict__.get("_max_episode_steps")
        env = getattr(env, "env", None)
    return limit
