"""An episode to watch in a browser: recorded as compact JSON, and the markup that `assets/player.js` animates."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from tqpo.envs import Task, TaskConfig
from tqpo.envs.budget import unwrapped
from tqpo.errors import ConfigError
from tqpo.evaluation.episodes import Policy, Trace, trace
from tqpo.types import Env, Key

KEY = (  # the legend: name, what an episode must have for it to show, shape, what is painted, colour
    ("robot", "", "", "background", "robot"),
    ("goal", "", "ring", "border-color", "goal"),
    ("hazard", "hazards", "", "background", "hazard"),
    ("button, not the goal", "buttons", "", "background", "button"),
    ("gremlin", "circles", "square", "background", "gremlin"),
    ("wall", "walls", "", "background", "alarm"),
    ("a step that costs", "", "square ring", "border-color", "alarm"),
)


def record_episode(
    env: Env,
    policy: Policy,
    key: Key,
    *,
    index: int = 0,
    deterministic: bool = False,
    cost_limit: float | None = None,
    title: str = "",
) -> dict[str, Any]:
    """Episode `index` of `run_episodes` with this key, as JSON for the player."""
    if not isinstance(task := unwrapped(env), Task):
        raise ConfigError(
            f"{type(task).__name__} cannot be drawn from above: an episode is recorded from a built-in task"
        )
    return encode(trace(env, policy, key, index, deterministic), task.config, cost_limit, title)


def encode(seen: Trace, config: TaskConfig, cost_limit: float | None = None, title: str = "") -> dict[str, Any]:
    """A trace of `Task` states as JSON for the player.

    Poses, gremlins and returns are differences from step to step in thousandths, which the player adds up.
    """
    states = seen.states
    goals = np.column_stack([states.goal, states.goal_button])
    reached = np.any(goals[1:] != goals[:-1], axis=1)  # the same button may be drawn again, but the timer starts
    reached |= (states.timer[1:] == config.button_timer) & (config.button_timer > 0)
    new = [0, *(1 + np.flatnonzero(reached)).tolist()]
    w, x, y, z = np.moveaxis(states.boxes.quat, -1, 0)
    yaw = np.unwrap(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)), axis=0)
    low, high = np.min(states.pose[:, 1]), np.max(states.pose[:, 1])
    y, reach = (0.5 * (low + high), 0.5 * (high - low)) if config.goal == "run" else (0.0, 0.0)
    reach = max(config.extents, float(reach))
    boxes = np.concatenate([states.boxes.pos[..., :2], yaw[..., None]], -1)  # [T + 1, G, 3]
    return {
        "title": title,
        "step_duration": config.step_duration,
        "extents": reach,
        "centre": [0.0, float(y)],
        "walls": np.round(config.wall_lines(float(y), reach), 3).tolist(),
        "cost_limit": cost_limit,
        "button_timer": config.button_timer,
        "radii": {
            "robot": config.robot.sphere_radius,
            "nose": config.robot.box_offset,
            "nose_half": config.robot.box_half,
            "goal": config.circle_radius if config.goal == "circle" else config.goal_radius,
            "hazard": config.hazard_radius,
            "button": config.button_radius,
            "gremlin": config.box.half_size,
            "travel": config.gremlin_travel,
        },
        "hazards": np.round(states.hazards[0], 3).tolist(),
        "buttons": np.round(states.buttons[0], 3).tolist(),
        "circles": np.round(states.gremlins[0, :, :2], 3).tolist(),
        "goals": [[step, *np.round(goals[step, :2].astype(float), 3).tolist(), int(goals[step, 2])] for step in new],
        "poses": differences(states.pose),
        "gremlins": differences(boxes),
        "returns": differences(np.concatenate([[0.0], np.cumsum(seen.rewards)])),
        "costs": (1 + np.flatnonzero(seen.costs[:, 0] > 0)).tolist(),
    }


def differences(values: np.ndarray) -> list[int]:
    """[T, …] in thousandths, each row less the one before it: rounded first, so that errors do not add up."""
    whole = np.round(1000 * np.asarray(values, float)).astype(int)
    return np.diff(whole, axis=0, prepend=np.zeros_like(whole[:1])).ravel().tolist()


def player(episodes: Sequence[Mapping[str, Any]]) -> str:
    """The markup that `player.js` animates."""
    if not episodes:
        return ""
    data = json.dumps(list(episodes), separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":  # nothing in it can end the script element
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    options = "".join(
        f"<option value={i}>{escape(e['title'] or f'Episode {i + 1}')}</option>" for i, e in enumerate(episodes)
    )
    choose = f"<p><label>Episode <select id=choose>{options}</select></label></p>" if len(episodes) > 1 else ""
    key = "".join(
        f'<li{f" data-shows={shows}" * bool(shows)}><i class="{kind}" style="{paint}:var(--{colour})"></i>{name}</li>'
        for name, shows, kind, paint, colour in KEY
    )
    speeds = "".join(f"<option value={x}{' selected' * (x == 1)}>{x}×</option>" for x in (0.5, 1, 2, 4, 8))
    return (
        f"<section><h2>Watch an episode</h2>{choose}<div class=player><div>"
        "<canvas class=scene id=scene width=640 height=640 role=img"
        ' aria-label="The task from above, as recorded"></canvas>'
        "<div class=controls><canvas class=marks id=marks aria-hidden=true></canvas>"
        "<button type=button id=play>Play</button>"
        '<input type=range id=scrub min=0 value=0 step=1 aria-label="Position in the episode">'
        f'<label class=speed><select id=speed aria-label="Speed">{speeds}</select></label></div></div>'
        "<div><dl><dt>Time</dt><dd id=time></dd><dt>Step</dt><dd id=step></dd><dt>Return</dt><dd id=return></dd>"
        f"<dt>Cost</dt><dd id=cost></dd></dl><ul class=key>{key}</ul>"
        "<noscript><p>Playing back needs JavaScript.</p></noscript></div></div>"
        f'<script type="application/json" id=episodes>{data}</script></section>'
    )
