"""The border to Gymnasium: `gymnasium.make("tqpo/SimpleEnv-v0")` after `import tqpo`.

| argument of `make` | meaning |
|---|---|
| `physics` | "jax" (default) or "mujoco", the twin on the `mujoco` package |
| `render_mode` | "rgb_array": a drawing from above without OpenGL |
| `view` | "top" (default), or "3d" for MuJoCo's own picture with `physics="mujoco"` |
| `strict` | an action outside [-1, 1] is an error (default); `False` clips it |
| any field of `TaskConfig` | a variant, e.g. `max_steps=200` |

`reset(options={"layout": {...}})` places things: "robot": [x, y, heading], "hazards", "buttons": [[x, y], …],
"pillars" the same, "gremlins", "vases", "push_box": [[x, y, heading], …], "goal": [x, y] or the index of the goal
button; what is left out is drawn at random.
`info["layout"]` has the same form. `info["cost"]` is the indicator that the limit applies to;
`info["cost_hazards"]` and so on are its sources.

`gymnasium.make_vec("tqpo/SimpleEnv-v0", num_envs=900)` runs the JAX batch as one program; `autoreset_mode` is
Gymnasium's "NextStep" (default), "SameStep" or "Disabled". Copy i under seed s is the single environment
under seed s + i.
"""

import os
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tqpo import register_tasks
from tqpo.envs import layout as layouts
from tqpo.envs.config import TaskConfig
from tqpo.envs.layout import Layout
from tqpo.envs.registry import make
from tqpo.envs.task import State, Task
from tqpo.errors import ActionError, ConfigError, LayoutError
from tqpo.types import Key, Step

FPS = 50  # 20 ms a step


class Programs(NamedTuple):
    """Compiled functions of a task."""

    sample: Any
    start: Any
    step: Any


@lru_cache(maxsize=64)
def programs(task: Task, batched: bool = False) -> Programs:
    """For one copy or for a batch; shared by all environments of this task, so that a second one compiles nothing."""
    single = partial(layouts.sample, config=task.config), task.start, task.step
    return Programs(*(jax.jit(jax.vmap(f) if batched else f) for f in single))


def keys_of(seeds: Sequence[int | None], random: np.random.Generator) -> Key:
    """One key [N] per seed; without a seed, from `random`."""
    words = [
        random.integers(2**32, size=2, dtype=np.uint32)
        if seed is None
        else np.random.SeedSequence(seed).generate_state(2)
        for seed in seeds
    ]
    return jax.random.wrap_key_data(jnp.asarray(np.stack(words)), impl="threefry2x32")


@jax.jit
def split_keys(keys: Key) -> tuple[Key, Key, Key]:
    """Keys [N] → their successors, and the keys of the next episode's layout and state, split as in `Task.reset`."""
    following, episode = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    layout, state = jnp.moveaxis(jax.vmap(jax.random.split)(episode), 1, 0)
    return following, layout, state


def check_action(action: Any, shape: tuple[int, ...], strict: bool) -> np.ndarray:
    """The action as float32 of this shape, finite and in [-1, 1]."""
    try:
        array = np.asarray(action, dtype=np.float32)
    except (TypeError, ValueError):
        raise ActionError(f"action {action!r} is not an array of numbers of shape {shape}") from None
    if array.shape != shape:
        raise ActionError(f"action has shape {array.shape}; it must have shape {shape}")
    if not np.all(np.isfinite(array)):
        raise ActionError(
            f"action has the value {array[~np.isfinite(array)][0]}; every entry must be finite, in [-1, 1]"
        )
    beyond = np.abs(array) > 1.0
    if strict and np.any(beyond):
        raise ActionError(
            f"action has the value {array[beyond][0]}; every entry must be in [-1, 1] (strict=False clips instead)"
        )
    return np.clip(array, -1.0, 1.0)


@cache
def first_process() -> int:
    """Where the first environment was made. JAX's threads are there, and a fork of it is without them."""
    return os.getpid()


def check_process() -> None:
    """Raises in a fork, where JAX would wait for ever."""
    if os.getpid() != first_process():
        raise ConfigError(
            "JAX does not survive a fork: leave out vectorization_mode (all copies are then one program), or add "
            'vector_kwargs={"context": "spawn"}'
        )


def check_options(options: dict[str, Any] | None, allowed: tuple[str, ...]) -> dict[str, Any]:
    for name in options or {}:
        if name not in allowed:
            raise LayoutError(f"reset has no option {name!r}; allowed: {', '.join(allowed)}")
    return options or {}


def choose(name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")
    return value


def observation_space(config: TaskConfig) -> Box:
    parts = config.observation_table()
    bounds = np.concatenate([np.tile(part.range or (-np.inf, np.inf), (part.stop - part.start, 1)) for part in parts])
    return Box(*bounds.T.astype(np.float32), dtype=np.float32)


def action_space() -> Box:
    return Box(-1.0, 1.0, (2,), np.float32)


class JaxWorld:
    """One copy of a JAX task that holds its state, as `MujocoTask` does."""

    def __init__(self, task: Task) -> None:
        self._programs = programs(task)

    def start(self, layout: Layout, key: Key) -> np.ndarray:
        self._state, obs = self._programs.start(layout, key)
        return np.asarray(obs)

    def step(self, action: np.ndarray) -> Step:
        self._state, step = self._programs.step(self._state, action)
        return jax.device_get(step)

    def get_state(self) -> State:
        return jax.device_get(self._state._replace(key=None))

    def close(self) -> None:
        pass


class TaskEnv(gymnasium.Env):
    """One environment. Costs are in `info`; `SafetyGymnasium` gives them as a value of their own."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012

    def __init__(
        self,
        task: str,
        physics: str = "jax",
        render_mode: str | None = None,
        view: str = "top",
        strict: bool = True,
        **changes: Any,
    ) -> None:
        first_process()
        choose("physics", physics, ("jax", "mujoco"))
        choose("view", view, ("top", "3d") if physics == "mujoco" else ("top",))
        self.render_mode = choose("render_mode", render_mode, (None, "rgb_array"))
        self.task = make(task, **changes)
        self.config = self.task.config
        self.observation_space, self.action_space = observation_space(self.config), action_space()
        self._view, self._strict = view, strict
        self._keys: Key | None = None
        self._running: bool | None = None  # None before the first reset
        if physics == "mujoco":
            from tqpo.envs.mujoco import MujocoTask

            self.world = MujocoTask(self.config)
        else:
            self.world = JaxWorld(self.task)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        check_process()
        super().reset(seed=seed)
        options = check_options(options, ("layout",))
        if seed is not None or self._keys is None:
            self._keys = keys_of([seed], self.np_random)
        self._keys, key_layout, key_state = split_keys(self._keys)
        layout = programs(self.task).sample(key_layout[0])
        if "layout" in options:
            layout = layouts.parse(options["layout"], layout, self.config)
        self._running, self._return, self._episode_cost = True, 0.0, 0.0
        self._obs = self.world.start(layout, key_state[0]).astype(np.float32)
        return self._obs.copy(), {"layout": layouts.describe(layout, self.config)}

    def step(self, action: Any):
        if not self._running:
            reason = "before the first reset()" if self._running is None else "after the end of the episode"
            raise ResetNeeded(f"step() was called {reason}: call reset() first")
        step = self.world.step(check_action(action, (2,), self._strict))
        terminated, truncated, reward = bool(step.terminated), bool(step.truncated), float(step.reward)
        info = {name if i == 0 else f"cost_{name}": float(step.cost[i]) for i, name in enumerate(self.task.cost_names)}
        self._running = not (terminated or truncated)
        self._return, self._episode_cost = self._return + reward, self._episode_cost + info["cost"]
        self._obs = np.asarray(step.obs, np.float32)
        return self._obs.copy(), reward, terminated, truncated, info

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            gymnasium.logger.warn('render() draws nothing without render_mode="rgb_array" in gymnasium.make')
            return None
        if self._running is None:
            raise ResetNeeded("render() was called before the first reset(): call reset() first")
        if self._view == "3d":
            return self.world.render()  # type: ignore[union-attr]
        from tqpo.envs.render import Caption, draw

        caption = Caption(episode_return=self._return, episode_cost=self._episode_cost)
        return draw(self.world.get_state(), self._obs, self.config, caption)

    def close(self) -> None:
        self.world.close()


class TaskVectorEnv(VectorEnv):
    """A batch of JAX environments as one program."""

    def __init__(
        self,
        num_envs: int = 1,
        *,
        task: str,
        physics: str = "jax",
        render_mode: str | None = None,
        strict: bool = True,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        **changes: Any,
    ) -> None:
        if physics != "jax":
            raise ConfigError(f'physics={physics!r} has no batch of its own; use vectorization_mode="sync" or "async"')
        choose("autoreset_mode", autoreset_mode, tuple(v for mode in AutoresetMode for v in (mode, mode.value)))
        self.task = make(task, **changes)
        self.config = self.task.config
        self.num_envs = num_envs
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.render_mode = choose("render_mode", render_mode, (None, "rgb_array"))
        self.metadata = {**TaskEnv.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space, self.single_action_space = observation_space(self.config), action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._strict, self._programs = strict, programs(self.task, batched=True)
        self._state: State | None = None

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None):
        options = check_options(options, ("layout", "reset_mask"))
        n = self.num_envs
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
            seeds = [int(seed) + i for i in range(n)]
        else:
            seeds = [None] * n if seed is None else list(seed)
        if len(seeds) != n:
            raise ConfigError(f"seed has {len(seeds)} entries; it must have one for each of the {n} environments")
        mask = np.asarray(options.get("reset_mask", np.ones(n, bool)))
        if mask.shape != (n,) or mask.dtype != bool:
            raise LayoutError(f"reset_mask of {mask.dtype}{mask.shape} must be a bool array of shape ({n},)")
        if self._state is None:
            mask = np.ones(n, bool)
            self._keys = keys_of(seeds, self.np_random)
            self._over, self._return, self._episode_cost = np.zeros(n, bool), np.zeros(n), np.zeros(n)
            self._obs = np.zeros(self.observation_space.shape, np.float32)  # type: ignore[arg-type]
        elif seed is not None:
            self._keys = jnp.where(mask, keys_of(seeds, self.np_random), self._keys)
        info = self._begin(mask, options.get("layout"))
        return self._obs.copy(), info

    def step(self, actions: Any):
        if self._state is None:
            raise ResetNeeded("step() was called before the first reset(): call reset() first")
        if self.autoreset_mode == AutoresetMode.DISABLED and np.any(self._over):
            over = np.flatnonzero(self._over).tolist()
            raise ResetNeeded(f"environments {over} are over: reset them with options={{'reset_mask': …}}")
        actions = check_action(actions, (self.num_envs, 2), self._strict)
        begin = self._over.copy()  # under NEXT_STEP these start anew now, and their action is ignored
        self._state, step = self._programs.step(self._state, actions)
        step = jax.device_get(step)
        self._obs = step.obs.astype(np.float32)
        reward = np.where(begin, 0.0, step.reward)
        terminated, truncated = step.terminated & ~begin, step.truncated & ~begin
        cost = np.where(begin[:, None], 0.0, step.cost)
        self._return, self._episode_cost = self._return + reward, self._episode_cost + cost[:, 0]
        self._over = terminated | truncated
        info = self._costs(cost, ~begin)
        if np.any(begin):
            info |= self._begin(begin)
        if self.autoreset_mode == AutoresetMode.SAME_STEP and np.any(self._over):
            over = self._over.copy()
            final = np.full(self.num_envs, None, dtype=object)
            for i in np.flatnonzero(over):
                final[i] = self._obs[i].copy()
            info = self._costs(cost, ~over) | {"final_obs": final, "_final_obs": over}
            info |= {"final_info": self._costs(cost, over), "_final_info": over.copy()}
            info |= self._begin(over)
        return self._obs.copy(), reward, terminated, truncated, info

    def render(self) -> tuple[np.ndarray, ...] | None:
        if self.render_mode is None or self._state is None:
            return None
        from tqpo.envs.render import Caption, draw

        states = jax.device_get(self._state._replace(key=None))
        return tuple(
            draw(
                jax.tree.map(lambda x, i=i: x[i], states),
                self._obs[i],
                self.config,
                Caption(episode_return=self._return[i], episode_cost=self._episode_cost[i]),
            )
            for i in range(self.num_envs)
        )

    def _begin(self, mask: np.ndarray, given: Any = None) -> dict[str, Any]:
        """Starts new episodes under the mask; the info that Gymnasium expects of a reset."""
        following, key_layout, key_state = split_keys(self._keys)
        self._keys = jnp.where(mask, following, self._keys)
        layout = self._programs.sample(key_layout)
        if given is not None:
            each = (jax.tree.map(lambda x, i=i: x[i], layout) for i in range(self.num_envs))
            parsed = [layouts.parse(given, base, self.config) for base in each]
            layout = jax.tree.map(lambda *parts: jnp.stack(parts), *parsed)
        fresh, obs = self._programs.start(layout, key_state)
        self._state = fresh if self._state is None else merge(mask, fresh, self._state)
        self._obs = np.where(mask[:, None], np.asarray(obs, np.float32), self._obs)
        for record in (self._over, self._return, self._episode_cost):
            record[mask] = 0
        described = {name: np.array(getattr(layout, name)) for name in ("robot", *self.config.kinds)}
        if field := layouts.GOAL_FIELD.get(self.config.goal):
            described["goal"] = np.array(getattr(layout, field))
        described |= {f"_{name}": mask.copy() for name in list(described)}
        return {"layout": described, "_layout": mask.copy()}

    def _costs(self, cost: np.ndarray, mask: np.ndarray) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for i, name in enumerate(self.task.cost_names):
            key = name if i == 0 else f"cost_{name}"
            info |= {key: np.where(mask, cost[:, i], 0.0), f"_{key}": mask.copy()}
        return info


@jax.jit
def merge(mask, new: State, old: State) -> State:
    """`new` where the mask [N] is true, else `old`."""
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old)


class SafetyGymnasium(gymnasium.Wrapper):
    """Safety-Gymnasium's six values of a step: observation, reward, cost, terminated, truncated, info."""

    def step(self, action: Any):  # type: ignore[override]
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, info["cost"], terminated, truncated, info


register_tasks()
