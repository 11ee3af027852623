"""Environments by name: `gym:ID`, `module:factory`, and in another Python `bridge:PYTHON:MODULE:NAME`."""

import copy
import functools
from collections.abc import Callable
from typing import Any

from tqpo import TASKS, references
from tqpo.errors import ConfigError
from tqpo.host import bridge

GYM = "gym:"


def is_reference(task: str) -> bool:
    """Whether a task is someone's own: it has a colon, which no built-in name has."""
    return ":" in task


@functools.lru_cache(maxsize=32)
def bridged(reference: str) -> Callable[..., Any]:
    """What makes the environments of another Python."""
    return functools.partial(bridge.make_vec, *bridge.parse(reference))


def factory_of(task: str) -> Callable[..., Any] | None:
    """What makes the environments of a reference; None: `gymnasium.make`."""
    if task.startswith(GYM):
        return None
    return bridged(task) if task.startswith(bridge.PREFIX) else references.find(task)


def task_of(env: Any) -> str:
    """The name of an environment: of a class or function that makes one, of an environment itself, of a Gymnasium id."""
    if isinstance(env, str):
        return f"{GYM}{env}" if env not in TASKS and is_gym_id(env) else env
    return references.name_of(maker_of(env), type(env).__name__ * (not is_factory(env)))


def maker_of(env: Any) -> Callable[..., Any]:
    """What makes environments: the one that is given, by name too, or copies of an environment."""
    if isinstance(env, str):
        return factory_of(env) or functools.partial(build, env, (), 0.0, None)
    return env if is_factory(env) else copies_of(env)


def is_factory(env: Any) -> bool:
    return callable(env) and (isinstance(env, type) or not hasattr(env, "step"))


def is_gym_id(name: str) -> bool:
    if is_reference(name):
        return False
    import gymnasium

    return name in gymnasium.registry


def copies_of(env: Any) -> Callable[[], Any]:
    """What makes environments like this one: in JAX it is itself, on the host a copy."""
    from tqpo.types import Env  # needs JAX, which workers do without

    if isinstance(env, Env) and not hasattr(env, "observation_space"):
        return lambda: env
    kind = type(env).__name__
    if not hasattr(env, "step"):
        raise ConfigError(
            f"a {kind} is no environment: give its name, its class, a function that makes it, or one that is made"
        )
    if hasattr(env, "num_envs"):
        raise ConfigError(f"{kind} is a vector of environments: give a function of num_envs that makes it")
    try:
        copy.deepcopy(env)
    except Exception as error:
        raise ConfigError(f"{kind} cannot be copied ({error}): give its class, or a function that makes it") from None
    return lambda: copy.deepcopy(env)


def build(
    task: str, settings: tuple[tuple[str, Any], ...], timeout: float, factory: Callable[..., Any] | None, **more: Any
) -> Any:
    """What a reference makes: an environment, or a vector of them where `num_envs` is given. `factory` is what it names."""
    options = dict(settings) | more
    if task.startswith(bridge.PREFIX):  # its own time-outs come first: they say what the other process printed
        options["options"] = bridge.Options(timeout=0.9 * timeout, start_timeout=0.9 * timeout)
    if factory is not None:
        return factory(**options)
    import gymnasium

    name = task.removeprefix(GYM)
    if ":" in name:
        references.see_current_folder()
    try:
        return gymnasium.make(name, disable_env_checker=True, **options)
    except ImportError as error:
        raise ConfigError(f'{task}: {error}; install what it needs, as in pip install "gymnasium[mujoco]"') from error
    except gymnasium.error.Error as error:
        raise ConfigError(f"{task}: {error}") from error


def allowance(task: str, timeout: float, count: int) -> float:
    """Seconds for one call of a vector.

    A bridge watches each environment itself, and many may step and reset in turn.
    """
    return 2 * count * timeout if task.startswith(bridge.PREFIX) else timeout
