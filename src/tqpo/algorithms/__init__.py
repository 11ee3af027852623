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
    return learn(name, state._replace(learner=core), experience, config)


def learn(name: str, state: Any, experience: learner.Experience, config: Any) -> tuple[Any, dict[str, Array]]:
    """What the algorithm learns from a batch, and then the average of weights, whatever it did to them."""
    state, metrics = get(name).learn(state, experience, config)
    return state._replace(learner=learner.averaged(state.learner, config.learner)), metrics


__all__ = ["ALGORITHMS", "get", "learn", "update"]
