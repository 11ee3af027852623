"""Fixed policies of different skill. They see the observation alone, and are written once for NumPy and for JAX (`xp`).

| policy | does |
|---|---|
| random | uniform commands |
| straight | turns to the goal and drives, whatever lies in between; around a circle, or down a run |
| careful | the same, pushed aside by what the other lidars see near by |
| ram | drives at the nearest solid thing (buttons, vases, the box, gremlins), else at hazards: for states in contact |
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tqpo.envs.config import TaskConfig

Policy = Callable[[Any, Any, TaskConfig, Any], Any]  # obs [O], noise [2], config, numpy or jax.numpy → action [2]

SPEED = 0.8  # m/s, wanted
THRUST_GAIN = 0.08  # N before the gear, per m/s; the motor saturates at 0.05
TURN_GAIN = 0.4  # per rad
SHY_RANGE = 0.9  # m at which a thing begins to push aside


def direction(lidar, config: TaskConfig, xp):
    """Sum of the bins as vectors in the body frame: ahead, left."""
    angles = (np.arange(config.lidar_bins) + 0.5) * (2.0 * np.pi / config.lidar_bins)
    return xp.sum(lidar * np.cos(angles)), xp.sum(lidar * np.sin(angles))


def steer(ahead, left, obs, config: TaskConfig, xp):
    """Commands that bring the velocity to SPEED along (ahead, left): points the thrust at what is missing."""
    size = xp.sqrt(ahead * ahead + left * left) + 1e-9
    velocity = obs[config.observation["velocimeter"]]
    missing_ahead = SPEED * ahead / size - velocity[0]
    angle = xp.arctan2(SPEED * left / size - velocity[1], missing_ahead)
    thrust = xp.clip(THRUST_GAIN * missing_ahead, 0.0, 1.0)
    return xp.stack([thrust, xp.clip(TURN_GAIN * angle, -1.0, 1.0)])


def random(obs, noise, config: TaskConfig, xp):
    return noise


def wanted(obs, config: TaskConfig, xp):
    """Where the goal lies, ahead and left, as a sum over bins."""
    if config.goal == "run":
        field = obs[config.observation["magnetometer"]]  # points along the run
        return field[0], field[1]
    if config.goal == "circle":
        ahead, left = direction(obs[config.observation["circle_lidar"]], config, xp)
        return left, -ahead  # the centre on the left hand
    goal = obs[config.observation["goal_lidar"]]
    return direction(goal / (xp.max(goal) + 1e-9), config, xp)


def straight(obs, noise, config: TaskConfig, xp):
    return steer(*wanted(obs, config, xp), obs, config, xp)


def careful(obs, noise, config: TaskConfig, xp):
    ahead, left = wanted(obs, config, xp)
    for name in config.kinds:
        lidar = obs[config.observation[f"{name}_lidar"]]
        if name == "buttons":  # the goal is one of them, and not to be shunned
            goal = obs[config.observation["goal_lidar"]]
            lidar = lidar * (goal < lidar - 1e-6)
        near = xp.maximum(0.0, 1.0 - (1.0 - lidar) * config.lidar_range / SHY_RANGE)
        push = direction(near, config, xp)
        ahead, left = ahead - 4.0 * push[0] - 4.0 * push[1], left - 4.0 * push[1] + 4.0 * push[0]  # away, and around it
    return steer(ahead, left, obs, config, xp)


def ram(obs, noise, config: TaskConfig, xp):
    target = next((n for n in ("buttons", "vases", "push_box", "gremlins", "hazards") if n in config.kinds), None)
    if target is None:
        where = wanted(obs, config, xp)
    else:
        lidar = obs[config.observation[f"{target}_lidar"]]
        where = direction(lidar * (lidar > 0.7 * xp.max(lidar)), config, xp)
    return xp.clip(steer(*where, obs, config, xp) + 0.3 * noise, -1.0, 1.0)


POLICIES: dict[str, Policy] = {"random": random, "straight": straight, "careful": careful, "ram": ram}
