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
from tqpo.physics.dispatch import make_drive, make_push, make_shove
from tqpo.physics.drive import Motion, components
from tqpo.physics.push import Boxes, BoxMotion, start_boxes
from tqpo.types import Array, Key, Step


class State(NamedTuple):
    """All of one episode. `boxes` is empty ([0, …]) in tasks without any."""

    key: Key
    pose: Array  # [3] x, y [m], heading [rad]
    velocity: Array  # [3] m/s, m/s, rad/s, world frame
    acceleration: Array  # [3] under the last control
    hazards: Array  # [H, 2] m
    buttons: Array  # [N, 2] m
    goal: Array  # [2] m
    goal_button: Array  # [] int, -1 without buttons
    gremlins: Array  # [G, 3] centre of the circle [m], heading [rad]
    boxes: Boxes  # the bodies of gremlins, of vases, or of the box that is pushed
    touching: Array  # [] bool: the robot touches one of them
    timer: Array  # [] int, steps until buttons count again
    distance: Array  # [] m to the goal, the reference of the reward; with a box to push, to the box and on to the goal
    cost: Array  # [] indicator of the last step
    steps: Array  # [] int
    pillars: Array | None = None  # [P, 2] m; None without any


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

    def may_end(self, state: State, steps: int) -> Array | None:
        """Whether an episode ends within so many steps. Unknown where a new goal may find no room, and not told where fresh
        starts are cheap: then it is quicker to have them all at once."""
        if self.config.goal in {"area", "push"} or layouts.acceptance(self.config) > layouts.FEW_ACCEPTED:
            return None
        return state.steps + steps >= self.config.max_steps

    @cached_property
    def _move(self):
        config = self.config
        if config.gremlins:
            return make_push(config.robot, config.box, config.gremlin_travel, config.button_radius)
        if config.loose:
            return make_shove(config.robot, config.loose_model, config.pillar_radius)
        return make_drive(config.robot, config.solid_radius)

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
            boxes=start_boxes(getattr(layout, config.free_boxes or "gremlins"), config.start_height),
            touching=jnp.array(False),
            timer=jnp.array(0),
            distance=jnp.zeros((), zero.dtype),
            cost=jnp.zeros((), zero.dtype),
            steps=jnp.array(0),
            pillars=layout.pillars if config.pillars else None,
        )
        state = state._replace(distance=way(config, state))
        return state, observe(config, state)

    def step(self, state: State, action: Array) -> tuple[State, Step]:
        config, before = self.config, state
        state = self._advance(state, jnp.clip(action, -1.0, 1.0))
        distance = way(config, state)
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
        solids = state.buttons if state.pillars is None else state.pillars
        if not self.config.free_boxes:
            motion: Motion = self._move(state.pose, state.velocity, control, solids)
            return state._replace(pose=motion.pose, velocity=motion.velocity, acceleration=motion.acceleration)
        time = state.steps * self.config.step_duration
        boxes = (state.boxes, state.gremlins, time) if self.config.gremlins else (state.boxes,)
        moved: BoxMotion = self._move(state.pose, state.velocity, control, *boxes, solids)
        return state._replace(
            pose=moved.pose,
            velocity=moved.velocity,
            acceleration=moved.acceleration,
            boxes=moved.boxes,
            touching=moved.touching,
        )


def solve_still(config: TaskConfig, layout: Layout) -> Array:
    """Acceleration of the robot at rest without commands: zero unless it was placed in contact with something solid."""
    pose, zero = layout.robot, jnp.zeros(3, layout.robot.dtype)
    solids = layout.pillars if config.pillars else layout.buttons
    points = [(solids[k, 0], solids[k, 1]) for k in range(solids.shape[0])]
    still = components(zero)
    return jnp.stack(
        planar.acceleration(config.robot, components(pose), still, still[:2], points, config.solid_radius)  # pyright: ignore[reportArgumentType, reportCallIssue]  (tuples of unknown length)
    )


def box_to_goal(config: TaskConfig, state: State) -> Array:
    """[3] m, from the box that is pushed to the point where it should be."""
    height = jnp.full(1, config.goal_height, state.goal.dtype)
    return jnp.concatenate([state.goal, height]) - state.boxes.pos[0]


def way(config: TaskConfig, state: State) -> Array:
    """What the reward counts down, m: the distance to the goal; or to the box, plus that of the box to the goal."""
    if config.goal != "push":
        return jnp.linalg.norm(state.goal - state.pose[:2])
    height = jnp.full(1, config.robot.z_height, state.pose.dtype)
    to_box = state.boxes.pos[0] - jnp.concatenate([state.pose[:2], height])
    return jnp.linalg.norm(to_box) + jnp.linalg.norm(box_to_goal(config, state))


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


def touched(config: TaskConfig, state: State, places: Array) -> Array:
    """[N] which of the buttons or pillars at these places the robot's sphere or arrow overlaps."""
    pose = components(state.pose)
    return planar.touches_sphere(config.robot, pose, components(places), config.solid_radius)  # pyright: ignore[reportArgumentType, reportCallIssue]  (tuples of unknown length)


def cost(config: TaskConfig, state: State) -> Array:
    """[1 + sources]: the indicator that anything is violated, then one indicator per source."""
    violated = {}
    if config.hazards:
        gap = state.hazards - state.pose[:2]
        violated["hazards"] = jnp.any(jnp.sum(gap * gap, axis=-1) <= config.hazard_radius**2)
    if config.buttons and config.button_cost:
        wrong = jnp.arange(config.buttons) != state.goal_button
        violated["buttons"] = jnp.any(touched(config, state, state.buttons) & wrong) & (state.timer == 0)
    if state.pillars is not None and config.pillar_cost:
        violated["pillars"] = jnp.any(touched(config, state, state.pillars))
    if config.vases and config.vase_cost:
        violated["vases_contact"] = state.touching
        speed = jnp.linalg.norm(state.boxes.vel[:, :3], axis=-1)
        violated["vases_velocity"] = jnp.any(speed >= config.vase_speed)
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
        return touched(config, state, state.buttons)[state.goal_button]
    if config.goal == "push":
        return jnp.linalg.norm(box_to_goal(config, state)) <= config.goal_radius
    return jnp.array(False)


def new_goal(config: TaskConfig, state: State, reached: Array) -> tuple[State, Array]:
    """The state with its next goal where one was reached, and whether that found room."""
    placed = jnp.array(True)
    if config.goal not in {"area", "button", "push"}:
        return state, placed
    if config.goal != "button":
        key, draw_key = jax.random.split(state.key)
        obstacles = layouts.goal_obstacles(config, state.pose, objects_of(config, state))
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
    return state._replace(
        timer=jnp.where(reached, config.button_timer, state.timer),
        distance=jnp.where(reached & placed, way(config, state), state.distance),
    ), placed


def objects_of(config: TaskConfig, state: State) -> dict[str, Array]:
    """Where the objects of each kind are, [K, …]; of gremlins, the centres of their circles."""
    fixed = {"hazards": state.hazards, "buttons": state.buttons, "gremlins": state.gremlins}
    moved = {config.free_boxes: state.boxes.pos} if config.loose else {}
    pillars = {} if state.pillars is None else {"pillars": state.pillars}
    return fixed | moved | pillars  # pyright: ignore[reportReturnType]


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
    if state.pillars is not None:
        parts["pillars_lidar"] = scan(state.pillars)
    if config.free_boxes:
        parts[f"{config.free_boxes}_lidar"] = scan(state.boxes.pos[:, :2])
    return jnp.concatenate([parts[name] for name in config.observation])
