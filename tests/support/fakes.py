"""Gymnasium environments with known answers, and one for each fault; factories `fakes:NAME`."""

import functools
import os
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Counter(gymnasium.Env):
    """obs (name, t), name a random number of the episode; reward t; cost 1; every third episode is truncated after 4 steps,
    the others terminate after 2 or 3."""

    render_mode = None

    def __init__(self, action_space=None):
        self.observation_space = Box(-np.inf, np.inf, (2,))
        self.action_space = action_space or Box(-2.0, 6.0, (1,))
        self.episode, self.t = -1, 0

    def observe(self):
        return np.array([self.name, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.name, self.t, self.episode = self.np_random.uniform(), 0, self.episode + 1
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        length = 2 + self.episode % 3
        over = self.t >= length
        return self.observe(), self.t - 1.0, over and length < 4, over and length == 4, self.info(action)

    def info(self, action):
        return {"cost": 1.0}


class Reusing(Counter):
    """Its observations are one array, overwritten in every step."""

    def observe(self):
        self.memory = getattr(self, "memory", np.zeros(2, np.float32))
        self.memory[:] = super().observe()
        return self.memory


class Endless(Counter):
    """No episode ends by itself; limited to 50 steps by `long`."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class Faulty(Endless):
    """Something goes wrong in the `at`-th step of an episode, in the first `times` environments that are made (in this process)."""

    made = 0

    def __init__(self, fault: str, at: int = 3, times: int = 10**9):
        super().__init__()
        self.fault, self.at = fault, at
        Faulty.made += 1
        self.bad = Faulty.made <= times

    def step(self, action):  # noqa: PLR0912  (a table of faults)
        obs, reward, terminated, truncated, info = super().step(action)
        if not self.bad or self.t != self.at:
            return obs, reward, terminated, truncated, info
        match self.fault:
            case "raises":
                raise ValueError("a broken spring")
            case "exits":
                raise SystemExit(3)
            case "hangs":
                time.sleep(100)
            case "dies":
                os._exit(7)
            case "nan obs":
                obs = np.array([np.nan, 0.0], np.float32)
            case "nan reward":
                reward = np.nan
            case "inf cost":
                info = {"cost": np.inf}
            case "negative cost":
                info = {"cost": -1.0}
            case "missing cost":
                info = {}
            case "text cost":
                info = {"cost": "much"}
            case "wrong shape":
                obs = np.zeros(3, np.float32)
            case "array reward":
                reward = np.zeros(2)
            case "four values":
                return obs, reward, terminated, info
        return obs, reward, terminated, truncated, info


class EarlyFaulty(Faulty):
    """Those that look for the spec raise, and one more."""

    def __init__(self):
        super().__init__("raises", times=3)


class AlwaysFaulty(Faulty):
    def __init__(self):
        super().__init__("raises")


def faulty(fault="raises", at=3, times=10**9, limit=20):
    return gymnasium.wrappers.TimeLimit(Faulty(fault, at, times), limit)


def first(path):
    """Whether nobody called this before, in any process."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def stubborn(path):
    """Dies once, in the process that is first: a file remembers."""

    class Dies(Endless):
        def step(self, action):
            if self.t == 3 and first(path):
                os._exit(7)
            return super().step(action)

    return gymnasium.wrappers.TimeLimit(Dies(), 20)


def sleepy(path):
    """Sleeps for ever once, deaf to its alarm."""

    class Sleeps(Endless):
        def step(self, action):
            if self.t == 3 and first(path):
                import signal

                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
                time.sleep(1000)
            return super().step(action)

    return gymnasium.wrappers.TimeLimit(Sleeps(), 20)


def unbuildable():
    raise OSError("no licence file")


def long(limit=50):
    return gymnasium.wrappers.TimeLimit(Endless(), limit)


def costless():
    env = Counter()
    env.info = lambda action: {}
    return env


class SixTuple(Counter):
    """As Safety-Gymnasium's: the cost is the third value."""

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, 2.0, terminated, truncated, {"cost_hazards": 2.0}


class Named(Counter):
    """Two named costs, no total."""

    def info(self, action):
        return {"cost_energy": float(np.sum(np.square(action))), "cost_noise": 1.0}


class ByDict(Counter):
    """Costs as a dict, with a total that is not their sum."""

    def info(self, action):
        return {"cost": {"cost": 5.0, "energy": 1.0}}


class Parts(Counter):
    """Observations are a dict of a vector, a choice and switches."""

    def __init__(self):
        super().__init__()
        self.observation_space = Dict({"at": Box(-1, 1, (2, 2)), "kind": Discrete(3), "on": MultiBinary(2)})

    def observe(self):
        return {"at": np.full((2, 2), 0.5), "kind": np.int64(self.t % 3), "on": np.array([1, 0], np.int8)}


def choice():
    """Four actions, counted from 10."""
    return Counter(Discrete(4, start=10))


def unbounded():
    return Counter(Box(-np.inf, np.inf, (1,)))


def vector(num_envs, mode="NextStep", env="Counter"):
    """A user's own vector."""
    makers = [functools.partial(globals()[env]) for _ in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode(mode))


def modeless(num_envs):
    vectors = vector(num_envs)
    vectors.metadata = {}
    return vectors


def stingy(num_envs):
    return vector(2)


class Unsteady(SyncVectorEnv):
    """Environment i's episodes last 2 + i steps; the first reset of some of them raises, once."""

    failed = False

    def __init__(self, num_envs):
        lasting = [functools.partial(gymnasium.wrappers.TimeLimit, Endless(), 2 + i) for i in range(num_envs)]
        super().__init__(lasting, autoreset_mode=AutoresetMode.DISABLED)

    def reset(self, *, seed=None, options=None):
        if options is not None and not Unsteady.failed:
            Unsteady.failed = True
            raise OSError("a loose wire")
        return super().reset(seed=seed, options=options)


def unsteady(num_envs):
    return Unsteady(num_envs)


class Drawn(Endless):
    """Ends after 5 steps; a picture shows how many were taken."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self.t == 5, False, info

    def render(self):
        return np.full((2, 2, 3), self.t, np.uint8)


class Target(gymnasium.Env):
    """One step: obs ±1; the right action, of two, is 1 where obs is positive and pays 1; the wrong one costs 1."""

    render_mode = None

    def __init__(self):
        self.observation_space, self.action_space = Box(-1, 1, (1,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sign = float(self.np_random.choice([-1.0, 1.0]))
        return np.array([self.sign], np.float32), {}

    def step(self, action):
        right = (action == 1) == (self.sign > 0)
        return np.array([self.sign], np.float32), float(right), True, False, {"cost": float(not right)}


def energy(obs, action, next_obs, info):
    """A `cost_fn`: the time that passed, and the action squared."""
    return {"time": float(next_obs[1] - obs[1]), "energy": float(np.sum(np.square(action)))}


def nothing(obs, action, next_obs, info):
    return None


def effort(obs, action, next_obs, info):
    """What an action costs: its size."""
    return float(np.abs(action).sum())


def effort_in_small_units(obs, action, next_obs, info):
    return 1024 * effort(obs, action, next_obs, info)


class Picture(Counter):
    """A picture of 8 × 8 pixels in three colours, brighter from step to step."""

    def __init__(self):
        super().__init__()
        self.observation_space = Box(0, 255, (8, 8, 3), np.uint8)

    def observe(self):
        return np.full((8, 8, 3), 40 * self.t, np.uint8)


class Locks(Counter):
    """Two dials with 2 and 3 positions, numbered from 0 and from 5; each earns 1 at its last position."""

    def __init__(self):
        super().__init__(MultiDiscrete([2, 3], start=[0, 5]))

    def step(self, action):
        assert self.action_space.contains(action), action
        obs, _, *rest = super().step(action)
        return obs, float(action[0] == 1) + float(action[1] == 7), *rest
