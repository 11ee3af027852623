"""The tasks of Safety Gym and Safety-Gymnasium as pure functions.

A step, in the engine's order:

1. ten physics steps;
2. dense reward (`dense_reward`), mostly the decrease of the distance to the goal since the last step;
3. cost, with the button timer as it was; then the timer ticks;
4. goal test: +1, the timer is set, a new goal is drawn, and its distance becomes the reference;
5. observation, under a forward pass at the new state.

`Task.observation_table` says what the observation holds.

Reward: the dense one, clipped to ±10, and 1 on reaching the goal. Cost: a vector; its first entry is 1 if any source is
violated, the others say which (`TaskConfig.sources`).

Differences from the original: SimpleEnv swaps its two buttons (the paper's text; `next_button="random"` gives the
engine's rule); the appended cost is that of the step just taken (the released wrapper appends the one before, as
`late_cost=True` does).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tqpo.envs import layout as layouts
from tqpo.envs.config import TaskConfig
from tqpo.envs.layout import Layout
from tqpo.envs.lidar import lidar
from tqpo.envs.observation import FIELD, GRAVITY, Feature, Slice
from tqpo.physics import planar
from tqpo.physics.dispatch import make_drive, make_push
from tqpo.physics.drive import Motion, components
from tqpo.physics.push import Boxes, BoxMotion, start_boxes
from tqpo.types import Array, Key, Step


class State(NamedTuple):
    """All of one episode. `boxes` is empty ([0, …]) in tasks without gremlins."""

    key: Key
    pose: Array  # [3] x, y [m], heading [rad]
    velocity: Array  # [3] m/s, m/s, rad/s, world frame
    acceleration: Array  # [3] under the last control
    hazards: Array  # [H, 2] m
    buttons: Array  # [N, 2] m
    goal: Array  # [2] m
    goal_button: Array  # [] int, -1 without buttons
    gremlins: Array  # [G, 3] centre of the circle [m], heading [rad]
    boxes: Boxes  # the gremlins' bodies
    touching: Array  # [] bool: the robot touches a gremlin
    timer: Array  # [] int, steps until buttons count again
    distance: Array  # [] m to the goal, the reference of the reward
    cost: Array  # [] indicator of the last step
    steps: Array  # [] int


@dataclass(frozen=True)
class Task:
    """One task; hashable, so that programs compiled for it are shared."""

    config: TaskConfig

    def __post_init__(self) -> None:
        layouts.check_room(self.config)

    @property
    def obs_size(self) -> int:
        return self.observation_table()[-1].stop

    def observation_table(self, extra: Iterable[Feature] = ()) -> tuple[Slice, ...]:
        """What each slice of the observation is; `extra` is what a wrapper appends."""
        return self.config.observation_table(extra)

    @property
    def action_size(self) -> int:
        return 2

    @property
    def discrete(self) -> bool:
        return False

    @property
    def cost_names(self) -> tuple[str, ...]:
        return ("cost", *self.config.sources)

    @property
    def max_steps(self) -> int:
        return self.config.max_steps

    @property
    def min_steps(self) -> int:
        return self.config.max_steps  # sooner only if no goal finds room in goal_draws tries

    @cached_property
    def _move(self):
        config = self.config
        if config.gremlins:
            return make_push(config.robot, config.box, config.gremlin_travel, config.button_radius)
        return make_drive(config.robot, config.button_radius)

    def reset(self, key: Key) -> tuple[State, Array]:
        key_layout, key_state = jax.random.split(key)
        return self.start(layouts.sample(key_layout, self.config), key_state)

    def start(self, layout: Layout, key: Key) -> tuple[State, Array]:
        """An episode from this layout."""
        config = self.config
        zero = jnp.zeros(3, layout.robot.dtype)
        still = solve_still(config, layout)
        state = State(
            key=key,
            pose=layout.robot,
            velocity=zero,
            acceleration=still,
            hazards=layout.hazards,
            buttons=layout.buttons,
            goal=layout.goal,
            goal_button=layout.goal_button,
            gremlins=layout.gremlins,
            boxes=start_boxes(config.box, layout.gremlins),
            touching=jnp.array(False),
            timer=jnp.array(0),
            distance=jnp.linalg.norm(layout.goal - layout.robot[:2]),
            cost=jnp.zeros((), zero.dtype),
            steps=jnp.array(0),
        )
        return state, observe(config, state)

    def step(self, state: State, action: Array) -> tuple[State, Step]:
        config, before = self.config, state
        state = self._advance(state, jnp.clip(action, -1.0, 1.0))
        distance = jnp.linalg.norm(state.goal - state.pose[:2])
        reward = jnp.clip(dense_reward(config, before.pose, state, distance), -config.reward_clip, config.reward_clip)
        costs = cost(config, state)
        timer = jnp.maximum(state.timer - 1, 0)
        state = state._replace(distance=distance, cost=costs[0], timer=timer, steps=state.steps + 1)
        reached = goal_met(config, state)
        state, placed = new_goal(config, state, reached)
        step = Step(
            obs=observe(config, state._replace(cost=before.cost) if config.late_cost else state),
            reward=reward + config.reward_goal * reached,
            cost=costs,
            terminated=reached & ~placed,
            truncated=state.steps >= config.max_steps,
        )
        return state, step

    def _advance(self, state: State, control: Array) -> State:
        if not self.config.gremlins:
            motion: Motion = self._move(state.pose, state.velocity, control, state.buttons)
            return state._replace(pose=motion.pose, velocity=motion.velocity, acceleration=motion.acceleration)
        time = state.steps * self.config.step_duration
        boxes = state.boxes, state.gremlins, time
        moved: BoxMotion = self._move(state.pose, state.velocity, control, *boxes, state.buttons)
        return state._replace(
            pose=moved.pose,
            velocity=moved.velocity,
            acceleration=moved.acceleration,
            boxes=moved.boxes,
            touching=moved.touching,
        )


def solve_still(config: TaskConfig, layout: Layout) -> Array:
    """Acceleration of the robot at rest without commands: zero unless it was placed in contact with a button."""
    pose, zero = layout.robot, jnp.zeros(3, layout.robot.dtype)
    points = [(layout.buttons[k, 0], layout.buttons[k, 1]) for k in range(config.buttons)]
    still = components(zero)
    return jnp.stack(
        planar.acceleration(config.robot, components(pose), still, still[:2], points, config.button_radius)  # pyright: ignore[reportArgumentType, reportCallIssue]  (tuples of unknown length)
    )


def dense_reward(config: TaskConfig, before: Array, state: State, distance: Array) -> Array:
    """What a step from the pose `before` pays; `distance` to the goal is that of the new pose.

    Circle: the speed around the origin, over 1 + the distance to the circle. Else the way towards the goal.
    """
    if config.goal == "circle":
        (x, y), (vx, vy) = state.pose[:2], state.velocity[:2]
        radius = jnp.maximum(distance, jnp.finfo(distance.dtype).tiny)
        return config.reward_scale * (x * vy - y * vx) / radius / (1.0 + jnp.abs(radius - config.circle_radius))
    if config.goal == "run":  # a difference of distances of 1 km has no digits left in single precision
        gap, passed = state.goal - before[:2], state.pose[:2] - before[:2]
        return config.reward_scale * jnp.dot(passed, gap + (state.goal - state.pose[:2])) / (state.distance + distance)
    return config.reward_scale * (state.distance - distance)


def touched_buttons(config: TaskConfig, state: State) -> Array:
    """[N] which buttons the robot's sphere or arrow overlaps."""
    pose = components(state.pose)
    return planar.touches_sphere(config.robot, pose, components(state.buttons), config.button_radius)  # pyright: ignore[reportArgumentType, reportCallIssue]  (tuples of unknown length)


def cost(config: TaskConfig, state: State) -> Array:
    """[1 + sources]: the indicator that anything is violated, then one indicator per source."""
    violated = {}
    if config.hazards:
        gap = state.hazards - state.pose[:2]
        violated["hazards"] = jnp.any(jnp.sum(gap * gap, axis=-1) <= config.hazard_radius**2)
    if config.buttons and config.button_cost:
        wrong = jnp.arange(config.buttons) != state.goal_button
        violated["buttons"] = jnp.any(touched_buttons(config, state) & wrong) & (state.timer == 0)
    if config.gremlins:
        violated["gremlins"] = state.touching
    if config.walls:
        violated["out_of_boundary"] = jnp.any(jnp.abs(state.pose[: config.walls // 2]) > config.wall_distance)
    flags = jnp.stack([violated[name] for name in config.sources]) if violated else jnp.zeros(0, bool)
    return jnp.concatenate([jnp.any(flags)[None], flags]).astype(state.pose.dtype)


def goal_met(config: TaskConfig, state: State) -> Array:
    if config.goal == "area":
        return state.distance <= config.goal_radius
    if config.goal == "button":
        return touched_buttons(config, state)[state.goal_button]
    return jnp.array(False)


def new_goal(config: TaskConfig, state: State, reached: Array) -> tuple[State, Array]:
    """The state with its next goal where one was reached, and whether that found room."""
    placed = jnp.array(True)
    if config.goal not in {"area", "button"}:
        return state, placed
    if config.goal == "area":
        key, draw_key = jax.random.split(state.key)
        obstacles = layouts.goal_obstacles(config, state.pose, state.hazards, state.buttons, state.gremlins[:, :2])
        goal, placed = layouts.draw_goal(draw_key, config, *obstacles, reached)
        changed = reached & placed
        state = state._replace(key=key, goal=jnp.where(changed, goal, state.goal))
    else:
        if config.next_button == "swap":
            button = 1 - state.goal_button
        else:
            key, draw_key = jax.random.split(state.key)
            button = jax.random.randint(draw_key, (), 0, config.buttons)
            state = state._replace(key=key)
        button = jnp.where(reached, button, state.goal_button)
        state = state._replace(goal_button=button, goal=state.buttons[button])
    distance = jnp.linalg.norm(state.goal - state.pose[:2])
    return state._replace(
        timer=jnp.where(reached, config.button_timer, state.timer),
        distance=jnp.where(reached & placed, distance, state.distance),
    ), placed


def body_frame(pose: Array, xy: Array) -> Array:
    """A world vector [2] in the robot's frame."""
    cos, sin = jnp.cos(pose[2]), jnp.sin(pose[2])
    return jnp.stack([cos * xy[0] + sin * xy[1], cos * xy[1] - sin * xy[0]])


def observe(config: TaskConfig, state: State) -> Array:
    def scan(objects: Array) -> Array:
        return lidar(state.pose, objects, config.lidar_bins, config.lidar_range)

    def spatial(xy: Array, z) -> Array:
        return jnp.concatenate([xy, jnp.asarray(z, xy.dtype)[None]])

    parts = {
        "accelerometer": spatial(body_frame(state.pose, state.acceleration[:2]), GRAVITY),
        "goal_lidar": scan(state.goal[None]),
        "circle_lidar": scan(state.goal[None]),
        "gyro": spatial(jnp.zeros(2, state.pose.dtype), state.velocity[2]),
        "magnetometer": spatial(body_frame(state.pose, jnp.array([0.0, FIELD], state.pose.dtype)), 0.0),
        "velocimeter": spatial(body_frame(state.pose, state.velocity[:2]), 0.0),
        "previous_cost": state.cost[None],
    }
    if config.hazards:
        parts["hazards_lidar"] = scan(state.hazards)
    if config.buttons:
        parts["buttons_lidar"] = jnp.where(state.timer == 0, scan(state.buttons), 0.0)
    if config.gremlins:
        parts["gremlins_lidar"] = scan(state.boxes.pos[:, :2])
    return jnp.concatenate([parts[name] for name in config.observation])
