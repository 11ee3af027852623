"""One environment with its contract watched, in this process or in a worker.

A fault (an exception, a hang, a number that is not finite) costs the episode under way, and the environment is built anew. A broken
contract and too many faults are an `EnvError`.
"""

import contextlib
import functools
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tqpo.errors import EnvError
from tqpo.host import costs
from tqpo.host.spaces import Border, ContractError, finite
from tqpo.host.spec import HostSpec
from tqpo.host.transition import Fault, Transition, beginning

SEED_STEP = 1_000_003  # between the seed of an environment and that of its successor


class Hang(BaseException):
    """Raised in the middle of a call that takes too long; not an Exception, so that few handlers swallow it."""


FAILURES = (Exception, Hang, SystemExit)


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


def read_step(
    border: Border, cost_fn: Callable[..., Any] | None, obs: Any, action: Any, result: Any
) -> tuple[np.ndarray, float, dict[str, Any], bool, bool]:
    """Flat observation, reward, costs by name, terminated, truncated of a step of any form; `obs` is the one before it."""
    if not isinstance(result, tuple) or len(result) not in (5, 6):
        size = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise ContractError(f"step returned {size}: expected obs, reward, [cost,] terminated, truncated, info")
    next_obs, reward, *cost, terminated, truncated, info = result
    flat = border.flat(next_obs)
    if np.ndim(reward) and np.size(reward) != 1:
        raise ContractError(f"a reward of shape {np.shape(reward)}: expected one number")
    reward = float(np.reshape(np.asarray(reward, float), ()))
    finite("a reward", reward)
    by_name = costs.read(cost_fn, obs, action, next_obs, info, *cost)
    return flat, reward, by_name, bool(terminated), bool(truncated)


class Watched:
    """A user's environment or vector: built when it is first needed, and anew after a fault."""

    def __init__(self, spec: HostSpec, timeout: float, faults: int = 0):
        self.spec, self.timeout, self.faults = spec, timeout, faults
        self.env: Any = None
        self.seed = self.steps = 0

    def where(self) -> str:
        """For reports."""
        raise NotImplementedError

    def begin(self, seed: int | None, fault: Fault | None = None) -> Any:
        """Fresh episodes, told as steps that did not happen."""
        raise NotImplementedError

    def watch(self, call: Callable[[], Any]) -> Any:
        """What a call gives; if it fails, fresh episodes of a new environment."""
        reports: list[str] = []
        while True:
            try:
                with alarm(self.timeout):
                    return call()
            except ContractError as error:
                raise EnvError(f"{self.where()}: {error}") from error
            except FAILURES as error:
                trace = "".join(traceback.format_exception(error)).rstrip()
                reports.append(f"{self.where()}: {type(error).__name__}: {error}\n{trace}")
            self.close()
            self.faults += 1
            if self.faults > self.spec.options.restarts:
                raise too_many(reports, self.faults, self.spec.options.restarts)
            seed = successor(self.seed, self.faults)
            call = functools.partial(self.begin, seed, Fault("\n".join(reports), self.faults))

    def close(self) -> None:
        """Never fails: it may have failed already."""
        env, self.env = self.env, None
        with contextlib.suppress(*FAILURES), alarm(min(self.timeout, 5.0)):
            if env is not None:
                env.close()


class Guard(Watched):
    """Environment `index` of a batch, with flat observations and actions in [-1, 1]."""

    def __init__(self, spec: HostSpec, index: int, faults: int = 0):
        super().__init__(spec, spec.options.timeout, faults)
        self.index, self.episode_steps = index, 0
        self.obs: Any = None  # as `cost_fn` sees it

    def where(self) -> str:
        return f"environment {self.index}, step {self.steps} (step {self.episode_steps} of its episode)"

    def reset(self, seed: int) -> Transition:
        self.seed = seed
        return self.watch(lambda: self.begin(seed))

    def step(self, action: np.ndarray) -> Transition:
        self.steps, self.episode_steps = self.steps + 1, self.episode_steps + 1
        row = self.watch(lambda: self._step(action))
        if not (row.terminated or row.truncated):
            return row
        fresh = self.watch(lambda: self.begin(None))  # a fault in it does not undo the step
        return row._replace(obs=fresh.obs, fault=fresh.fault)

    def begin(self, seed: int | None, fault: Fault | None = None) -> Transition:
        self.episode_steps = 0
        if self.env is None:
            self.env = self.spec.make()
        obs, _ = self.env.reset(seed=seed)
        self.obs = self.spec.keep(obs)
        return beginning(self.spec.border.flat(obs), len(self.spec.cost_names), fault)

    def _step(self, action: np.ndarray) -> Transition:
        spec, taken = self.spec, self.spec.border.action(action)
        result = self.env.step(taken)
        flat, reward, by_name, terminated, truncated = read_step(
            spec.border, spec.cost_function, self.obs, taken, result
        )
        self.obs = self.spec.keep(result[0])
        return Transition(flat, flat, reward, costs.channels(by_name, spec.cost_names), terminated, truncated)


def successor(seed: int, faults: int) -> int:
    """Not the first seed again, lest the same episode fail the same way."""
    return (seed + SEED_STEP * faults) % 2**31


def too_many(reports: list[str], faults: int, restarts: int) -> EnvError:
    advice = f"{restarts} restarts are allowed (--env-restarts). See what `tqpo check-env` says about it"
    return EnvError("\n".join([*reports, f"It failed {faults} times; {advice}"]))
