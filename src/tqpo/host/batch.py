"""A batch of environments on the host, stepped together, whatever goes wrong in one of them.

Each runs in a worker; a vector of the user's own runs in one, in this process. After a fault an environment is built
anew, in a new worker if the old one died or did not answer. Its episode is lost; the others go on. A broken contract
and too many faults are an `EnvError`.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from tqpo.errors import EnvError
from tqpo.host.guard import Guard
from tqpo.host.own_vector import OwnVector
from tqpo.host.spec import HostSpec
from tqpo.host.transition import Transition, Transitions, stack
from tqpo.host.workers import Fault, Lost, Process, Worker
from tqpo.references import shown
from tqpo.types import UNLIMITED

GRACE = 5.0  # s beyond its time-out in which a worker can still interrupt itself
START = 120.0  # s in which a worker must be up
PATIENCE = 3.0  # s for workers to close by themselves
ENDLESS = 10_000  # steps after which an episode is taken to have no end, where no limit is known
SEED_STEP = 1_000_003  # between the seed of an environment and its successor, so that it does not fail the same way


class Ledger:
    """The episodes under way: how long they are, and what they have cost."""

    def __init__(self, spec: HostSpec, count: int):
        self.spec = spec
        self.spent, self.t = np.zeros((count, 0)), np.zeros(count, int)

    def show(self, step: Transitions) -> Transitions:
        """Observations that show what is left of the budget, where the spec has one. Refuses an episode without an end."""
        budget, t = self.spec.budget, np.where(step.valid, self.t + 1, 0)
        over = step.ended | ~step.valid
        self.t = np.where(over, 0, t)
        if self.t.max() >= ENDLESS and self.spec.max_steps == UNLIMITED:
            raise EnvError(
                f"{shown(self.spec.task)}: an episode has not ended after {ENDLESS:,} steps: give the environment a time "
                "limit, or truncate its episodes with --max-steps"
            )
        if budget is None:
            return step
        cost = np.asarray(step.cost, np.float32)[:, list(budget.channels)]  # [N, K]
        spent = np.where(step.valid[:, None], self.spent + cost if self.spent.size else cost, np.float32(0.0))
        self.spent = np.where(over[:, None], np.float32(0.0), spent)
        return step._replace(
            obs=np.concatenate([step.obs, budget.features(self.spent, self.t)], 1),
            next_obs=np.concatenate([step.next_obs, budget.features(spent, t)], 1),
        )


class EnvBatch:
    """`count` environments of a spec. A context manager; leaving it ends every worker."""

    def __init__(self, spec: HostSpec, count: int, seed: int):
        self.spec, self.wait = spec, spec.options.timeout + GRACE
        self.size = count if spec.autoreset else 1  # environments of a worker
        self.seeds = [[(seed + i + k) % 2**31 for k in range(self.size)] for i in range(0, count, self.size)]
        self.faults = [0] * len(self.seeds)
        self.reports: list[str] = []  # of faults, until someone takes them
        self.workers: list[Worker] = []
        self.cleanup = contextlib.ExitStack()
        self.ledger = Ledger(spec, count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: Any) -> None:
        """Ends every worker, those that do not want to included."""
        with self.cleanup:
            for worker in self.workers:
                worker.leave()
            deadline = time.monotonic() + PATIENCE
            for worker in self.workers:
                worker.end(deadline)

    def reset(self) -> np.ndarray:
        """First observations [N, O]."""
        if not self.workers:
            self.make = self._maker()
            self.workers = [self._start(i) for i in range(len(self.seeds))]
        return self._ask(self.seeds, START + self.wait).obs

    def step(self, actions: np.ndarray) -> Transitions:
        """One step of each with actions [N, A] in [-1, 1]."""
        return self._ask(list(actions.reshape(len(self.workers), self.size, -1)), self.wait)

    def take_reports(self) -> list[str]:
        reports, self.reports = self.reports, []
        return reports

    def _maker(self) -> Callable[[Any], Worker]:
        """What starts a worker, as the options want it."""
        if self.spec.autoreset or self.spec.options.vector == "sync":
            return Worker
        if self.spec.options.vector == "async":
            return Process
        from tqpo.host.ray_workers import connect

        return self.cleanup.enter_context(connect(len(self.seeds)))

    def _start(self, i: int) -> Worker:
        kind, argument = (OwnVector, self.size) if self.spec.autoreset else (Guard, i)
        return self.make(functools.partial(kind, dataclasses.replace(self.spec, budget=None), argument))

    def _ask(self, requests: list[Any], wait: float) -> Transitions:
        for worker, request in zip(self.workers, requests, strict=True):
            worker.ask(request)
        deadline = time.monotonic() + wait
        rows = [row for i in range(len(self.workers)) for row in self._answer(i, deadline, wait)]
        return self.ledger.show(stack(rows))

    def _answer(self, i: int, deadline: float, wait: float) -> list[Transition]:
        """What worker i gave; after a fault, new episodes."""
        reports, kept, most = [], (), self.spec.options.restarts
        while isinstance(answer := self._hear(i, deadline, wait), Fault):
            self.faults[i] += 1
            reports.append(answer.report)
            kept = kept or answer.rows
            if self.faults[i] > most:
                advice = f"{most} restarts are allowed (--env-restarts). See what `tqpo check-env` says about it"
                reports.append(f"It failed {self.faults[i]} times; {advice}")
                raise EnvError("\n".join([f"{self.spec.task}: {reports[0]}", *reports[1:]]))
            self.workers[i].ask([(seed + SEED_STEP * self.faults[i]) % 2**31 for seed in self.seeds[i]])
            wait = START + self.wait
            deadline = time.monotonic() + wait
        if not reports:
            return answer
        self.reports.append("\n".join(reports))
        lost = [row._replace(lost=True) for row in answer]
        # a fault in the reset after it does not undo the end of an episode
        return [old._replace(obs=new.obs) if old.ended else new for old, new in zip(kept or lost, lost, strict=True)]

    def _hear(self, i: int, deadline: float, wait: float) -> list[Transition] | Fault:
        """Worker i's answer. One that is lost is replaced."""
        try:
            answer = self.workers[i].answer(deadline)
            reason = f"gave no answer within {wait:g} s"
        except Lost as lost:
            answer, reason = None, str(lost)
        if isinstance(answer, EnvError):
            raise EnvError(f"{self.spec.task}: {answer}")
        if answer is not None:
            return answer
        self.workers[i].end()
        self.workers[i] = self._start(i)
        return Fault(f"environment {i}: its {self.workers[i].kind} {reason}; another begins a new episode")
