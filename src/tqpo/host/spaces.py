"""Gymnasium's spaces as the learner sees them: observations are flat vectors, actions are in [-1, 1] or one-hot.

| space | as an observation | as an action |
|---|---|---|
| Box | flattened | one number in [-1, 1] each, scaled to the bounds, which must be finite |
| Discrete | one-hot | one-hot |
| Dict, Tuple, MultiDiscrete, MultiBinary | their parts one after another | – |
| others | – | – |
"""

import dataclasses
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.spaces.utils import flatdim, flatten

from tqpo.errors import EnvError


class ContractError(Exception):
    """What an environment may not do even once: restarting it would not help."""


@dataclasses.dataclass(frozen=True, eq=False)
class Border:
    """Between an environment's spaces and flat vectors."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space

    def __post_init__(self) -> None:
        space = self.observation_space
        if not space.is_np_flattenable:
            raise EnvError(
                f"observation space {space}: it has no fixed size; use Box, Discrete, or a Dict or Tuple of these"
            )
        space = self.action_space
        if isinstance(space, Box):
            if not np.all(np.isfinite(space.low)) or not np.all(np.isfinite(space.high)):
                raise EnvError(
                    f"action space {space}: needs finite bounds; give the environment a Box that has them, or a wrapper whose "
                    "action_space is such a Box"
                )
        elif not isinstance(space, Discrete):
            raise EnvError(f"action space {space}: must be Box or Discrete; wrap it in gymnasium.ActionWrapper")

    @property
    def obs_size(self) -> int:
        return flatdim(self.observation_space)

    @property
    def discrete(self) -> bool:
        return isinstance(self.action_space, Discrete)

    @property
    def action_size(self) -> int:
        return flatdim(self.action_space)

    def flat(self, obs: Any) -> np.ndarray:
        """An observation as a float32 vector [O]."""
        space = self.observation_space
        if isinstance(space, Box):
            if np.shape(obs) != space.shape:
                raise ContractError(f"an observation of shape {np.shape(obs)}; its space says {space.shape}")
            return np.asarray(obs, np.float32).reshape(-1)
        try:
            vector = np.asarray(flatten(space, obs), np.float32)
        except Exception as error:
            raise ContractError(
                f"an observation that is not in its space {space}: {type(error).__name__}: {error}"
            ) from error
        if vector.shape != (self.obs_size,):
            raise ContractError(f"an observation of {vector.size} numbers; its space {space} has {self.obs_size}")
        return vector

    def action(self, action: np.ndarray) -> Any:
        """What the environment takes, from a vector [A]."""
        space = self.action_space
        if isinstance(space, Box):
            share = (np.clip(action, -1.0, 1.0) + 1.0).reshape(space.shape) / 2.0
            return (space.low + share * (space.high - space.low)).astype(space.dtype)
        assert isinstance(space, Discrete)
        return np.int64(space.start + np.argmax(action))

    def describe_action(self) -> dict[str, Any]:
        """Plain data from which `action` can be done without the environment."""
        space = self.action_space
        if isinstance(space, Box):
            return {"low": space.low.tolist(), "high": space.high.tolist()}
        assert isinstance(space, Discrete)
        return {"start": int(space.start)}
