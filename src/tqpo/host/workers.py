"""Guarded environments, each in a worker: in this process, in a process of its own, or on a Ray actor (`ray_workers`).

A worker that dies or does not answer is replaced; the others go on.
"""

import contextlib
import functools
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from tqpo.errors import EnvError
from tqpo.host.guard import Guard, successor, too_many
from tqpo.host.spec import HostSpec
from tqpo.host.transition import Fault, Transition

GRACE = 5.0  # s beyond its time-out in which a worker can still interrupt itself
START = 120.0  # s in which a worker must be up
PATIENCE = 3.0  # s for workers to close by themselves

Request = int | np.ndarray | None  # a seed to reset with, an action, or no more of them
Answer = Transition | EnvError | None  # None: not in time


class Lost(Exception):
    """A worker that cannot answer any more: says why."""


class Worker:
    """A guarded environment in this process."""

    kind = "process"  # in reports

    def __init__(self, make_guard: Callable[[], Guard]):
        self.guard = make_guard()

    def ask(self, request: Request) -> None:
        """Never fails: `answer` tells."""
        self.given = serve(self.guard, request)

    def answer(self, deadline: float) -> Answer:
        """What came of the request before the deadline, which is of the monotonic clock; or `Lost`."""
        return self.given

    def end(self, deadline: float = 0.0) -> None:
        """By force when the deadline has passed."""


def serve(guard: Guard, request: Request) -> Answer:
    """What a worker answers."""
    try:
        if isinstance(request, np.ndarray):
            return guard.step(request)
        return guard.close() if request is None else guard.reset(request)
    except EnvError as error:
        return error


def run_process(pipe: Connection, make_guard: Callable[[], Guard]) -> None:
    """A worker process: answers until it is told to end or the trainer is gone. Ctrl-C is left to the trainer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard = make_guard()
    with contextlib.suppress(EOFError, OSError):
        while (request := pipe.recv()) is not None:
            pipe.send(serve(guard, request))
    guard.close()


class Process(Worker):
    """A guarded environment in a process of its own."""

    def __init__(self, make_guard: Callable[[], Guard]):
        context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
        self.pipe, other = context.Pipe()
        arguments = (other, CloudpickleWrapper(cast(Any, make_guard)))  # a cost function may be a lambda
        self.process = context.Process(target=run_process, args=arguments, daemon=True)
        self.process.start()
        other.close()

    def ask(self, request: Request) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send(request)

    def answer(self, deadline: float) -> Answer:
        try:
            return self.pipe.recv() if self.pipe.poll(max(0.0, deadline - time.monotonic())) else None
        except (EOFError, OSError):
            self.process.join(1.0)
        code = self.process.exitcode or 0
        raise Lost(f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}")

    def end(self, deadline: float = 0.0) -> None:
        self.process.join(max(0.0, deadline - time.monotonic()))
        for end in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                end()
                self.process.join(1.0)
        self.pipe.close()


class Workers:
    """Environments in workers, which `make` starts at the first reset."""

    def __init__(self, spec: HostSpec, count: int, make: Callable[[Callable[[], Guard]], Worker]):
        self.spec, self.make, self.wait = spec, make, spec.options.timeout + GRACE
        self.faults = [0] * count
        self.seeds: Sequence[int] = ()
        self.workers: list[Worker] = []

    def _start(self, i: int) -> Worker:
        return self.make(functools.partial(Guard, self.spec, i, self.faults[i]))

    def reset(self, seeds: Sequence[int]) -> list[Transition]:
        self.seeds = seeds
        self.workers = self.workers or [self._start(i) for i in range(len(seeds))]
        return self._ask(seeds, START + self.wait)

    def step(self, actions: np.ndarray) -> list[Transition]:
        return self._ask(actions, self.wait)

    def _ask(self, requests: Iterable[Any], wait: float) -> list[Transition]:
        for worker, request in zip(self.workers, requests, strict=True):
            worker.ask(request)
        deadline = time.monotonic() + wait
        return [self._answer(i, deadline, wait) for i in range(len(self.workers))]

    def _answer(self, i: int, deadline: float, wait: float) -> Transition:
        """What worker i gave; if it was lost, the first episode of another."""
        reports: list[str] = []
        while True:
            try:
                answer = self.workers[i].answer(deadline)
                reason = f"gave no answer within {wait:g} s"
            except Lost as lost:
                answer, reason = None, str(lost)
            if isinstance(answer, EnvError):
                raise answer
            if answer is not None:
                break
            self.faults[i] += 1
            reports.append(f"environment {i}: its {self.workers[i].kind} {reason}; another begins a new episode")
            self.workers[i].end()
            if self.faults[i] > self.spec.options.restarts:
                raise too_many(reports, self.faults[i], self.spec.options.restarts)
            self.workers[i] = self._start(i)
            self.workers[i].ask(successor(self.seeds[i], self.faults[i]))
            wait = START + self.wait
            deadline = time.monotonic() + wait
        if answer.fault is not None:
            self.faults[i] = answer.fault.faults
            reports.append(answer.fault.report)
        return answer._replace(fault=Fault("\n".join(reports), self.faults[i])) if reports else answer

    def close(self) -> None:
        """Ends every worker, those that do not want to included."""
        for worker in self.workers:
            worker.ask(None)
        deadline = time.monotonic() + PATIENCE
        for worker in self.workers:
            worker.end(deadline)
