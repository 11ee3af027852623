"""Environments for the bridge's tests, in a Python that has NumPy and nothing else: spaces by name, as the server knows them."""

import os
import subprocess
import sys
import time

import numpy as np


class Box:
    def __init__(self, low, high, shape, dtype=np.float32):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)


class Discrete:
    def __init__(self, n):
        self.n = n


class Dict:
    def __init__(self, spaces):
        self.spaces = spaces


class Line:
    """Walks on a line; the cost is 1 beyond 2. Episodes are cut after 10 steps and end beyond 3. Says six values a step."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space = Box(-1, 1, (1,))

    def __init__(self, start=0.0):
        assert not {"tqpo", "gymnasium", "jax"} & set(sys.modules)
        self.start = start
        self.random = np.random.default_rng()

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.x, self.t = self.start + self.random.uniform(-0.1, 0.1), 0
        return self.obs(), {}

    def obs(self):
        return np.array([self.x, self.t])

    def step(self, action):
        self.x, self.t = self.x + float(action[0]), self.t + 1
        cost = float(abs(self.x) > 2)
        info = {"cost_line": cost, "note": "text", "cost_text": "none", "x_velocity": float(action[0])}
        return self.obs(), -abs(self.x), cost, abs(self.x) > 3, self.t >= 10, info

    def close(self):
        pass


class FiveValues(Line):
    """Discrete actions; the cost is in `info`, as a number of NumPy."""

    action_space = Discrete(3)

    def step(self, action):
        assert isinstance(action, int)
        obs, reward, cost, terminated, truncated, info = super().step([action - 1])
        return obs, reward, terminated, truncated, {**info, "cost": np.float32(cost)}


class FourValues(Line):
    """gym before 0.26: `seed()`, a reset without info, one `done`; and a dict of observations."""

    observation_space = Dict({"x": Box(-5, 5, (1,)), "odd": Discrete(2)})

    def seed(self, seed):
        self.random = np.random.default_rng(seed)

    def reset(self):
        return super().reset()[0]

    def obs(self):
        return {"x": np.array([self.x]), "odd": self.t % 2}

    def step(self, action):
        obs, reward, cost, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated or truncated, {"cost": cost, "TimeLimit.truncated": truncated and not terminated}


class Faulty(Line):
    """Fails at its third step, as it is told."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def step(self, action):
        if self.t == 2:
            if self.fault == "raise":
                raise ValueError("the wheel came off")
            if self.fault == "exit":
                print("out of fuel", file=sys.stderr, flush=True)
                os._exit(7)
            if self.fault == "hang":
                time.sleep(1000)
            if self.fault == "shape":
                self.t += 1
                return np.zeros(5), 0.0, 0.0, False, False, {}
        print("a word on stdout", flush=True)
        return super().step(action)

    def render(self):
        return np.full((4, 6, 3), 7, np.uint8)


class Slow(Line):
    """Takes a while for everything, and hangs at the third step of the copy that is told to."""

    made = 0

    def __init__(self, seconds, hanging=-1):
        super().__init__()
        self.seconds, self.hangs = seconds, Slow.made == hanging
        Slow.made += 1

    def reset(self, seed=None, options=None):
        time.sleep(self.seconds)
        return super().reset(seed=seed)

    def step(self, action):
        time.sleep(1000 if self.hangs and self.t == 2 else self.seconds)
        return super().step(action)


class Chatty(Line):
    """Writes to stdout in every way there is, and waits for a word on stdin."""

    def step(self, action):
        print("a word", flush=True)
        os.write(1, b"TQPB" + bytes(8))
        subprocess.run(["echo", "a word"], check=True)
        assert not sys.stdin.read()
        return super().step(action)


class Odd(Line):
    """Numbers that are not finite, wherever there is room for one."""

    def reset(self, seed=None, options=None):
        return np.array([np.nan, -np.inf]), {}

    def step(self, action):
        return np.array([np.inf, np.nan]), -np.inf, np.nan, False, False, {"cost_inf": np.inf}


def slow(file=None):
    """Takes too long to build; `file` is to hold the number of its process."""
    if file:
        with open(file, "w") as opened:
            opened.write(str(os.getpid()))
    time.sleep(1000)
