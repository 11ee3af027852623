"""A batch of environments on the host, stepped together, whatever their autoreset mode and whatever goes wrong in one of them.

Ours are Gymnasium's vectors of guarded environments. A worker process that dies or does not answer costs every environment of its
batch the episode it was in: the batch is built anew.
"""

import functools
import multiprocessing
import os
import signal
import time
from typing import Any, NamedTuple, Self

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from tqpo.errors import EnvError
from tqpo.host.guard import SEED_STEP, Guard, in_worker, limit
from tqpo.host.spec import HostSpec

GRACE = 5.0  # s beyond its time-out in which a worker can still interrupt itself
PATIENCE = 3.0  # s for workers to close by themselves
DEATHS = (EOFError, BrokenPipeError, ConnectionResetError)


class Tick(NamedTuple):
    """What one action of each environment gave."""

    valid: (
        np.ndarray
    )  # [N] bool: a transition happened; else the rest of its row says nothing, and its episode begins anew
    obs: np.ndarray  # [N, O] to act on next
    next_obs: np.ndarray  # [N, O] before any reset
    reward: np.ndarray  # [N]
    cost: np.ndarray  # [N, C]
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    lost: np.ndarray  # [N] bool: the episode under way was lost to a fault


class Hosts:
    """`count` environments of a spec. A context manager; leaving it ends every worker."""

    def __init__(self, spec: HostSpec, count: int, seed: int):
        self.spec, self.count, self.seed = spec, count, seed
        self.faults = np.zeros(count, int)
        self.reports: list[str] = []  # of faults, until someone takes them
        self.builds = 0
        self.vector: VectorEnv | None = None
        self.resetting = np.zeros(count, bool)  # next step only resets

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: Any) -> None:
        self.close()

    def reset(self) -> np.ndarray:
        """First observations [N, O]; builds the batch if there is none."""
        while True:
            try:
                if self.vector is None:
                    self.vector = self._build()
                seeds = [(self.seed + i + SEED_STEP * self.builds) % 2**31 for i in range(self.count)]
                obs, infos = self._reset(seed=seeds)
                break
            except (*DEATHS, multiprocessing.TimeoutError) as error:
                self._mourn(error)
        self._heed(infos)
        self.resetting[:] = False
        return np.array(obs, np.float32)

    def tick(self, actions: np.ndarray) -> Tick:
        """One step of each with actions [N, A]."""
        assert self.vector is not None
        try:
            if isinstance(self.vector, AsyncVectorEnv):
                self.vector.step_async(actions)
                seen = self.vector.step_wait(self._wait)
            else:
                seen = self.vector.step(actions)
            return self._settle(*seen)
        except (*DEATHS, multiprocessing.TimeoutError) as error:
            self._mourn(error)
            return nothing(self.reset(), len(self.spec.cost_names))

    def _settle(self, obs: np.ndarray, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, infos: dict):
        """A vector's step in any autoreset mode as one tick."""
        assert self.vector is not None
        lost = self._heed(infos)
        ended = terminated | truncated
        mode = self.vector.metadata["autoreset_mode"]
        cost = np.zeros((self.count, len(self.spec.cost_names)), np.float32)
        fill(cost, infos, "tqpo_cost")
        obs = np.array(obs, np.float32)
        next_obs = obs.copy()
        valid = ~lost & ~self.resetting
        if mode == AutoresetMode.SAME_STEP and ended.any():
            fill(next_obs, infos, "final_obs")
            fill(cost, infos["final_info"], "tqpo_cost")
            valid |= ended  # a fault in the reset after it does not undo a step
        elif mode == AutoresetMode.NEXT_STEP:
            self.resetting = ended
        elif mode == AutoresetMode.DISABLED and ended.any():
            fresh, infos = self._reset(options={"reset_mask": ended})
            lost |= self._heed(infos)
            obs = np.array(fresh, np.float32)
        return Tick(valid, obs, next_obs, reward, cost, terminated, truncated, lost & ~ended)

    def _heed(self, infos: dict) -> np.ndarray:
        """Notes faults, raises what is fatal; whose episode is lost, [N]."""
        parts = [infos, infos.get("final_info", {})]
        for part in parts:
            for i in np.flatnonzero(part.get("_tqpo_fatal", ())):
                raise EnvError(f"{self.spec.task}: {part['tqpo_fatal'][i]}")
        lost = np.zeros(self.count, bool)
        for part in parts:
            for i in np.flatnonzero(part.get("_tqpo_lost", ())):
                if part["tqpo_lost"][i]:
                    self.reports.append(part["tqpo_lost"][i])
                self.faults[i] = part["tqpo_faults"][i]
                lost[i] = True
        return lost

    @property
    def _wait(self) -> float:
        return self.spec.hosting.timeout + GRACE

    def _reset(self, **options: Any) -> tuple[np.ndarray, dict]:
        assert self.vector is not None
        if isinstance(self.vector, AsyncVectorEnv):
            self.vector.reset_async(**options)
            return self.vector.reset_wait(self._wait * 2)  # the first reset builds
        return self.vector.reset(**options)

    def _build(self) -> VectorEnv:
        plan, hosting = self.spec.plan(), self.spec.hosting
        if self.spec.own_vector:
            from tqpo.host.own_vector import OwnVector

            return OwnVector(self.spec, plan, self.count, self.faults)
        if hosting.vector == "ray":
            from tqpo.host.ray_vector import RayVector

            return RayVector(plan, self.count, self.faults, self._wait)
        make = Guard if hosting.vector == "sync" else functools.partial(in_worker, os.getpid())
        makers = [functools.partial(make, plan, i, int(self.faults[i])) for i in range(self.count)]
        mode = AutoresetMode(hosting.autoreset)
        if hosting.vector == "sync":
            return SyncVectorEnv(makers, copy=False, autoreset_mode=mode)
        # JAX has threads, which a fork would lose
        return AsyncVectorEnv(makers, context="spawn", copy=False, autoreset_mode=mode)

    def _mourn(self, error: BaseException) -> None:
        """After a worker died or hung: finds it, counts and reports, ends the batch."""
        vector, hung = self.vector, isinstance(error, multiprocessing.TimeoutError)
        blamed = []
        if isinstance(vector, AsyncVectorEnv):
            for i, (pipe, process) in enumerate(zip(vector.parent_pipes, vector.processes, strict=True)):
                if not hung:
                    process.join(0.2)
                if (hung and not pipe.poll(0)) or not process.is_alive():
                    blamed.append((i, f"gave no answer within {self._wait:g} s" if hung else died(process.exitcode)))
        self.close()
        for i, what in blamed or [(0, f"was lost: {type(error).__name__}: {error}")]:
            self.faults[i] += 1
            report = f"environment {i}: its process {what}; all {self.count} environments begin new episodes"
            if self.faults[i] > self.spec.hosting.restarts:
                raise EnvError(f"{self.spec.task}: {report}\n{limit(self.spec.hosting.restarts)}") from error
            self.reports.append(report)
        self.builds += 1

    def take_reports(self) -> list[str]:
        reports, self.reports = self.reports, []
        return reports

    def close(self) -> None:
        """Ends every environment and every process, those that do not want to included."""
        vector, self.vector = self.vector, None
        if isinstance(vector, AsyncVectorEnv):
            shut(vector)
        elif vector is not None:
            vector.close()


def fill(rows: np.ndarray, infos: dict, key: str) -> None:
    """Puts what some environments gave under a key into their rows."""
    for i in np.flatnonzero(infos.get(f"_{key}", ())):
        rows[i] = infos[key][i]


def nothing(obs: np.ndarray, n_costs: int) -> Tick:
    """A tick in which all were lost; `obs` begin new episodes."""
    n = len(obs)
    no = np.zeros(n, bool)
    return Tick(no, obs, obs, np.zeros(n), np.zeros((n, n_costs), np.float32), no, no, ~no)


def died(code: int | None) -> str:
    if code is not None and code < 0:
        return f"died of {signal.Signals(-code).name}"
    return f"ended with exit status {code}"


def shut(vector: AsyncVectorEnv) -> None:
    """Asks the workers to close, and ends those that do not."""
    for pipe in vector.parent_pipes:
        try:
            pipe.send(("close", None))
        except (*DEATHS, OSError, AttributeError):
            continue
    deadline = time.monotonic() + PATIENCE
    for process in vector.processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for end in ("terminate", "kill"):
        for process in vector.processes:
            if process.is_alive():
                getattr(process, end)()
        for process in vector.processes:
            process.join(1.0)
    for pipe in vector.parent_pipes:
        if pipe is not None:
            pipe.close()
    vector.closed = True
