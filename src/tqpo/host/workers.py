"""Where environments run: in this process, or each in a process of its own. `ray_workers` has a third."""

import contextlib
import multiprocessing
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from tqpo.errors import EnvError
from tqpo.host.guard import FAILURES, Guard, alarm
from tqpo.host.own_vector import OwnVector
from tqpo.host.spaces import ContractError
from tqpo.host.transition import Transition


class Fault(NamedTuple):
    """What went wrong; a new environment may do better."""

    report: str
    rows: Sequence[Transition] = ()  # the steps before it, if the reset after them failed


class Lost(Exception):
    """A worker that cannot answer any more: says why."""


Unit = Guard | OwnVector  # what a worker runs
Request = list[int] | np.ndarray  # seeds to reset with, or actions [n, A]
Answer = list[Transition] | Fault | EnvError | None  # None: not in time


def serve(unit: Unit, request: Request) -> Answer:
    """What came of a request."""
    rows: list[Transition] = []
    try:
        with alarm(unit.timeout):
            rows = unit.step(request) if isinstance(request, np.ndarray) else unit.reset(request)
        if not any(row.ended for row in rows):
            return rows
        with alarm(unit.timeout):
            return unit.renew(rows)
    except ContractError as error:
        return EnvError(f"{unit.where()}: {error}")
    except FAILURES as error:
        trace = "".join(traceback.format_exception(error)).rstrip()
        close(unit)
        return Fault(f"{unit.where()}: {type(error).__name__}: {error}\n{trace}", rows)


def close(unit: Unit) -> None:
    """Drops its environment. Never fails: that may have failed already."""
    env, unit.env = unit.env, None
    with contextlib.suppress(*FAILURES), alarm(min(unit.timeout, 5.0)):
        if env is not None:
            env.close()


class Worker:
    """Runs one unit in this process."""

    kind = "process"  # in reports

    def __init__(self, make_unit: Callable[[], Unit]):
        self.unit = make_unit()

    def ask(self, request: Request) -> None:
        """Never fails: `answer` tells."""
        self.given = serve(self.unit, request)

    def answer(self, deadline: float) -> Answer:
        """What came of the request before the deadline, which is of the monotonic clock; or `Lost`."""
        return self.given

    def leave(self) -> None:
        """Asks it to end."""

    def end(self, deadline: float = 0.0) -> None:
        """By force when the deadline has passed."""
        close(self.unit)


def run_process(pipe: Connection, make_unit: Callable[[], Unit]) -> None:
    """A worker process: answers until it gets None or the trainer is gone. Ctrl-C is left to the trainer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unit = make_unit()
    with contextlib.suppress(EOFError, OSError):
        while (request := pipe.recv()) is not None:
            pipe.send_bytes(pickle.dumps(serve(unit, request)))  # quicker than `send`
    close(unit)


class Process(Worker):
    """Runs it in a process of its own."""

    def __init__(self, make_unit: Callable[[], Unit]):
        context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
        self.pipe, other = context.Pipe()
        arguments = (other, CloudpickleWrapper(cast(Any, make_unit)))  # a cost function may be a lambda
        self.process = context.Process(target=run_process, args=arguments, daemon=True)
        try:
            self.process.start()
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise EnvError(f"it cannot be sent to another process ({error}): use vector = sync, its default") from None
        other.close()

    def ask(self, request: Request | None) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(pickle.dumps(request))

    def answer(self, deadline: float) -> Answer:
        try:
            return self.pipe.recv() if self.pipe.poll(max(0.0, deadline - time.monotonic())) else None
        except (EOFError, OSError):
            self.process.join(1.0)
        code = self.process.exitcode or 0
        raise Lost(f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}")

    def leave(self) -> None:
        self.ask(None)

    def end(self, deadline: float = 0.0) -> None:
        self.process.join(max(0.0, deadline - time.monotonic()))
        for end in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                end()
                self.process.join(1.0)
        self.pipe.close()
