"""What a learner and a worker must know of an environment on the host."""

import copy
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tqpo.errors import ConfigError
from tqpo.host.reference import build
from tqpo.host.spaces import Border

if TYPE_CHECKING:
    from tqpo.envs.budget import Budget  # needs JAX, which workers do without

VECTORS = ("sync", "async", "ray")


@dataclasses.dataclass(frozen=True)
class HostOptions:
    """How environments on the host are run."""

    vector: str = "sync"  # one after the other in this process, "async": each in a process of its own, "ray": on actors
    timeout: float = 60.0  # s that one call may take
    restarts: int = 3  # of each environment, after faults
    max_steps: int | None = None  # after which an episode is truncated; None: the environment ends it

    def __post_init__(self) -> None:
        if self.vector not in VECTORS:
            raise ConfigError(f"vector = {self.vector!r}: {' or '.join(VECTORS)}")
        if not self.timeout > 0:
            raise ConfigError(f"env_timeout = {self.timeout}: positive, in seconds")
        if self.restarts < 0:
            raise ConfigError(f"env_restarts = {self.restarts}: not negative")
        if self.max_steps is not None and self.max_steps < 1:
            raise ConfigError(f"max_steps = {self.max_steps}: at least 1")


@dataclasses.dataclass(frozen=True)
class HostSpec:
    """An environment on the host: a `types.Spec`, and how to build and read it."""

    task: str
    settings: tuple[tuple[str, Any], ...]
    cost_fn: str | None
    options: HostOptions
    autoreset: str | None  # Gymnasium's mode, where the factory makes vectors
    obs_size: int
    action_size: int
    discrete: bool
    cost_names: tuple[str, ...]  # empty before the first step
    max_steps: int
    border: Border = dataclasses.field(compare=False, repr=False)
    cost_function: Callable[..., Any] | None = dataclasses.field(compare=False, repr=False)  # what `cost_fn` names
    factory: Callable[..., Any] | None = dataclasses.field(compare=False, repr=False)  # what `task` names
    min_steps: int = 1
    budget: "Budget | None" = None  # what is left of it is part of the observation, `obs_size` included

    @property
    def obs_shape(self) -> tuple[int, ...]:
        return self.border.obs_shape

    @property
    def choices(self) -> tuple[int, ...]:
        return self.border.choices

    def make(self, **more: Any) -> Any:
        """An environment; with `num_envs`, where `autoreset` is given, a vector."""
        return build(self.task, self.settings, self.options.timeout, self.factory, **more)

    def keep(self, obs: Any) -> Any:
        """An observation as `cost_fn` will see it after the next step."""
        return obs if self.cost_function is None else copy.deepcopy(obs)

    def describe(self) -> dict[str, Any]:
        """What `config.json` keeps, to see whether a resumed run meets the same environment."""
        names = ("obs_size", "action_size", "discrete", "max_steps")
        return {name: getattr(self, name) for name in names} | {"cost_names": list(self.cost_names)}
