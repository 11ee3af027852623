"""What one step gives, of one environment and of a batch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Fault(NamedTuple):
    """Something went wrong in an environment, and it was restarted."""

    report: str  # where and what; empty where another environment's report says it
    faults: int  # of this environment so far


class Transition(NamedTuple):
    """One step of one environment. A step that ends an episode begins the next one too."""

    obs: np.ndarray  # [O] to act on next
    next_obs: np.ndarray  # [O] before any reset
    reward: float
    cost: np.ndarray  # [C]
    terminated: bool
    truncated: bool
    valid: bool = True  # else nothing happened, but that an episode begins with `obs`
    fault: Fault | None = None


def beginning(obs: np.ndarray, n_costs: int, fault: Fault | None = None) -> Transition:
    """No step: an episode begins. After a fault, the one under way is lost."""
    return Transition(obs, obs, 0.0, np.zeros(n_costs, np.float32), False, False, False, fault)


class Transitions(NamedTuple):
    """One step of each of N environments."""

    obs: np.ndarray  # [N, O] to act on next
    next_obs: np.ndarray  # [N, O] before any reset
    reward: np.ndarray  # [N]
    cost: np.ndarray  # [N, C]
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    valid: np.ndarray  # [N] bool: a step happened; else an episode begins with `obs`
    lost: np.ndarray  # [N] bool: a fault took the episode that was under way

    @property
    def ended(self) -> np.ndarray:
        """[N] bool: this step was the last of its episode."""
        return self.valid & (self.terminated | self.truncated)


def stack(rows: Sequence[Transition]) -> Transitions:
    return Transitions(
        obs=np.stack([row.obs for row in rows]),
        next_obs=np.stack([row.next_obs for row in rows]),
        reward=np.array([row.reward for row in rows], float),
        cost=np.stack([row.cost for row in rows]),
        terminated=np.array([row.terminated for row in rows], bool),
        truncated=np.array([row.truncated for row in rows], bool),
        valid=np.array([row.valid for row in rows], bool),
        lost=np.array([row.fault is not None and not row.valid for row in rows], bool),
    )
