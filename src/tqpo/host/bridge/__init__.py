"""Environments that live in another Python, as child processes behind a pipe, without pickle: docs/bridge.md.

env = bridge.make_env("python3.10", "safety_gymnasium:SafetyPointGoal1-v0")
envs = bridge.make_vec("python3.10", "safety_gymnasium:SafetyPointGoal1-v0", num_envs=8, processes=2)
"""

import os
from typing import Any

from tqpo.errors import ConfigError
from tqpo.host.bridge.client import Options

__all__ = ["PREFIX", "Options", "make_env", "make_vec", "parse"]

PREFIX = "bridge:"
USUAL = Options()


def parse(text: str) -> tuple[str, str]:
    """The interpreter and `module:name` of `bridge:PYTHON:MODULE:NAME`."""
    python, _, env = text.removeprefix(PREFIX).partition(":")
    module, _, name = env.partition(":")
    if not (text.startswith(PREFIX) and python and module and name):
        example = "bridge:python3.10:safety_gymnasium:SafetyPointGoal1-v0"
        raise ConfigError(f"{text!r}: an environment in another Python is bridge:PYTHON:MODULE:NAME, as {example}")
    return python, env


def make_env(python: str, env: str, options: Options = USUAL, **arguments: Any):
    """One environment, `module:factory` or `module:ID`, in the interpreter `python`; its arguments must be JSON."""
    from tqpo.host.bridge.environments import BridgeEnv, BridgeVectorEnv

    return BridgeEnv(BridgeVectorEnv(python, env, [1], options, arguments))


def make_vec(
    python: str, env: str, num_envs: int, processes: int | None = None, options: Options = USUAL, **arguments: Any
):
    """`num_envs` copies in `processes` servers, which step at the same time; by default one server for each core."""
    from tqpo.host.bridge.environments import BridgeVectorEnv

    processes = min(num_envs, os.cpu_count() or 1) if processes is None else processes
    if not 1 <= processes <= num_envs:
        raise ConfigError(f"num_envs = {num_envs}, processes = {processes}: 1 ≤ processes ≤ num_envs")
    sizes = [(num_envs + i) // processes for i in reversed(range(processes))]
    return BridgeVectorEnv(python, env, sizes, options, arguments)
