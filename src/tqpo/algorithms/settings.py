"""Settings as data: frozen dataclasses that are pytrees, numbers traced and structure static.

Runs whose structure agrees can be stacked and trained by one compiled program, whatever their numbers.
"""

import dataclasses
import math
import numbers
from typing import Any, TypeVar, dataclass_transform, get_args, get_origin

import jax
import numpy as np

from tqpo.errors import ConfigError, UnknownNameError, did_you_mean

T = TypeVar("T")


def static(*, default: Any) -> Any:
    """A field that is structure: it must be equal in all runs of one program."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(static, dataclasses.field))
def settings(cls: type[T]) -> type[T]:
    """A frozen, keyword-only dataclass that is a pytree: its `static` fields are structure, the others leaves."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, kw_only=True)(cls))


@settings
class Constraint:
    """A bound on one cost channel's episode cost C.

    `quantile`: Pr[C ≤ limit] ≥ safety. `mean`: E[C] ≤ limit; `safety` is then only the level that is reported.
    """

    channel: int = static(default=0)  # which cost; 0 is the total
    kind: str = static(default="quantile")  # or mean
    limit: float = 15.0  # d; by name `cost_limit`
    safety: float = 0.9  # 1 − ε: the share of episodes that must stay within it
    margin: float = 0.0  # share of ε that training holds back: it bounds the quantile at 1 − ε·(1 − margin)
    upper: bool = static(default=False)  # bound inf{x : F(x) > p}, the 91st of 100 at 0.9 (as released), not the 90th


def field_names(config: Any) -> set[str]:
    """The names that `replace` knows: the fields of a config and of the settings inside it."""
    names = set()
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        names |= {field.name} | (field_names(value) if dataclasses.is_dataclass(value) else set())
    return names


def replace(config: T, **changes: Any) -> T:
    """The config with fields changed by name, wherever they are inside it: `replace(c, learning_rate=1e-3)`.

    `cost_limit`, `safety` and `margin` set those of every constraint.
    """
    names = field_names(config) | {"cost_limit", "safety", "margin"}
    if unknown := set(changes) - names:
        asked = sorted(unknown)
        hint = did_you_mean(asked, names)
        raise UnknownNameError(f"no setting {', '.join(asked)}{hint}; there are {', '.join(sorted(names))}")
    fields = {"cost_limit": "limit", "safety": "safety", "margin": "margin"}
    constraint = {field: checked(name, float, changes.pop(name)) for name, field in fields.items() if name in changes}
    constraints = checked(
        "constraints", tuple[Constraint, ...], changes.get("constraints", getattr(config, "constraints", ()))
    )
    changes["constraints"] = tuple(dataclasses.replace(c, **constraint) for c in constraints)
    return _replace(config, changes)


def _replace(config: Any, changes: dict[str, Any]) -> Any:
    new = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in changes:
            new[field.name] = checked(field.name, field.type, changes[field.name])
        elif dataclasses.is_dataclass(value):
            new[field.name] = _replace(value, changes)
    return dataclasses.replace(config, **new)


def checked(name: str, kind: Any, value: Any) -> Any:
    """The value of a setting as its annotation has it, refused where it is of another kind: text for a number, say."""
    if kind == float | None:
        return None if value is None else checked(name, float, value)
    if kind is bool:
        require(isinstance(value, bool | np.bool_), f"{name} = {value!r}: true or false")
        return bool(value)
    if kind is int:
        require(is_whole(value), f"{name} = {value!r}: a whole number")
        return value if isinstance(value, int) else int(value)
    if kind is float and not isinstance(value, jax.Array):
        number = isinstance(value, numbers.Real) and not isinstance(value, bool) and not math.isnan(value)
        require(number, f"{name} = {value!r}: a number")
        return float(value)
    if kind in (str, str | None):
        require(isinstance(value, kind), f"{name} = {value!r}: text")
    elif get_origin(kind) is tuple:
        (each, _) = get_args(kind)
        if each is int and isinstance(value, str) and all(part.isdecimal() for part in value.split(",")):
            value = tuple(map(int, value.split(",")))  # hidden=128,128
        fits = is_whole if each is int else lambda x: isinstance(x, each)
        what = "whole numbers, as in 64,64" if each is int else f"several {each.__name__}"
        require(isinstance(value, tuple) and all(map(fits, value)), f"{name} = {value!r}: {what}")
    elif dataclasses.is_dataclass(kind):
        require(isinstance(value, kind), f"{name} = {value!r}: set what is in it by name")
    return value


def is_whole(value: Any) -> bool:
    whole = isinstance(value, numbers.Integral) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool)


def require(condition: bool, message: str) -> None:
    """Raises a `ConfigError` that names the setting, its value and what is allowed."""
    if not condition:
        raise ConfigError(message)


def check_constraints(constraints: tuple[Constraint, ...], kinds: tuple[str, ...], cost_names: tuple[str, ...]):
    """Every constraint has a kind that the algorithm can enforce, a channel of the task, a level in (0, 1)."""
    for c in constraints:
        require(c.kind in kinds, f"constraint kind = {c.kind!r}: this algorithm takes {' or '.join(kinds)}")
        require(
            0 <= c.channel < len(cost_names),
            f"constraint channel = {c.channel}: the task's cost channels are 0 … {len(cost_names) - 1} {cost_names}",
        )
        require(0 < c.safety < 1, f"safety = {c.safety}: a probability strictly between 0 and 1")
        require(c.limit >= 0, f"cost_limit = {c.limit}: not negative")
        require(0 <= c.margin < 1, f"margin = {c.margin}: at least 0 and less than 1")
