"""What the numbers of an observation are, as a table with one row for each slice."""

from collections.abc import Iterable
from typing import NamedTuple

GRAVITY = 9.81  # m/s²
FIELD = -0.5  # the magnetometer's field along the world's y

Range = tuple[float, float] | None  # None: no bounds
OBJECTS = {
    "goal": "goal",
    "circle": "circle",
    "buttons": "nearest button, right or wrong",
    "gremlins": "nearest gremlin",
    "hazards": "nearest hazard",
    "pillars": "nearest pillar",
    "vases": "nearest vase",
    "push_box": "box to push",
}


class Feature(NamedTuple):
    """A part of an observation that has no place in it yet."""

    name: str
    size: int
    unit: str  # "": none
    range: Range
    meaning: str


class Slice(NamedTuple):
    """A part of an observation: `obs[start:stop]`."""

    name: str
    start: int
    stop: int
    unit: str
    range: Range
    meaning: str


def place(features: Iterable[Feature]) -> tuple[Slice, ...]:
    """The features one after another."""
    slices, start = [], 0
    for name, size, unit, bounds, meaning in features:
        slices.append(Slice(name, start, start + size, unit, bounds, meaning))
        start += size
    return tuple(slices)


def task_features(
    seen: Iterable[str], bins: int, max_range: float, button_timer: int, plain: bool, late_cost: bool
) -> tuple[Feature, ...]:
    """If `plain`, sensors, then the lidars of what is `seen`. Else all of them sorted by name, then the previous cost."""
    frame = "ahead, to the left, up"
    sensors = [
        Feature("accelerometer", 3, "m/s²", None, f"proper acceleration {frame}; gravity adds {GRAVITY} upwards"),
        Feature("velocimeter", 3, "m/s", None, f"velocity {frame}; the last is 0"),
        Feature("gyro", 3, "rad/s", None, "angular velocity about the axes ahead, left, up; the first two are 0"),
        Feature("magnetometer", 3, "", (FIELD, -FIELD), f"a field along the world's −y, as seen {frame}: a compass"),
    ]
    lidars = [lidar_feature(kind, bins, max_range, button_timer) for kind in seen]
    if plain:
        return (*sensors, *lidars)
    step = "step before the one" if late_cost else "step"
    cost = Feature(
        "previous_cost", 1, "", (0.0, 1.0), f"1 if the {step} that led here had a cost, else 0; 0 at the start"
    )
    return (*sorted([*sensors, *lidars]), cost)


def lidar_feature(kind: str, bins: int, max_range: float, button_timer: int) -> Feature:
    meaning = (
        f"max(0, 1 − r/{max_range:g} m), with r the distance to the centre of the {OBJECTS[kind]}, in each of {bins} "
        f"sectors of {360 / bins:g}° from straight ahead to the left; an object also shows in the two sectors beside "
        "its own"
    )
    if kind == "buttons":
        meaning += f"; all 0 in the {button_timer} observations from reaching a goal on"
    return Feature(f"{kind}_lidar", bins, "", (0.0, 1.0), meaning)


def slice_table(table: Iterable[Slice]) -> str:
    """The table as documents and cards show it."""
    rows = [f"| {s.start}:{s.stop} | `{s.name}` | {s.unit or '–'} | {say(s.range)} | {s.meaning} |" for s in table]
    return "\n".join(["| slice | name | unit | range | meaning |", "|---|---|---|---|---|", *rows])


def say(bounds: Range) -> str:
    return "–" if bounds is None else f"{bounds[0]:g} to {bounds[1]:g}".replace("-", "−")
