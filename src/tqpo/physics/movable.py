"""Free boxes welded to moving targets (interim: the model and the state only)."""

from dataclasses import dataclass
from typing import NamedTuple

from tqpo.types import Array


@dataclass(frozen=True)
class BoxModel:
    half_size: float = 0.1  # m
    density: float = 0.001  # kg/m³
    weld_timeconst: float = 0.02  # s
    weld_dampratio: float = 1.5


class Boxes(NamedTuple):
    pos: Array  # [G, 3] m
    quat: Array  # [G, 4]
    vel: Array  # [G, 6] linear in the world frame [m/s], angular in the body frame [rad/s]
