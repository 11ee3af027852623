"""Environments of another Python as Gymnasium environments of this one.

Costs are in `info["cost"]` as everywhere, with `info["cost_hazards"]`… beside it. A batch resets in the same step
(`AutoresetMode.SAME_STEP`): last observations and costs are in `info["final_obs"]` and `info["final_info"]`.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tqpo.errors import ActionError, ConfigError
from tqpo.host.bridge.client import GRACE, Options, Server, command
from tqpo.host.bridge.errors import HostedEnvironmentError, VersionError
from tqpo.host.bridge.server import VERSION, Frame, Violation, expect_arrays, whole


class Hello(NamedTuple):
    """What a server says of its environments."""

    observation: Box
    action: Box | Discrete
    max_steps: int | None
    versions: dict[str, str]


def parse_hello(frame: Frame) -> Hello:
    data, ends = frame.data, (frame.arrays["obs"], frame.arrays["action"])  # [2, …]: a lower and an upper end
    if data["version"] != VERSION:
        raise VersionError(f"the server speaks version {data['version']!r} of the protocol, this side {VERSION}")
    steps, versions = data["max_steps"], {name: str(version) for name, version in data["versions"].items()}
    if len(data) != 4 or len(frame.arrays) != 2 or not (steps is None or whole(steps, 1, 1 << 53)):
        raise Violation("a hello has version, discrete, max_steps (null or positive) and versions; obs and action")
    if not all(np.all(low <= high) for low, high in ends):
        raise Violation("a space needs a lower and an upper end")
    observation, action = (Box(low, high, dtype=low.dtype.type) for low, high in ends)
    if data["discrete"]:
        low, high = map(operator.index, ends[1])
        action = Discrete(high - low + 1, start=low)
    return Hello(observation, action, steps, versions)


class BridgeVectorEnv(VectorEnv):
    """A batch of environments, in servers with `sizes` of them that work at the same time."""

    def __init__(self, python: str, env: str, sizes: list[int], options: Options, arguments: dict[str, Any]):
        self.servers: list[Server] = []
        for i, size in enumerate(sizes):
            words = command(python, env=env, envs=size, arguments=arguments, info=options.info)
            self.servers.append(Server(words, range(sum(sizes[:i]), sum(sizes[: i + 1])), options))
        self.num_envs = sum(sizes)
        self.over = np.ones(self.num_envs, bool)  # until the first reset, and after an exception in an environment
        self.hello: Hello = self.each(lambda server: parse_hello(server.answer()))[0]
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.spec = EnvSpec("tqpo/bridge-v0", max_episode_steps=self.hello.max_steps)
        self.single_observation_space, self.single_action_space = self.hello[:2]
        self.observation_space, self.action_space = (batch_space(space, self.num_envs) for space in self.hello[:2])

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None):
        if options:
            raise ConfigError(f"reset of environments in another Python has no options; {sorted(options)} were given")
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
            seed = range(int(seed), int(seed) + self.num_envs)
        seeds = [None] * self.num_envs if seed is None else [None if s is None else int(s) for s in seed]
        if len(seeds) != self.num_envs:
            raise ConfigError(f"seed has {len(seeds)} entries; it must have one for each of the {self.num_envs}")
        return self.begin(dict(enumerate(seeds))), {}

    def step(self, actions: Any):
        obs, reward, terminated, truncated, said = self.advance(actions)
        over, infos = np.flatnonzero(self.over), {}
        for i, info in enumerate(said):
            infos = self._add_info(infos, {"final_obs": obs[i].copy(), "final_info": info} if self.over[i] else info, i)
        if len(over):
            obs[over] = self.begin(dict.fromkeys(over.tolist()))
        return obs, reward, terminated, truncated, infos

    def begin(self, seeds: dict[int, int | None]) -> np.ndarray:
        """New episodes of the environments that have an entry: their first observations."""
        pairs = {s: [(k, seeds[i]) for k, i in enumerate(s.part) if i in seeds] for s in self.servers}
        asked = [server for server in self.servers if pairs[server]]
        self.each(lambda server: server.ask("reset", {"seeds": pairs[server]}), asked)
        obs = self.each(lambda server: expect_arrays(server.answer(), obs=self._obs(len(pairs[server]))), asked)
        self.over[list(seeds)] = False
        return np.concatenate([arrays["obs"] for arrays in obs])

    def advance(self, actions: Any) -> tuple[Any, ...]:
        """One step of all, without resets: observations, rewards, terminated, truncated, and the `info` of each."""
        if self.over.any():
            raise ResetNeeded("an episode is over or has not begun, or an environment has failed: call reset() first")
        array = self._checked(actions)
        self.each(lambda server: server.ask("step", {}, action=array[server.part]))
        *arrays, infos = zip(*self.each(self._stepped), strict=True)
        obs, reward, terminated, truncated = map(np.concatenate, arrays)
        self.over = terminated | truncated
        return obs, reward, terminated, truncated, [info for part in infos for info in part]

    def close_extras(self, grace: float = GRACE, **_: Any) -> None:
        for server in self.servers:
            server.stop(grace)

    def _checked(self, actions: Any) -> np.ndarray:
        space = self.action_space
        try:
            array = np.asarray(actions, dtype=space.dtype)
        except (TypeError, ValueError):
            raise ActionError(f"actions {actions!r} are not an array of numbers of shape {space.shape}") from None
        valid = array.shape == space.shape and np.all(np.isfinite(array))
        if not valid or not (isinstance(space, Box) or space.contains(array)):
            raise ActionError(f"actions {array}: they must be finite, of shape {space.shape} and choices of {space}")
        return array

    def _obs(self, count: int) -> tuple[str, tuple[int, ...]]:
        return self.hello.observation.dtype.str, (count, *self.hello.observation.shape)

    def _stepped(self, server: Server) -> tuple[Any, ...]:
        frame, n = server.answer(), len(server.part)
        flags, infos = ("|b1", (n,)), frame.data["info"]
        a = expect_arrays(frame, obs=self._obs(n), reward=("<f8", (n,)), terminated=flags, truncated=flags)
        if len(infos) != n or not all(isinstance(x, float) for info in infos for x in info.values()):
            raise Violation(f"a step needs the `info` of {n} environments, as numbers")
        return a["obs"], a["reward"], a["terminated"], a["truncated"], infos

    def each(self, act: Callable[[Server], Any], servers: list[Server] | None = None) -> list[Any]:
        """What each server gives. All are heard before an exception in an environment is raised; else all are ended."""
        answers, failed = [], None
        for server in self.servers if servers is None else servers:
            try:
                answers.append(act(server))
            except HostedEnvironmentError as error:
                failed = failed or error
            except BaseException as error:
                reason = server.explain(error)
                self.close_extras(0.0)
                raise reason from None
        if failed is not None:
            self.over[:] = True  # some have moved on and some have not: all begin anew
            raise failed
        return answers


class BridgeEnv(gymnasium.Env):
    """One environment of another Python: a batch of one."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, batch: BridgeVectorEnv) -> None:
        self.batch, self.hello, self.spec = batch, batch.hello, batch.spec
        self.observation_space, self.action_space = self.hello.observation, self.hello.action

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        return self.batch.begin({0: seed if seed is None else int(seed)})[0], {}

    def step(self, action: Any):
        obs, reward, terminated, truncated, infos = self.batch.advance([action])
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), infos[0]

    def render(self) -> np.ndarray:
        self.batch.each(lambda server: server.ask("render", {}))
        return self.batch.each(self._picture)[0]

    def _picture(self, server: Server) -> np.ndarray:
        frame = server.answer()
        return expect_arrays(frame, picture=("|u1", (*frame.arrays["picture"].shape[:2], 3)))["picture"]

    def close(self) -> None:
        self.batch.close()
