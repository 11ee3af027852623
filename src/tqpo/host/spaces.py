"""Gymnasium's spaces as the learner sees them: observations are flat vectors, actions are in [-1, 1] or one-hot.

| space | as an observation | as an action |
|---|---|---|
| Box | flattened | one number in [-1, 1] each, scaled to the bounds, which must be finite |
| Discrete | one-hot | one-hot |
| MultiDiscrete | its parts one after another | one-hot each, one after another |
| Dict, Tuple, MultiBinary | their parts one after another | – |
| others | – | – |
"""

import dataclasses
import functools
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.spaces.utils import flatdim, flatten

from tqpo.errors import EnvError
from tqpo.host.actions import to_env


def finite(what: str, value: Any) -> None:
    if not np.all(np.isfinite(value)):
        raise FloatingPointError(f"{what} that is not finite")


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
        elif not isinstance(space, Discrete | MultiDiscrete) or len(space.shape or ()) > 1:
            wanted = "must be Box, Discrete or MultiDiscrete of one axis"
            raise EnvError(f"action space {space}: {wanted}; wrap it in gymnasium.ActionWrapper")

    @functools.cached_property
    def obs_size(self) -> int:
        return flatdim(self.observation_space)

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """As a trunk of its own sees it."""
        space = self.observation_space
        return space.shape if isinstance(space, Box) else (self.obs_size,)

    @property
    def discrete(self) -> bool:
        return isinstance(self.action_space, Discrete | MultiDiscrete)

    @property
    def choices(self) -> tuple[int, ...]:
        """Of several choices, among how many each is."""
        space = self.action_space
        return tuple(space.nvec.tolist()) if isinstance(space, MultiDiscrete) else ()

    @property
    def action_size(self) -> int:
        return flatdim(self.action_space)

    def flat(self, obs: Any) -> np.ndarray:
        """An observation as a finite float32 vector [O], copied: some environments reuse theirs."""
        space = self.observation_space
        if isinstance(space, Box):
            if np.shape(obs) != space.shape:
                raise ContractError(f"an observation of shape {np.shape(obs)}; its space says {space.shape}")
            vector = np.array(obs, np.float32).reshape(-1)
        else:
            try:
                vector = np.array(flatten(space, obs), np.float32)
            except Exception as error:
                text = f"an observation that is not in its space {space}: {type(error).__name__}: {error}"
                raise ContractError(text) from error
        if vector.shape != (self.obs_size,):
            raise ContractError(f"an observation of {vector.size} numbers; its space {space} has {self.obs_size}")
        finite("an observation", vector)
        return vector

    @functools.cached_property
    def form(self) -> dict[str, Any]:
        """How actions become the environment's: arguments of `actions.to_env`."""
        space = self.action_space
        if isinstance(space, Box):
            return {"low": space.low, "high": space.high}
        if isinstance(space, MultiDiscrete):
            return {"start": space.start.astype(int), "sizes": space.nvec.astype(int)}
        assert isinstance(space, Discrete)
        return {"start": int(space.start)}

    def action(self, action: np.ndarray) -> Any:
        """What the environment takes, from a vector [A]; of a batch [N, A], a batch."""
        return to_env(np.clip(action, -1.0, 1.0), **self.form).astype(self.action_space.dtype)

    def describe_action(self) -> dict[str, Any]:
        """`form` as plain data."""
        return {name: np.asarray(value).tolist() for name, value in self.form.items()}
