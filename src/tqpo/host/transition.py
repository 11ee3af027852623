"""What one step gives, of one environment and of a batch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Transition(NamedTuple):
    """One step of one environment. A step that ends an episode begins the next one too."""

    obs: np.ndarray  # [O] to act on next
    next_obs: np.ndarray  # [O] before any reset
    reward: float
    cost: np.ndarray  # [C]
    terminated: bool
    truncated: bool
    valid: bool = True  # else no step happened, and an episode begins with `obs`
    lost: bool = False  # a fault took the episode that was under way

    @property
    def ended(self) -> bool:
        """This step was the last of its episode."""
        return self.terminated or self.truncated


def beginning(obs: np.ndarray, n_costs: int) -> Transition:
    """No step: an episode begins."""
    return Transition(obs, obs, 0.0, np.zeros(n_costs, np.float32), False, False, valid=False)


class Transitions(NamedTuple):
    """One step of each of N environments: a `Transition` with an axis [N] in front."""

    obs: np.ndarray  # [N, O]
    next_obs: np.ndarray  # [N, O]
    reward: np.ndarray  # [N]
    cost: np.ndarray  # [N, C]
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    valid: np.ndarray  # [N] bool
    lost: np.ndarray  # [N] bool

    @property
    def ended(self) -> np.ndarray:
        return self.valid & (self.terminated | self.truncated)


def stack(rows: Sequence[Transition]) -> Transitions:
    return Transitions(**{name: np.array([getattr(row, name) for row in rows]) for name in Transition._fields})
