"""One environment with its contract watched: flat observations, actions in [-1, 1], a cost in every step.

What an environment may never do is a `ContractError`. Anything else that goes wrong is a fault (an exception, a hang, a
number that is not finite), after which it can be built anew.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tqpo.host import costs
from tqpo.host.spaces import ContractError, finite
from tqpo.host.spec import HostSpec
from tqpo.host.transition import Transition, beginning


class Hang(BaseException):
    """Raised in the middle of a call that takes too long; not an Exception, so that few handlers swallow it."""


FAILURES = (Exception, Hang, SystemExit)


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raises `Hang` in a block that takes longer.

    Only in a main thread, where signals arrive, and not while C code holds it.
    """
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


def parts(result: Any) -> tuple[Any, float, Any, bool, bool, dict[str, Any]]:
    """Observation, reward, cost or None, terminated, truncated and info of what a `step` returned."""
    if not isinstance(result, tuple) or len(result) not in (5, 6):
        size = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise ContractError(f"step returned {size}: expected obs, reward, [cost,] terminated, truncated, info")
    obs, reward, *cost, terminated, truncated, info = result
    if np.ndim(reward) and np.size(reward) != 1:
        raise ContractError(f"a reward of shape {np.shape(reward)}: expected one number")
    reward = float(np.reshape(np.asarray(reward, float), ()))
    finite("a reward", reward)
    return obs, reward, cost[0] if cost else None, bool(terminated), bool(truncated), info


class Guard:
    """Environment `index` of a batch."""

    def __init__(self, spec: HostSpec, index: int):
        self.spec, self.index, self.timeout = spec, index, spec.options.timeout
        self.env: Any = None  # built at the first reset, and anew after a fault
        self.obs: Any = None  # as `cost_fn` sees it
        self.costs: dict[str, Any] = {}  # by name, of the last step
        self.steps = self.episode_steps = 0

    def where(self) -> str:
        """For reports."""
        return f"environment {self.index}, step {self.steps} (step {self.episode_steps} of its episode)"

    def reset(self, seeds: Sequence[int | None]) -> list[Transition]:
        """Fresh episodes, as transitions that are not valid steps."""
        self.episode_steps = 0
        if self.env is None:
            self.env = self.spec.make()
        obs, _ = self.env.reset(seed=seeds[0])
        self.obs = self.spec.keep(obs)
        return [beginning(self.spec.border.flat(obs), len(self.spec.cost_names))]

    def step(self, actions: np.ndarray) -> list[Transition]:
        """One step with actions [1, A]; where that ends an episode, `renew` must follow."""
        self.steps, self.episode_steps = self.steps + 1, self.episode_steps + 1
        before, taken = self.obs, self.spec.border.action(actions[0])
        obs, reward, cost, terminated, truncated, info = parts(self.env.step(taken))
        truncated = truncated or (self.episode_steps == self.spec.options.max_steps and not terminated)
        flat, self.obs = self.spec.border.flat(obs), self.spec.keep(obs)
        self.costs = costs.read(self.spec.cost_function, before, taken, obs, info, cost)
        channels = costs.channels(self.costs, self.spec.cost_names)
        return [Transition(flat, flat, reward, channels, terminated, truncated)]

    def renew(self, rows: list[Transition]) -> list[Transition]:
        """Begins the next episode after one that ended."""
        return [rows[0]._replace(obs=self.reset([None])[0].obs)]
