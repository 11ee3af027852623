"""Environments that live in another Python, over a local socket without pickle: docs/bridge.md.

env = bridge.make_env("python3.10", "safety_gymnasium:SafetyPointGoal1-v0")
envs = bridge.make_vec("python3.10", "safety_gymnasium:SafetyPointGoal1-v0", num_envs=8, processes=2)
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from tqpo.errors import ConfigError
from tqpo.host.bridge.process import Options

if TYPE_CHECKING:
    from tqpo.host.bridge.environments import BridgeEnv, BridgeVectorEnv

__all__ = ["PREFIX", "Address", "Options", "make_env", "make_vec", "parse"]

PREFIX = "bridge:"


class Address(NamedTuple):
    python: str  # an interpreter, by name or path
    env: str  # module:factory or module:ID


def parse(text: str) -> Address:
    """`bridge:PYTHON:MODULE:NAME`, e.g. `bridge:python3.10:safety_gymnasium:SafetyPointGoal1-v0`."""
    python, _, env = text.removeprefix(PREFIX).partition(":")
    module, _, name = env.partition(":")
    if not (text.startswith(PREFIX) and python and module and name):
        example = "bridge:python3.10:safety_gymnasium:SafetyPointGoal1-v0"
        raise ConfigError(
            f"{text!r}: an environment in another Python is written bridge:PYTHON:MODULE:NAME, as {example}"
        )
    return Address(python, env)


def make_env(python: str, env: str, **arguments: Any) -> "BridgeEnv":
    """One environment: see `tqpo.host.bridge.environments.make_env`."""
    from tqpo.host.bridge import environments

    return environments.make_env(python, env, **arguments)


def make_vec(python: str, env: str, num_envs: int, **arguments: Any) -> "BridgeVectorEnv":
    """A batch of environments: see `tqpo.host.bridge.environments.make_vec`."""
    from tqpo.host.bridge import environments

    return environments.make_vec(python, env, num_envs, **arguments)
