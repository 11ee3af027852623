"""Where things start: layouts drawn as Safety Gym draws them, in a bounded number of tries.

Objects are placed in the order robot, goal area, buttons, hazards, pillars, vases or box, gremlins. Each is drawn
uniformly in the arena, shrunk by its own keepout, and redrawn while it is closer to an earlier one than the sum of their
keepouts. When an object runs out of tries, the whole layout is drawn again. Finally a goal area is drawn once more,
against everything else.
Safety-Gymnasium's button tasks place a goal area after the buttons, which then goes to a button: its first place stays
empty.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tqpo.envs.config import TaskConfig
from tqpo.errors import LayoutError
from tqpo.physics.dispatch import of_one
from tqpo.types import Array, Key

LAYOUT_TRIES = 10_000
TRIAL_LAYOUTS = 1_000  # drawn once when a task is made, to learn whether its objects fit
LEAST_ACCEPTANCE = 0.01
FEW_ACCEPTED = 0.5
TRIES_AT_ONCE_CPU, TRIES_AT_ONCE_GPU = 64, 1024  # where few are accepted
GOAL_CHUNK = 32  # candidates for a new goal that are drawn at once
GOAL_FIELD = {
    "area": "goal",
    "push": "goal",
    "button": "goal_button",
}  # what of a layout says where the goal is, if it can be moved


class Layout(NamedTuple):
    """The start of an episode."""

    robot: Array  # [3] x, y [m], heading [rad]
    hazards: Array  # [H, 2] m
    buttons: Array  # [N, 2] m
    goal: Array  # [2] m; for button tasks the place of the goal button, for circle tasks the centre
    goal_button: Array  # [] int, -1 without buttons
    gremlins: Array  # [G, 3] centre of the circle [m], heading [rad]
    pillars: Array  # [P, 2] m
    vases: Array  # [V, 3] m, heading [rad]
    push_box: Array  # [1 or 0, 3] m, heading [rad]


TURNED = {"gremlins", "vases", "push_box"}  # have a heading


class Slot(NamedTuple):
    """One object to place."""

    kind: str
    keepout: float  # m
    place: tuple[float, float] | None  # m, fixed
    area: tuple[float, ...] = ()  # m, least x and y, greatest x and y; empty: the arena less the keepout


def slots(config: TaskConfig) -> list[Slot]:
    fixed = {"buttons": config.button_locations, "hazards": config.hazard_locations}

    def several(kind: str) -> list[Slot]:
        places = fixed.get(kind)
        count = config.counts.get(kind, 0)
        return [Slot(kind, config.keepout(kind), places[i] if places else None) for i in range(count)]

    left_empty = config.engine == "safety-gymnasium" and config.goal == "button"
    return [
        Slot("robot", config.robot_keepout, None, config.robot_area),
        *[Slot("goal", config.goal_keepout, None)] * (config.goal in {"area", "push"}),
        *several("buttons"),
        *[Slot("empty", config.goal_keepout, None)] * left_empty,
        *(slot for kind in ("hazards", "pillars", "vases", "push_box", "gremlins") for slot in several(kind)),
    ]


def clear(candidates: Array, others: Array, distances: Array) -> Array:
    """Which candidates [C, 2] keep the given distances [N] from the others [N, 2]."""
    x, y = (candidates[:, i, None] - others[None, :, i] for i in (0, 1))  # each on its own: faster on a CPU
    return jnp.all(x * x + y * y >= distances * distances, axis=-1)


def uniform(key: Key, count: int, extents: float, keepout: float, area: tuple[float, ...] = ()) -> Array:
    if area:
        return jax.random.uniform(key, (count, 2), minval=jnp.array(area[:2]), maxval=jnp.array(area[2:]))
    reach = extents - keepout
    return jax.random.uniform(key, (count, 2), minval=-reach, maxval=reach)


def first_of(candidates: Array, ok: Array) -> tuple[Array, Array]:
    """The first candidate that is ok, and whether there is one."""
    index = jnp.argmax(ok)
    return candidates[index], ok[index]


def attempt(key: Key, config: TaskConfig) -> tuple[Array, Array]:
    """One try at a whole layout: places [objects, 2] in the order of `slots`, and whether all found room."""
    objects = slots(config)
    placed, success = jnp.zeros((0, 2)), jnp.array(True)
    for i, (slot, slot_key) in enumerate(zip(objects, jax.random.split(key, len(objects)), strict=True)):
        if slot.place:
            candidates = jnp.array([slot.place], dtype=float)
        else:
            candidates = uniform(slot_key, config.object_draws, config.extents, slot.keepout, slot.area)
        others = placed, [s.keepout for s in objects[:i]]
        if i == 0:  # too close to a fixed object would fail later anyway: same law, fewer tries
            fixed = [s for s in objects if s.place]
            others = jnp.array([s.place for s in fixed]), [s.keepout for s in fixed]
        place, found = candidates[0], jnp.array(True)
        if others[1]:
            place, found = first_of(candidates, clear(candidates, others[0], jnp.array(others[1]) + slot.keepout))
        placed, success = jnp.concatenate([placed, place[None]]), success & found
    return placed, success


def draw_places(key: Key, config: TaskConfig) -> Array:
    """Places [objects, 2] in the order of `slots`: those of the first try that succeeds."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    return of_one(lambda keys: _draw_batch(keys, config))(key)


def _draw_batch(keys: Key, config: TaskConfig) -> Array:
    """The places [B, objects, 2] for each key. Those that still wait for theirs share the tries of each round."""
    n = len(keys)
    further, first = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    at_once = TRIES_AT_ONCE_CPU if jax.default_backend() == "cpu" else TRIES_AT_ONCE_GPU
    width = n if acceptance(config) > FEW_ACCEPTED else max(n, at_once)

    def unplaced(carry):
        tries, _, done = carry
        return jnp.any(~done & (tries < LAYOUT_TRIES))

    def again(carry):
        tries, places, done = carry
        turn, rank = jnp.divmod(jnp.arange(width), (~done).sum())
        who = jnp.argsort(done)[rank]  # [W] those that wait, over and over
        nth = tries[who] + turn
        now = jnp.where(nth == 0, first[who], jax.vmap(jax.random.fold_in)(further[who], nth))
        found, ok = jax.vmap(lambda key: attempt(key, config))(now)
        winner = jnp.full(n, width).at[who].min(jnp.where(ok, jnp.arange(width), width))
        won = winner < width
        places = jnp.where(won[:, None, None], found[jnp.minimum(winner, width - 1)], places)
        return tries.at[who].add(1), places, done | won

    start = jnp.zeros(n, int), jnp.zeros((n, len(slots(config)), 2)), jnp.zeros(n, bool)
    return lax.while_loop(unplaced, again, start)[1]


def goal_obstacles(config: TaskConfig, robot: Array, objects: Mapping[str, Array]):
    """What a new goal area must keep away from: places [N, 2] and distances [N]. `objects` has places [K, …] by kind."""
    keepouts = [config.robot_keepout]
    keepouts += [config.keepout(kind) for kind, count in config.counts.items() for _ in range(count)]
    places = jnp.concatenate([robot[None, :2], *(objects[kind][:, :2] for kind in config.kinds)])
    return places, jnp.array(keepouts) + config.goal_keepout


def draw_goal(key: Key, config: TaskConfig, places: Array, distances: Array, needed) -> tuple[Array, Array]:
    """A new goal area clear of everything, if one is `needed`; and whether room was found in `goal_draws` tries."""
    rounds = -(-config.goal_draws // GOAL_CHUNK)

    def searching(carry):
        tries, _, _, found = carry
        return needed & ~found & (tries < rounds)

    def look(carry):
        tries, key, _, _ = carry
        key, now = jax.random.split(key)
        candidates = uniform(now, GOAL_CHUNK, config.extents, config.goal_keepout)
        return tries + 1, key, *first_of(candidates, clear(candidates, places, distances))

    _, _, goal, found = lax.while_loop(searching, look, (0, key, jnp.zeros(2), jnp.array(False)))
    return goal, found


def sample(key: Key, config: TaskConfig) -> Layout:
    """A layout for a new episode."""
    key_places, key_goal, key_heading, key_turns = jax.random.split(key, 4)
    places = draw_places(key_places, config)
    by_kind: dict[str, list[Array]] = {}
    for slot, place in zip(slots(config), places, strict=True):
        by_kind.setdefault(slot.kind, []).append(place)
    turns = jax.random.uniform(key_turns, (config.loose + config.gremlins, 1), maxval=2.0 * jnp.pi)
    objects = {}
    for kind in ("hazards", "buttons", "gremlins", "pillars", "vases", "push_box"):
        xy = jnp.stack(by_kind[kind]) if kind in by_kind else jnp.zeros((0, 2))
        objects[kind] = jnp.concatenate([xy, turns[: len(xy)]], axis=1) if kind in TURNED else xy
    heading = jax.random.uniform(key_heading, (1,), maxval=2.0 * jnp.pi)
    robot = jnp.concatenate([by_kind["robot"][0], heading])
    if config.goal in {"area", "push"}:
        goal, found = draw_goal(key_goal, config, *goal_obstacles(config, robot, objects), True)
        goal = jnp.where(found, goal, by_kind["goal"][0])  # the first place is valid too
        button = jnp.array(-1)
    elif config.goal == "button":
        button = jax.random.randint(key_goal, (), 0, config.buttons)
        goal = objects["buttons"][button]
    else:
        button = jnp.array(-1)
        goal = jnp.array(config.run_goal if config.goal == "run" else (0.0, 0.0))
    return Layout(robot, goal=goal, goal_button=button, **objects)


@lru_cache(maxsize=64)
def acceptance(config: TaskConfig) -> float:
    """The share of tries at a whole layout that succeed."""
    with jax.ensure_compile_time_eval():
        keys = jax.random.split(jax.random.key(0), TRIAL_LAYOUTS)
        return float(jnp.mean(jax.jit(jax.vmap(lambda key: attempt(key, config)[1]))(keys)))


@lru_cache(maxsize=64)
def check_room(config: TaskConfig) -> None:
    """Raises unless layouts of this task can be drawn, so that sampling at run time neither hangs nor fails."""
    for slot in slots(config):
        if not (slot.place or slot.area) and config.extents <= slot.keepout:
            raise LayoutError(
                f"a {slot.kind.removesuffix('s')} with keepout {slot.keepout} m does not fit into extents ±{config.extents} m: "
                f"make extents larger than {slot.keepout}"
            )
    area = sum(math.pi * slot.keepout**2 for slot in slots(config) if not slot.place)  # discs that must not overlap
    if area > (2 * config.extents) ** 2:
        raise LayoutError(
            f"the objects' keepouts take {area:.1f} m², more area than there is within extents ±{config.extents} m: "
            "enlarge extents or reduce keepouts or the number of objects"
        )
    if acceptance(config) < LEAST_ACCEPTANCE:
        raise LayoutError(
            f"the objects of this task find room in {acceptance(config):.1%} of the tries, less than {LEAST_ACCEPTANCE:.0%}: "
            f"enlarge extents (±{config.extents} m) or reduce keepouts or the number of objects"
        )


def describe(layout: Layout, config: TaskConfig) -> dict[str, Any]:
    """A layout as plain lists, in the form that `parse` takes."""
    out: dict[str, Any] = {"robot": np.asarray(layout.robot, float).tolist()}
    for name in config.kinds:
        out[name] = np.asarray(getattr(layout, name), float).tolist()
    if config.goal in GOAL_FIELD:
        out["goal"] = np.asarray(getattr(layout, GOAL_FIELD[config.goal])).tolist()
    return out


def parse(given: Any, base: Layout, config: TaskConfig) -> Layout:
    """`base` with the parts that a user gives: {"robot": [x, y, heading], "hazards": [[x, y], …], "buttons": …,
    "gremlins": [[x, y, heading], …], "goal": [x, y] or the index of the goal button}."""
    shapes = {"robot": (3,), **{n: (count, 3 if n in TURNED else 2) for n, count in config.counts.items()}}
    if config.goal in {"area", "push"}:
        shapes["goal"] = (2,)
    allowed = sorted({*shapes, *(["goal"] if config.goal in GOAL_FIELD else [])})
    if not isinstance(given, dict):
        raise LayoutError(f"layout must be a dict with any of {allowed}, not {type(given).__name__}")
    for name in given:
        if name not in allowed:
            raise LayoutError(f"layout has no {name!r} in this task; allowed are {allowed}")
    parts = {}
    for name in given.keys() & shapes.keys():
        parts[name] = _numbers(name, given[name], shapes[name])
    if config.goal == "button":
        index = given.get("goal", int(base.goal_button))
        if not isinstance(index, int | np.integer) or isinstance(index, bool) or not 0 <= index < config.buttons:
            raise LayoutError(f"layout goal={index!r} must be the index of a button, 0 to {config.buttons - 1}")
        buttons = parts.get("buttons", base.buttons)
        parts |= {"goal_button": jnp.asarray(int(index)), "goal": jnp.asarray(buttons)[int(index)]}
    return base._replace(**parts)


def _numbers(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    wanted = f"layout {name} must be finite numbers of shape {shape}"
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise LayoutError(f"{wanted}, not {value!r}") from None
    if array.shape != shape or not np.all(np.isfinite(array)):
        raise LayoutError(f"{wanted}, not {value!r}")
    return jnp.asarray(array)
