"""Names of code that the user gave, `mymodule:make_env`: resolved by import, and in no other way.

A class or function without an importable name (a lambda, one of a notebook) has a name that is good until its program ends.
"""

import contextlib
import importlib
import inspect
import os
import sys
import uuid
from collections.abc import Callable
from typing import Any

from tqpo.errors import ConfigError

LOCAL = "<local>:"
_local: dict[str, Callable[..., Any]] = {}


def find(reference: str) -> Callable[..., Any]:
    """The object that `module:name` names; modules in the current folder are found too."""
    if reference in _local:
        return _local[reference]
    module, colon, name = reference.partition(":")
    if is_local(reference):
        raise ConfigError(
            f"{shown(reference)}: it lived in the program that trained. Give it again (the run's config.json says how, under "
            '"needs"), or train with one that has a name in a module'
        )
    if module.endswith(".py"):
        raise ConfigError(f"{reference!r}: a module is named without .py: {module.removesuffix('.py')}:{name}")
    if not (module and colon and name):
        raise ConfigError(f"{reference!r} cannot be imported: write module:name")
    see_current_folder()
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


def see_current_folder() -> None:
    """Modules in the current folder can be imported. For good: worker processes get this list."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())


def name_of(function: Callable[..., Any] | str, title: str = "") -> str:
    """`module:name` of a function or class, or a name that is good until this program ends."""
    if isinstance(function, str):
        return function
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    with contextlib.suppress(ConfigError):
        if module != "__main__" and find(f"{module}:{name}") is function:
            return f"{module}:{name}"
    for known, other in _local.items():
        if other is function:
            return known
    title = title or name.rpartition(".")[2].strip("<>") or type(function).__name__
    reference = f"{LOCAL}{title}-{uuid.uuid4().hex[:8]}"  # unique: a later program must not take it for its own
    _local[reference] = function
    return reference


def provide(reference: str, function: Callable[..., Any]) -> None:
    """From now on a name of another program means this function."""
    _local[reference] = function


def is_local(reference: str) -> bool:
    return reference.startswith(LOCAL)


def shown(reference: str) -> str:
    """A name for people: MyEnv of `<local>:MyEnv-1a2b3c4d`."""
    return reference.removeprefix(LOCAL).rpartition("-")[0] if is_local(reference) else reference


def takes(function: Callable[..., Any], parameter: str) -> bool:
    """Whether a function has a parameter of that name."""
    try:
        return parameter in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
