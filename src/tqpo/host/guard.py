"""One environment with its contract watched, in this process or in a worker.

A fault (an exception, a hang, a number that is not finite) becomes a fact in `info`, and the environment is built anew. Keys of
`info`: `tqpo_cost` [C] of a good step; `tqpo_lost` the report of a fault, after which the observation begins a new episode;
`tqpo_fatal` the report of what no restart can mend.
"""

import contextlib
import copy
import dataclasses
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from tqpo.host import costs
from tqpo.host.spaces import Border, ContractError

SEED_STEP = 1_000_003  # between the seed of an environment and that of its successor


class Hang(BaseException):
    """Raised in the middle of a call that takes too long; not an Exception, so that few handlers swallow it."""


FAILURES = (Exception, Hang, SystemExit)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """All that a worker must know."""

    make: Callable[[], gymnasium.Env]
    border: Border
    cost_fn: Callable[..., Any] | None
    cost_names: tuple[str, ...]
    timeout: float  # s, of one call
    restarts: int  # of one environment


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raises `Hang` in a block that takes longer. Only in a main thread, where signals arrive, and not while C code holds it."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(_number, _frame):
        raise Hang(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Reading:
    """Reads steps of any form; remembers the last observation for `cost_fn`."""

    def __init__(self, border: Border, cost_fn: Callable[..., Any] | None):
        self.border, self.cost_fn = border, cost_fn
        self.last: Any = None

    def begin(self, obs: Any) -> np.ndarray:
        flat = self.border.flat(obs)
        finite("an observation", flat)
        self.last = copy.deepcopy(obs) if self.cost_fn is not None else None
        return flat

    def step(self, action: Any, result: Any) -> tuple[np.ndarray, float, dict[str, Any], bool, bool]:
        """Observation, reward, costs by name, terminated, truncated."""
        if not isinstance(result, tuple) or len(result) not in (5, 6):
            size = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise ContractError(f"step returned {size}: expected obs, reward, [cost,] terminated, truncated, info")
        obs, reward, *cost, terminated, truncated, info = result
        last, flat = self.last, self.begin(obs)
        if np.ndim(reward) and np.size(reward) != 1:
            raise ContractError(f"a reward of shape {np.shape(reward)}: expected one number")
        reward = float(np.reshape(np.asarray(reward, float), ()))
        finite("a reward", reward)
        value = cost[0] if cost else None
        if self.cost_fn is not None:
            value = self.cost_fn(last, action, obs, info)
        return flat, reward, costs.named(value, info, self.cost_fn is not None), bool(terminated), bool(truncated)


def finite(what: str, value: Any) -> None:
    if not np.all(np.isfinite(value)):
        raise FloatingPointError(f"{what} that is not finite")


class Guard(gymnasium.Env):
    """The environment of a plan, `index` of its batch, with flat observations and actions in [-1, 1]."""

    def __init__(self, plan: Plan, index: int, faults: int = 0):
        self.plan, self.index, self.faults = plan, index, faults
        border = plan.border
        self.observation_space = Box(-np.inf, np.inf, (border.obs_size,), np.float32)
        self.action_space = Box(-1.0, 1.0, (border.action_size,), np.float32)
        self.reading = Reading(border, plan.cost_fn)
        self.env: gymnasium.Env | None = None  # built at the first reset, where a failure can be told
        self.seed: int | None = None
        self.steps = self.episode_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self.seed = self.seed if seed is None else seed
        return self._begin(seed, [])

    def step(self, action: np.ndarray):
        self.steps, self.episode_steps = self.steps + 1, self.episode_steps + 1
        try:
            assert self.env is not None
            taken = self.plan.border.action(action)
            with alarm(self.plan.timeout):
                result = self.env.step(taken)
                flat, reward, found, terminated, truncated = self.reading.step(taken, result)
            cost = costs.channels(found, self.plan.cost_names)
        except ContractError as error:
            return self._empty(), 0.0, False, False, {"tqpo_fatal": self._where(str(error))}
        except FAILURES as error:
            obs, info = self._begin(None, [self._fault(error)])
            return obs, 0.0, False, False, info
        return flat, reward, terminated, truncated, {"tqpo_cost": cost}

    def _begin(self, seed: int | None, reports: list[str]) -> tuple[np.ndarray, dict[str, Any]]:
        """A fresh episode, after as many faults as `reports`; of a new environment where the old one failed."""
        while self.faults <= self.plan.restarts:
            try:
                with alarm(self.plan.timeout):
                    if self.env is None:
                        self.env = self.plan.make()
                        seed = self._fresh_seed() if seed is None else seed
                    obs, _ = self.env.reset(seed=seed)
                    flat = self.reading.begin(obs)
                self.episode_steps = 0
                return flat, {"tqpo_lost": "\n".join(reports), "tqpo_faults": self.faults} if reports else {}
            except ContractError as error:
                return self._empty(), {"tqpo_fatal": self._where(f"after reset: {error}")}
            except FAILURES as error:
                reports.append(self._fault(error))
                seed = None
        report = "\n".join(reports)
        return self._empty(), {"tqpo_fatal": f"{report}\nIt failed {self.faults} times; {limit(self.plan.restarts)}"}

    def _fresh_seed(self) -> int | None:
        """Not the first one again, lest the same episode fail the same way."""
        return None if self.seed is None else (self.seed + SEED_STEP * (self.faults + self.steps)) % 2**31

    def _fault(self, error: BaseException) -> str:
        """Counts a fault, drops the environment; the report."""
        self.faults += 1
        with contextlib.suppress(*FAILURES), alarm(min(self.plan.timeout, 5.0)):
            if self.env is not None:
                self.env.close()
        self.env = None
        trace = "".join(traceback.format_exception(error)).rstrip()
        return self._where(f"{type(error).__name__}: {error}\n{trace}")

    def _where(self, text: str) -> str:
        return f"environment {self.index}, step {self.steps} (step {self.episode_steps} of its episode): {text}"

    def _empty(self) -> np.ndarray:
        return np.zeros(self.plan.border.obs_size, np.float32)

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


def in_worker(trainer: int, plan: Plan, index: int, faults: int) -> Guard:
    """A guarded environment in a process of its own, which leaves Ctrl-C to the process `trainer`."""
    if os.getpid() != trainer:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Guard(plan, index, faults)


def limit(restarts: int) -> str:
    """What to do when there were too many faults."""
    return f"{restarts} restarts are allowed (--env-restarts). See what `tqpo check-env` says about it"
