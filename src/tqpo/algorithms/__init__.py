"""The algorithms: one module each, sharing functions, never a base class.

Every module has `Config`, `State`, `check(config, env)`, `init(key, env, config)` and `learn(state, experience, config)`.
"""

from types import ModuleType
from typing import Any

from tqpo.algorithms import budget, learner, ppo, ppo_lag, qcpo, tqpo
from tqpo.errors import UnknownNameError
from tqpo.types import Array, Env

ALGORITHMS = {"ppo": ppo, "ppo-lag": ppo_lag, "qcpo": qcpo, "tqpo": tqpo, "budget": budget}


def get(name: str) -> ModuleType:
    """The module of an algorithm."""
    if name not in ALGORITHMS:
        raise UnknownNameError(f"no algorithm {name!r}; there are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def update(name: str, state: Any, env: Env, config: Any) -> tuple[Any, dict[str, Array]]:
    """One iteration: a batch of experience, and what the algorithm learns from it."""
    core, experience = learner.collect(state.learner, env, config.learner)
    return get(name).learn(state._replace(learner=core), experience, config)


__all__ = ["ALGORITHMS", "get", "update"]
