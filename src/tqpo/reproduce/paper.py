"""The paper's runs and its published numbers, as data (Li, Ruan, Geng; AAAI 2025, Tables 1 and 2).

The paper reports mean ± standard deviation over five seeds; it does not say how it evaluated.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Published(NamedTuple):
    """Mean and spread over seeds, as printed."""

    episode_return: tuple[float, float]
    safety_prob: tuple[float, float]
    hours: tuple[float, float] | None = None  # Table 1's training time


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a setting that is trained with several seeds."""

    task: str
    algo: str
    safety: float
    preset: str = "paper"
    published: Published | None = None

    @property
    def name(self) -> str:
        return f"{self.task}-{self.algo}-{100 * self.safety:g}-{self.preset}"


def pair(task: str, safety: float, qcpo: Published, tqpo: Published) -> list[Cell]:
    return [Cell(task, "qcpo", safety, published=qcpo), Cell(task, "tqpo", safety, published=tqpo)]


TABLE1: list[Cell] = [
    *pair(
        "SimpleEnv",
        0.90,
        Published((8.6, 0.4), (0.92, 0.01), (3.0, 0.1)),
        Published((16.1, 0.2), (0.89, 0.01), (2.7, 0.1)),
    ),
    *pair(
        "SimpleEnv",
        0.95,
        Published((2.1, 0.2), (0.97, 0.01), (3.2, 0.2)),
        Published((14.2, 0.3), (0.95, 0.01), (2.6, 0.1)),
    ),
    *pair(
        "DynamicEnv",
        0.90,
        Published((10.0, 0.3), (0.91, 0.01), (2.6, 0.2)),
        Published((14.4, 0.4), (0.90, 0.01), (2.6, 0.1)),
    ),
    *pair(
        "DynamicEnv",
        0.95,
        Published((3.5, 0.1), (0.97, 0.00), (2.7, 0.1)),
        Published((12.5, 0.2), (0.94, 0.01), (3.0, 0.2)),
    ),
    *pair(
        "GremlinEnv",
        0.90,
        Published((0.33, 0.1), (0.92, 0.01), (4.4, 0.3)),
        Published((0.77, 0.1), (0.90, 0.01), (3.4, 0.1)),
    ),
    *pair(
        "GremlinEnv",
        0.95,
        Published((-1.43, 0.2), (0.94, 0.01), (4.0, 0.2)),
        Published((-0.66, 0.1), (0.93, 0.01), (3.6, 0.2)),
    ),
]

TABLE2: list[Cell] = [
    Cell("SimpleEnv", "qcpo", 0.95, published=Published((2.1, 0.2), (0.97, 0.01))),
    Cell("SimpleEnv", "qcpo-tilt", 0.95, published=Published((4.7, 0.2), (0.95, 0.01))),
    Cell("SimpleEnv", "tqpo-no-tilt", 0.95, published=Published((10.3, 0.3), (0.96, 0.01))),
    Cell("SimpleEnv", "tqpo-fixed-tilt", 0.95, published=Published((13.9, 0.8), (0.92, 0.02))),
    Cell("SimpleEnv", "tqpo", 0.95, published=Published((14.2, 0.3), (0.95, 0.01))),
    Cell("DynamicEnv", "qcpo", 0.95, published=Published((3.5, 0.1), (0.97, 0.00))),
    Cell("DynamicEnv", "qcpo-tilt", 0.95, published=Published((8.0, 0.3), (0.95, 0.01))),
    Cell("DynamicEnv", "tqpo-no-tilt", 0.95, published=Published((5.26, 0.2), (0.95, 0.01))),
    Cell("DynamicEnv", "tqpo-fixed-tilt", 0.95, published=Published((11.9, 0.2), (0.92, 0.01))),
    Cell("DynamicEnv", "tqpo", 0.95, published=Published((12.5, 0.2), (0.94, 0.01))),
]

# For Figures 2 and 3. It has no level; 90 % is what its safety is held against.
PPO_LAG: list[Cell] = [Cell(task, "ppo-lag", 0.90) for task in ("SimpleEnv", "DynamicEnv", "GremlinEnv")]

# One more row: TQPO with what we add to it; the paper's network and steps.
TUNED: list[Cell] = [Cell(c.task, "tqpo", c.safety, preset="tuned") for c in TABLE1 if c.algo == "tqpo"]

# Of what we add, the learned baseline alone, on two tasks.
BASELINE: list[Cell] = [Cell(c.task, "tqpo-baseline", c.safety) for c in TUNED if c.task != "GremlinEnv"]

# And once with the fast preset: the same steps, a small network.
FAST: list[Cell] = [Cell(c.task, "tqpo", c.safety, preset="fast") for c in TABLE1 if c.algo == "tqpo"]

# Evidence on one task that every part works at the paper's scale; TQPO and its tilts: fifteen runs of one program at three seeds.
FIRST: list[Cell] = [
    *(cell for cell in TABLE1 if cell.task == "SimpleEnv" and cell.algo == "tqpo"),
    *(cell for cell in TABLE2 if cell.task == "SimpleEnv" and cell.algo in {"tqpo-no-tilt", "tqpo-fixed-tilt"}),
    Cell("SimpleEnv", "tqpo-released-tilt", 0.95),
    Cell("SimpleEnv", "ppo-lag", 0.90),
    Cell("SimpleEnv", "tqpo-baseline", 0.90),
    Cell("SimpleEnv", "tqpo-baseline", 0.95),
]

# Fifteen runs of the fast preset at three seeds.
LEVELS: list[Cell] = [Cell("SimpleEnv", "tqpo", level, preset="fast") for level in (0.80, 0.85, 0.90, 0.95, 0.99)]

SETS: dict[str, list[Cell]] = {
    "table1": [*TABLE1, *PPO_LAG],
    "table2": TABLE2,
    "tuned": TUNED,
    "baseline": BASELINE,
    "fast": FAST,
    "first": FIRST,
    "levels": LEVELS,
}
SETS["all"] = list(
    {cell.name: cell for name in ("table1", "table2", "tuned", "baseline", "fast") for cell in SETS[name]}.values()
)
COST_LIMIT = 15.0  # d
STEPS = 5_000_000
