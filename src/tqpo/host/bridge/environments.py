"""Environments of another Python as Gymnasium environments of this one.

`make_env` gives one, `make_vec` a batch, spread over `processes` servers. The keyword arguments go to the environment, so they must
be JSON. Costs are in `info["cost"]` as everywhere, with `info["cost_hazards"]`… beside it. A batch resets in the same step
(`AutoresetMode.SAME_STEP`): last observations and costs are in `info["final_obs"]` and `info["final_info"]`, as Gymnasium has it.
"""

import os
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tqpo.errors import ActionError, ConfigError
from tqpo.host.bridge import client
from tqpo.host.bridge.process import Options, Process
from tqpo.host.bridge.server import MAX_ENVS, Space


def make_env(python: str, env: str, options: Options | None = None, **arguments: Any) -> "BridgeEnv":
    """One environment, `module:factory` or `module:ID`, in the interpreter `python`."""
    process = Process(python, env, 1, options or Options(), arguments)
    return BridgeEnv(client.start([process], "disabled")[0])


def make_vec(
    python: str,
    env: str,
    num_envs: int,
    processes: int | None = None,
    options: Options | None = None,
    **arguments: Any,
) -> "BridgeVectorEnv":
    """`num_envs` copies in `processes` servers, which step at the same time; by default one server for each core."""
    processes = min(num_envs, os.cpu_count() or 1) if processes is None else processes
    if not 1 <= processes <= num_envs <= MAX_ENVS:
        raise ConfigError(f"num_envs = {num_envs}, processes = {processes}: 1 ≤ processes ≤ num_envs ≤ {MAX_ENVS}")
    sizes = [len(part) for part in np.array_split(np.arange(num_envs), processes)]
    started: list[Process] = []
    try:
        for size in sizes:
            started.append(Process(python, env, size, options or Options(), arguments))
    except BaseException:
        for process in started:
            process.stop(0.0)
        raise
    return BridgeVectorEnv(client.start(started, "same_step"))


def space_of(space: Space) -> Box | Discrete:
    if space.discrete:
        return Discrete(int(space.high - space.low) + 1, start=int(space.low))
    return Box(space.low, space.high, space.shape, np.dtype(space.dtype).type)


def check_action(action: Any, space: Space, shape: tuple[int, ...]) -> np.ndarray:
    """The action as the server expects it."""
    try:
        array = np.asarray(action, dtype=space.dtype)
    except (TypeError, ValueError):
        raise ActionError(f"action {action!r} is not an array of numbers of shape {shape}") from None
    if array.shape != shape or not np.all(np.isfinite(array)):
        raise ActionError(f"an action of shape {array.shape} must be finite and have shape {shape}")
    if space.discrete and np.any((array < space.low) | (array > space.high)):
        raise ActionError(f"an action must be from {space.low} to {space.high}")
    return array


def spec_of(hello: client.Hello) -> EnvSpec:
    """A spec that only says how long an episode may be."""
    return EnvSpec(id="tqpo/bridge-v0", max_episode_steps=hello.max_steps)


class BridgeEnv(gymnasium.Env):
    """One environment of another Python."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, connection: client.Connection) -> None:
        self.connection, self.hello = connection, connection.hello
        self.observation_space, self.action_space = space_of(self.hello.observation), space_of(self.hello.action)
        self.spec = spec_of(self.hello)
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.connection.ask_reset([seed], np.ones(1, bool))
        obs = self.connection.answer_reset()[0]
        self._over = False
        return obs, {}

    def step(self, action: Any):
        if self._over:
            raise ResetNeeded("the episode is over or has not begun: call reset() first")
        action = check_action(action, self.hello.action, self.hello.action.shape)
        self._over = True  # unless the step succeeds
        self.connection.ask_step(action[None])
        step = self.connection.answer_step()
        terminated, truncated = bool(step.terminated[0]), bool(step.truncated[0])
        self._over = terminated or truncated
        info = {name: float(value[0]) for name, (value, present) in step.info.items() if present[0]}
        return step.obs[0], float(step.reward[0]), terminated, truncated, info

    def render(self) -> np.ndarray:
        return self.connection.picture(0)

    def close(self) -> None:
        self.connection.close()


class BridgeVectorEnv(VectorEnv):
    """A batch of environments in one or several processes of another Python."""

    def __init__(self, connections: list[client.Connection]) -> None:
        self.connections = connections
        self.hello = connections[0].hello
        self.num_envs = sum(c.hello.num_envs for c in connections)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.spec = spec_of(self.hello)
        self.single_observation_space = space_of(self.hello.observation)
        self.single_action_space = space_of(self.hello.action)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._begun = False

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None):
        if options:
            raise ConfigError(f"reset of environments in another Python has no options; {sorted(options)} were given")
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
            seed = [int(seed) + i for i in range(self.num_envs)]
        seeds: list[int | None] = (
            [None] * self.num_envs if seed is None else [None if s is None else int(s) for s in seed]
        )
        if len(seeds) != self.num_envs:
            raise ConfigError(f"seed has {len(seeds)} entries; it must have one for each of the {self.num_envs}")
        for c in self.connections:
            c.ask_reset(seeds[c.first : c.first + c.hello.num_envs], np.ones(c.hello.num_envs, bool))
        obs = np.concatenate(self._all(client.Connection.answer_reset))
        self._begun = True
        return obs, {}

    def step(self, actions: Any):
        if not self._begun:
            raise ResetNeeded("step() was called before reset(), or after an environment failed: call reset() first")
        actions = check_action(actions, self.hello.action, (self.num_envs, *self.hello.action.shape))
        self._begun = False  # unless the step succeeds
        for c in self.connections:
            c.ask_step(actions[c.first : c.first + c.hello.num_envs])
        parts: list[client.Steps] = self._all(client.Connection.answer_step)
        self._begun = True
        obs, reward, terminated, truncated, final = (np.concatenate(x) for x in list(zip(*parts, strict=True))[:5])
        over = terminated | truncated
        info = self._info(parts, ~over)
        if np.any(over):
            last = np.full(self.num_envs, None, dtype=object)
            for row, i in enumerate(np.flatnonzero(over)):
                last[i] = final[row]
            info |= {"final_obs": last, "_final_obs": over}
            info |= {"final_info": self._info(parts, over), "_final_info": over.copy()}
        return obs, reward, terminated, truncated, info

    def close_extras(self, **_: Any) -> None:
        for c in self.connections:
            c.close()

    def _all(self, answer: Any) -> list[Any]:
        """Every server's answer. All are heard before an exception of an environment is raised; else all are closed."""
        answers, failed = [], None
        for c in self.connections:
            try:
                answers.append(answer(c))
            except Exception as error:
                failed = failed or error
        if failed is not None:
            if any(c.closed for c in self.connections):
                self.close()
            raise failed
        return answers

    def _info(self, parts: list[client.Steps], mask: np.ndarray) -> dict[str, Any]:
        """The numbers of `info` under the mask, as Gymnasium batches them."""
        info: dict[str, Any] = {}
        for name in sorted({name for part in parts for name in part.info}):
            absent = [(np.zeros(len(p.reward)), np.zeros(len(p.reward), bool)) for p in parts]
            pairs = [p.info.get(name, none) for p, none in zip(parts, absent, strict=True)]
            present = np.concatenate([has for _, has in pairs]) & mask
            info |= {name: np.where(present, np.concatenate([v for v, _ in pairs]), 0.0), f"_{name}": present}
        return info
