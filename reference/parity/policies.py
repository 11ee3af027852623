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


def straight(obs, noise, config: TaskConfig, xp):
    return steer(*direction(obs[config.observation["goal_lidar"]], config, xp), obs, config, xp)


def careful(obs, noise, config: TaskConfig, xp):
    goal = obs[config.observation["goal_lidar"]]
    ahead, left = direction(goal / (xp.max(goal) + 1e-9), config, xp)
    for name in config.sources:
        lidar = obs[config.observation[f"{name}_lidar"]]
        if name == "buttons":  # the goal is one of them, and not to be shunned
            lidar = lidar * (goal < lidar - 1e-6)
        near = xp.maximum(0.0, 1.0 - (1.0 - lidar) * config.lidar_range / SHY_RANGE)
        push = direction(near, config, xp)
        ahead, left = ahead - 4.0 * push[0] - 4.0 * push[1], left - 4.0 * push[1] + 4.0 * push[0]  # away, and around it
    return steer(ahead, left, obs, config, xp)


def ram(obs, noise, config: TaskConfig, xp):
    target = next((n for n in ("buttons", "gremlins", "hazards") if n in config.sources), "goal")
    lidar = obs[config.observation[f"{target}_lidar"]]
    nearest = lidar * (lidar > 0.7 * xp.max(lidar))
    return xp.clip(steer(*direction(nearest, config, xp), obs, config, xp) + 0.3 * noise, -1.0, 1.0)


POLICIES: dict[str, Policy] = {"random": random, "straight": straight, "careful": careful, "ram": ram}
