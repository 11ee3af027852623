"""The costs of a step, from whoever says them.

In this order: the user's `cost_fn(obs, action, next_obs, info)`; the third value of a six-tuple step
(Safety-Gymnasium); `info["cost"]`. Each is a number, or a dict of numbers by name. Without a `cost_fn`, every
`info["cost_NAME"]` is the cost NAME.

Channel 0 is "cost": what was given under that name (or without one), else the sum of the named costs.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tqpo.host.spaces import ContractError

MISSING = (
    'no cost in this step: give info["cost"] in every step (0 where there is none), return (obs, reward, cost, terminated, '
    "truncated, info), or name a --cost-fn module:function"
)
NOTHING = "cost_fn returned no cost: it must return a number, or a dict"


def read(
    cost_fn: Callable[..., Any] | None, obs: Any, action: Any, next_obs: Any, info: Mapping[str, Any], given: Any = None
) -> dict[str, Any]:
    """Costs by name of a step from `obs` to `next_obs`; `given` is the third value of a six-tuple."""
    value = info.get("cost") if given is None else given
    if cost_fn is not None:
        value = cost_fn(obs, action, next_obs, info)
    by_name = dict(value) if isinstance(value, Mapping) else {} if value is None else {"cost": value}
    if cost_fn is None:
        by_name = {k.removeprefix("cost_"): v for k, v in info.items() if k.startswith("cost_")} | by_name
    if not by_name:
        raise ContractError(MISSING if cost_fn is None else NOTHING)
    return by_name


def names_of(by_name: Mapping[str, Any]) -> tuple[str, ...]:
    """The channels that these costs make."""
    return ("cost", *(name for name in by_name if name != "cost"))


def channels(by_name: Mapping[str, Any], names: tuple[str, ...]) -> np.ndarray:
    """The costs as a vector [C], float32, in the order of `names`, or as they come if that is empty."""
    names = names or names_of(by_name)
    if missing := [name for name in names[1:] if name not in by_name]:
        raise ContractError(
            f"no cost {', '.join(missing)} in this step: give every named cost in every step (0 where there is none)"
        )
    if "cost" not in by_name and (fresh := sorted(set(by_name) - set(names))):
        raise ContractError(
            f"a cost {', '.join(fresh)} that the first step did not have, so the total is unclear: "
            "give every named cost in every step"
        )
    values = {name: number(name, value) for name, value in by_name.items() if name in names}
    total = values["cost"] if "cost" in values else sum(values.values())
    return np.array([total, *(values[name] for name in names[1:])], np.float32)


def number(name: str, value: Any) -> float:
    try:
        cost = float(value)
    except (TypeError, ValueError):
        raise ContractError(f"{name} = {value!r}: a cost must be a number") from None
    if not math.isfinite(cost):
        raise FloatingPointError(f"{name} = {cost}: a cost must be finite")
    if cost < 0:
        raise ContractError(f"{name} = {cost}: a cost must not be negative; costs are bounded from above")
    return cost
