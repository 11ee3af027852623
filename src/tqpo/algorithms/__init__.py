"""The algorithms: one module each, sharing functions, never a base class.

Every module has `Config`, `State`, `check(config, env)`, `init(key, env, config)` and `update(state, env, config)`.
"""

from types import ModuleType

from tqpo.algorithms import ppo, ppo_lag, qcpo, tqpo
from tqpo.errors import UnknownNameError

ALGORITHMS = {"ppo": ppo, "ppo-lag": ppo_lag, "qcpo": qcpo, "tqpo": tqpo}


def get(name: str) -> ModuleType:
    """The module of an algorithm."""
    if name not in ALGORITHMS:
        raise UnknownNameError(f"no algorithm {name!r}; there are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


__all__ = ["ALGORITHMS", "get"]
