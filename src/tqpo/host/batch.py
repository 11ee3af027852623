"""A batch of environments on the host, stepped together, whatever goes wrong in one of them."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from tqpo.errors import EnvError
from tqpo.host.own_vector import OwnVector
from tqpo.host.spec import HostSpec
from tqpo.host.transition import Transition, Transitions, stack
from tqpo.host.workers import Process, Worker, Workers


def make_vector(spec: HostSpec, count: int) -> Workers | OwnVector:
    """As the spec's options want it."""
    if spec.autoreset:
        return OwnVector(spec, count)
    if spec.options.vector == "ray":
        from tqpo.host.ray_workers import RayWorkers

        return RayWorkers(spec, count)
    return Workers(spec, count, Worker if spec.options.vector == "sync" else Process)


class EnvBatch:
    """`count` environments of a spec. A context manager; leaving it ends every worker."""

    def __init__(self, spec: HostSpec, count: int, seed: int):
        self.spec, self.count, self.seed = spec, count, seed
        self.vector = make_vector(spec, count)
        self.reports: list[str] = []  # of faults, until someone takes them

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: Any) -> None:
        self.vector.close()

    def reset(self) -> np.ndarray:
        """First observations [N, O]."""
        return self._call(self.vector.reset, [(self.seed + i) % 2**31 for i in range(self.count)]).obs

    def step(self, actions: np.ndarray) -> Transitions:
        """One step of each with actions [N, A] in [-1, 1]."""
        return self._call(self.vector.step, actions)

    def _call(self, method: Callable[[Any], list[Transition]], argument: Any) -> Transitions:
        try:
            rows = method(argument)
        except EnvError as error:
            raise EnvError(f"{self.spec.task}: {error}") from error
        self.reports += [row.fault.report for row in rows if row.fault and row.fault.report]
        return stack(rows)

    def take_reports(self) -> list[str]:
        reports, self.reports = self.reports, []
        return reports
