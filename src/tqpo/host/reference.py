"""Names of code that the user gave: `gym:ID`, `module:factory`, and in another Python `bridge:PYTHON:MODULE:NAME`.

Resolved by import, and in no other way.
"""

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from tqpo.errors import ConfigError
from tqpo.host import bridge

GYM = "gym:"
LOCAL = "<local>:"  # a function without an importable name lives as long as its program
_local: dict[str, Callable[..., Any]] = {}


def is_reference(task: str) -> bool:
    """Whether a task is someone's own: it has a colon, which no built-in name has."""
    return ":" in task


def find(reference: str) -> Callable[..., Any]:
    """The object that `module:name` names; modules in the current folder are found too."""
    if reference in _local:
        return _local[reference]
    if reference.startswith(bridge.PREFIX):
        return functools.partial(bridge.make_vec, *bridge.parse(reference))
    module, colon, name = reference.partition(":")
    if reference.startswith(LOCAL) or not (module and colon and name):
        hint = "it lived in the program that trained; give it a name in a module" if colon else "write module:name"
        raise ConfigError(f"{reference!r} cannot be imported: {hint}")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # and stays there: worker processes get this list
    try:
        named: Any = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{reference!r}: {error}; start from the folder that holds {module}.py, or put that on PYTHONPATH"
        ) from error
    for part in name.split("."):
        if not hasattr(named, part):
            raise ConfigError(f"{reference!r}: module {module} has no {name}")
        named = getattr(named, part)
    if not callable(named):
        raise ConfigError(f"{reference!r} is {type(named).__name__}: name a function or a class")
    return named


def name_of(function: Callable[..., Any] | str) -> str:
    """`module:name` of a function, or a name that is good until this program ends."""
    if isinstance(function, str):
        return function
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    reference = f"{module}:{name}"
    try:
        if module != "__main__" and find(reference) is function:
            return reference
    except ConfigError:
        pass
    reference = f"{LOCAL}{name or type(function).__name__}-{len(_local)}"
    _local[reference] = function
    return reference


def takes(function: Callable[..., Any], parameter: str) -> bool:
    """Whether a function has a parameter of that name."""
    try:
        return parameter in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def build(task: str, settings: tuple[tuple[str, Any], ...], timeout: float, **more: Any) -> Any:
    """What a reference makes: an environment, or a vector of them where `num_envs` is given."""
    options = dict(settings) | more
    if task.startswith(bridge.PREFIX):  # its own time-outs come first: they say what the other process printed
        options["options"] = bridge.Options(timeout=0.9 * timeout, start_timeout=0.9 * timeout)
    if not task.startswith(GYM):
        return find(task)(**options)
    import gymnasium

    name = task.removeprefix(GYM)
    if ":" in name and os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
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
