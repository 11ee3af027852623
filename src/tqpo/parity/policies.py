"""Fixed policies of different skill. They see the observation alone, and are written once for NumPy and for JAX (`xp`).

| policy | does |
|---|---|
| random | uniform commands |
| straight | turns to the goal and drives, whatever lies in between |
| careful | the same, pushed aside by what the other lidars see near by |
| ram | drives at the nearest solid thing (buttons, gremlins), else at hazards: for states in contact |
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tqpo.envs.config import TaskConfig

Policy = Callable[[Any, Any, TaskConfig, Any], Any]  # obs [O], noise [2], config, numpy or jax.numpy → action [2]

THRUST = 0.02  # N before the gear; the motor saturates at 0.05
TURN_GAIN = 0.4  # per rad
SHY = 3.0  # weight of a thing at no distance, against the goal's 1
SHY_RANGE = 0.9  # m at which the push begins


def direction(lidar, config: TaskConfig, xp):
    """Sum of the bins as vectors in the body frame: ahead, left."""
    angles = (np.arange(config.lidar_bins) + 0.5) * (2.0 * np.pi / config.lidar_bins)
    return xp.sum(lidar * np.cos(angles)), xp.sum(lidar * np.sin(angles))


def steer(ahead, left, xp):
    angle = xp.arctan2(left, ahead)
    return xp.stack([THRUST * xp.maximum(0.0, xp.cos(angle)), xp.clip(TURN_GAIN * angle, -1.0, 1.0)])


def towards(name: str, obs, config: TaskConfig, xp):
    ahead, left = direction(obs[config.observation[name]], config, xp)
    size = xp.sqrt(ahead * ahead + left * left) + 1e-9
    return ahead / size, left / size


def random(obs, noise, config: TaskConfig, xp):
    return noise


def straight(obs, noise, config: TaskConfig, xp):
    return steer(*towards("goal_lidar", obs, config, xp), xp)


def careful(obs, noise, config: TaskConfig, xp):
    ahead, left = towards("goal_lidar", obs, config, xp)
    threshold = 1.0 - SHY_RANGE / config.lidar_range
    for name in config.sources:
        near = xp.maximum(0.0, obs[config.observation[f"{name}_lidar"]] - threshold) / (1.0 - threshold)
        if name == "buttons":  # the goal is one of them: do not shy away from it
            near = near * (obs[config.observation["goal_lidar"]] < obs[config.observation["buttons_lidar"]])
        push = direction(near * near, config, xp)
        ahead, left = ahead - SHY * push[0], left - SHY * push[1]
    return steer(ahead, left, xp)


def ram(obs, noise, config: TaskConfig, xp):
    target = next((n for n in ("buttons", "gremlins", "hazards") if n in config.sources), "goal")
    lidar = obs[config.observation[f"{target}_lidar"]]
    nearest = lidar * (lidar > 0.7 * xp.max(lidar))
    ahead, left = direction(nearest + 1e-9, config, xp)
    return steer(ahead, left, xp) + 0.05 * noise


POLICIES: dict[str, Policy] = {"random": random, "straight": straight, "careful": careful, "ram": ram}
