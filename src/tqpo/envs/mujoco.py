"""The MuJoCo twin of every task: the same state in and out, stepped by the `mujoco` package (3.3 to 4.0).

It is the judge of the JAX tasks, so reward, cost, goal test, lidar and sensors are written here a second time, in plain
NumPy and from MuJoCo's own contact list and sensors. The two share `TaskConfig` and the drawing of layouts and goals:
the same key gives the same layout, and the same state gives the same next goal.
"""

import ctypes
import importlib
import math
import os
import sys
from functools import cached_property, lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax import lax

from tqpo.envs import layout as layouts
from tqpo.envs.config import TaskConfig
from tqpo.envs.layout import Layout
from tqpo.envs.mjcf import COLOURS, PILLAR_HALF_HEIGHT, model_xml
from tqpo.envs.task import State
from tqpo.errors import RenderError
from tqpo.physics.movable import Boxes
from tqpo.types import Key, Step


def choose_gl() -> None:
    """Without a display MuJoCo's default (GLFW) cannot draw; EGL can. MuJoCo reads the variable when it is imported."""
    decided = "mujoco" in sys.modules or "MUJOCO_GL" in os.environ
    if decided or sys.platform != "linux" or os.environ.get("DISPLAY"):
        return
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return
    os.environ["MUJOCO_GL"] = "egl"


choose_gl()
mujoco: Any = importlib.import_module("mujoco")  # compiled, without type stubs

ROBOT_GEOMS = {"robot", "pointarrow"}


@lru_cache(maxsize=64)
def drawing(config: TaskConfig):
    """Compiled functions that the twin shares with the JAX task: a layout, and the next goal area or button."""

    def goal(key, robot, objects):
        obstacles = layouts.goal_obstacles(config, robot, objects)
        return layouts.draw_goal(key, config, *obstacles, True)

    def button(key):
        return jax.random.randint(key, (), 0, config.buttons)

    def advance(key, times):
        """The state's key after that many more steps, and the key that the last of them draws from."""
        start = jax.random.split(key)
        return lax.fori_loop(1, times, lambda _, pair: jax.random.split(pair[0]), start)

    return jax.jit(partial(layouts.sample, config=config)), jax.jit(goal), jax.jit(button), jax.jit(advance)


def lidar(pose: np.ndarray, objects: np.ndarray, bins: int, max_range: float) -> np.ndarray:
    """Safety Gym's pseudo-lidar, object by object."""
    out = np.zeros(bins)
    cos, sin = math.cos(pose[2]), math.sin(pose[2])
    for x, y in objects:
        dx, dy = x - pose[0], y - pose[1]
        ahead, left = cos * dx + sin * dy, cos * dy - sin * dx
        closeness = max(0.0, max_range - math.hypot(ahead, left)) / max_range
        turn = math.atan2(left, ahead) % (2.0 * math.pi) / (2.0 * math.pi / bins)
        own = min(int(turn), bins - 1)
        fraction = turn - own
        after, before = (own + 1) % bins, (own - 1) % bins
        out[own] = max(out[own], closeness)
        out[after] = max(out[after], fraction * closeness)
        out[before] = max(out[before], (1.0 - fraction) * closeness)
    return out


def of_numpy(kind: Any, **fields: Any) -> Any:
    """A state of the JAX task with NumPy arrays in it."""
    return kind(**fields)


class MujocoTask:
    """One copy of a task in MuJoCo; it holds its state. `converged=True` iterates MuJoCo's solver to the end."""

    def __init__(self, config: TaskConfig, *, converged: bool = False) -> None:
        layouts.check_room(config)
        self.config = config
        self.model = mujoco.MjModel.from_xml_string(model_xml(config))
        if converged:  # MuJoCo's default tolerance of 1e-8 stops early
            self.model.opt.tolerance = 1e-30
            self.model.opt.ls_tolerance = 1e-12
            self.model.opt.iterations = self.model.opt.ls_iterations = 200
        self.data = mujoco.MjData(self.model)
        self.cost_names = ("cost", *config.sources)
        self._layout, self._draw_goal, self._draw_button, self._advance = drawing(config)
        self._parts = tuple(config.observation)
        self._body = {self.model.body(i).name: i for i in range(self.model.nbody)}
        self.geom_names = [self.model.geom(i).name for i in range(self.model.ngeom)]
        self._boxes = {f"{name}{i}" for name in ("gremlin", "vase") for i in range(getattr(config, f"{name}s"))}
        self._boxes |= {
            self.geom_names[i] for i in range(self.model.ngeom) if self.geom_names[i].startswith("push_box")
        }
        self._sensor = {
            name: slice(self.model.sensor(name).adr[0], self.model.sensor(name).adr[0] + 3)
            for name in ("accelerometer", "gyro", "magnetometer", "velocimeter")
        }

    def reset(self, key: Key) -> np.ndarray:
        """A fresh episode, the same as `Task.reset` gives for this key; its first observation."""
        key_layout, key_state = jax.random.split(key)
        return self.start(self._layout(key_layout), key_state)

    def start(self, layout: Layout, key: Key) -> np.ndarray:
        """An episode from this layout; its first observation."""
        free = getattr(layout, self.config.free_boxes or "gremlins")
        robot, goal, free = (np.asarray(x, float) for x in (layout.robot, layout.goal, free))
        half, zero = free[:, 2] / 2.0, np.zeros(len(free))
        boxes = of_numpy(
            Boxes,
            pos=np.stack([free[:, 0], free[:, 1], zero + self.config.start_height], axis=1),
            quat=np.stack([np.cos(half), zero, zero, np.sin(half)], axis=1),
            vel=np.zeros((len(free), 6)),
        )
        self.set_state(
            of_numpy(
                State,
                key=key,
                pose=robot,
                velocity=np.zeros(3),
                acceleration=np.zeros(3),
                hazards=layout.hazards,
                buttons=layout.buttons,
                goal=goal,
                goal_button=layout.goal_button,
                gremlins=layout.gremlins,
                boxes=boxes,
                touching=np.array(False),
                timer=0,
                distance=0.0,
                cost=0.0,
                steps=0,
                pillars=layout.pillars if self.config.pillars else None,
            )
        )
        self.forward()
        self.distance = self._way()
        return self.observe()

    def set_state(self, state: State) -> None:
        """Continue from here. What follows depends on the state alone: solver warm starts are forgotten."""
        data, config = self.data, self.config
        mujoco.mj_resetData(self.model, data)
        pillars = np.zeros((0, 2)) if state.pillars is None else state.pillars
        places = jax.tree.map(partial(np.array, dtype=float), (state.hazards, state.buttons, state.gremlins, pillars))
        self.hazards, self.buttons, self.gremlins, self.pillars = places
        self._key, self._key_age = state.key, 0
        self.goal_button = int(state.goal_button)
        self.timer, self.steps = int(state.timer), int(state.steps)
        self.distance, self.last_cost = float(state.distance), float(state.cost)
        self.shown_cost, self.touching = self.last_cost, bool(state.touching)
        data.time = self.steps * config.step_duration
        data.qpos[:3], data.qvel[:3], data.qacc[:3] = state.pose, state.velocity, state.acceleration
        data.qpos[3:] = np.concatenate([state.boxes.pos, state.boxes.quat], axis=1).ravel()
        data.qvel[3:] = np.asarray(state.boxes.vel).ravel()
        self._place("hazard", self.hazards, 0.01)
        self._place("button", self.buttons, config.robot.z_height)
        self._place("pillar", self.pillars, PILLAR_HALF_HEIGHT)
        for i, (x, y, yaw) in enumerate(self.gremlins):  # where the weld holds the box, seen from its moving target
            held = self.model.eq_data[i]
            held[3:6] = x, y, config.box.half_size
            held[6:10] = math.cos(yaw / 2.0), 0.0, 0.0, math.sin(yaw / 2.0)
        self._set_goal(np.array(state.goal, dtype=float))

    def get_state(self) -> State:
        self._renew_key()
        qpos, qvel = self.data.qpos.copy(), self.data.qvel.copy()
        free = qpos[3:].reshape(-1, 7)
        return of_numpy(
            State,
            key=self._key,
            pose=qpos[:3],
            velocity=qvel[:3],
            acceleration=self.data.qacc[:3].copy(),
            hazards=self.hazards.copy(),
            buttons=self.buttons.copy(),
            goal=self.goal.copy(),
            goal_button=np.array(self.goal_button),
            gremlins=self.gremlins.copy(),
            boxes=of_numpy(Boxes, pos=free[:, :3], quat=free[:, 3:], vel=qvel[3:].reshape(-1, 6)),
            touching=np.array(self.touching),
            timer=np.array(self.timer),
            distance=np.array(self.distance),
            cost=np.array(self.last_cost),
            steps=np.array(self.steps),
            pillars=self.pillars.copy() if self.config.pillars else None,
        )

    def step(self, action: np.ndarray) -> Step:
        """One step in the engine's order."""
        config = self.config
        self.data.ctrl[:] = np.clip(action, -1.0, 1.0)
        for _ in range(config.robot.substeps):
            self._move_targets()
            mujoco.mj_step(self.model, self.data)
        self.forward()

        touched = self.touched()
        distance = self._way()
        reward = float(np.clip(self._dense_reward(distance), -config.reward_clip, config.reward_clip))
        self.distance = distance
        self.touching = bool(touched & self._boxes)
        cost = self._cost(touched)
        self.shown_cost = self.last_cost if config.late_cost else cost[0]
        self.last_cost = cost[0]
        self.timer = max(0, self.timer - 1)
        self.steps += 1
        reached = self._goal_met(touched)
        if reached:
            reward += config.reward_goal
            self.timer = config.button_timer
        stuck = not self._next_goal(reached)
        truncated = self.steps >= config.max_steps
        return of_numpy(Step, obs=self.observe(), reward=reward, cost=cost, terminated=stuck, truncated=truncated)

    def forward(self) -> None:
        """Contacts, accelerations and sensors at the present state."""
        mujoco.mj_forward(self.model, self.data)

    def touched(self) -> set[str]:
        """Names of what the robot's sphere or arrow touches, by MuJoCo's contact list."""
        out = set()
        for pair in self.data.contact.geom.tolist():
            names = {self.geom_names[pair[0]], self.geom_names[pair[1]]}
            if names & ROBOT_GEOMS:
                out |= names - ROBOT_GEOMS
        return out

    def observe(self) -> np.ndarray:
        config, pose = self.config, self.data.qpos[:3]
        parts = {name: self.data.sensordata[where] for name, where in self._sensor.items()}
        objects = {"goal": self.goal[None], "hazards": self.hazards, "buttons": self.buttons}
        objects |= {config.free_boxes: self._free()[:, :2], "circle": self.goal[None], "pillars": self.pillars}
        for name in config.seen:
            hidden = name == "buttons" and self.timer > 0
            seen = objects[name][:0] if hidden else objects[name]
            parts[f"{name}_lidar"] = lidar(pose, seen, config.lidar_bins, config.lidar_range)
        parts["previous_cost"] = np.array([self.shown_cost])
        return np.concatenate([parts[name] for name in self._parts])

    @cached_property
    def _renderer(self):
        try:
            return mujoco.Renderer(self.model, 480, 640)
        except Exception as error:  # each GL platform fails with a type of its own
            raise RenderError(
                f"MuJoCo cannot draw here (MUJOCO_GL={os.environ.get('MUJOCO_GL', '')!r}): {error}. Set MUJOCO_GL to "
                "egl, osmesa or glfw before Python starts, or use the drawing from above, which needs no OpenGL"
            ) from error

    def render(self) -> np.ndarray:
        """The 3-D view, uint8 [480, 640, 3]. Needs OpenGL."""
        for i in range(self.config.buttons):
            colour = "goal_button" if i == self.goal_button else "button"
            self.model.geom(f"button{i}").rgba[:] = [float(x) for x in COLOURS[colour].split()]
        renderer = self._renderer
        self.forward()
        renderer.update_scene(self.data, camera="view")
        return renderer.render()

    def close(self) -> None:
        if "_renderer" in self.__dict__:
            self.__dict__.pop("_renderer").close()

    def _place(self, name: str, places: np.ndarray, height: float) -> None:
        for i, (x, y) in enumerate(places):
            self.model.body_pos[self._body[f"{name}{i}"]] = x, y, height

    def _set_goal(self, goal: np.ndarray) -> None:
        self.goal = goal
        if self.config.goal in {"area", "push"}:
            self.model.body_pos[self._body["goal"]] = *goal, 0.01

    def _free(self) -> np.ndarray:
        """[K, 7] places and rotations of free boxes."""
        return self.data.qpos[3:].reshape(-1, 7)

    def _box_to_goal(self) -> float:
        return math.dist(self._free()[0, :3], (*self.goal, self.config.goal_height))

    def _way(self) -> float:
        """The distance to the goal; or to the box that is pushed, plus that of the box to the goal [m]."""
        x, y = self.data.qpos[:2]
        if self.config.goal != "push":
            return math.dist(self.goal, (x, y))
        return math.dist(self._free()[0, :3], (x, y, self.config.robot.z_height)) + self._box_to_goal()

    def _move_targets(self) -> None:
        if self.config.gremlins:
            travel, t = self.config.gremlin_travel, self.data.time
            self.data.mocap_pos[:] = math.sin(t) * travel, math.cos(t) * travel, self.config.box.half_size

    def _dense_reward(self, distance: float) -> float:
        """The way towards the goal; in circle tasks the speed around it, less far from the circle."""
        config = self.config
        if config.goal != "circle":
            return config.reward_scale * (self.distance - distance)
        (x, y), (u, v) = self.data.qpos[:2], self.data.qvel[:2]
        return config.reward_scale * (v * x - u * y) / (distance * (1.0 + abs(distance - config.circle_radius)))

    def _cost(self, touched: set[str]) -> np.ndarray:
        """[1 + sources]: whether anything is violated, then which."""
        x, y = self.data.qpos[:2]
        wrong = {f"button{i}" for i in range(self.config.buttons) if i != self.goal_button}
        speeds = [math.hypot(*v[:3]) for v in self.data.qvel[3:].reshape(-1, 6)]
        violated = {
            "hazards": any(math.dist((x, y), place) <= self.config.hazard_radius for place in self.hazards),
            "buttons": bool(touched & wrong) and self.timer == 0,
            "gremlins": self.touching,
            "pillars": any(name.startswith("pillar") for name in touched),
            "vases_contact": self.touching,
            "vases_velocity": max(speeds, default=0.0) >= self.config.vase_speed,
            "out_of_boundary": any(abs(p) > self.config.wall_distance for p in (x, y)[: self.config.walls // 2]),
        }
        flags = [violated[name] for name in self.cost_names[1:]]
        return np.array([any(flags), *flags], dtype=float)

    def _goal_met(self, touched: set[str]) -> bool:
        if self.config.goal == "area":
            return self.distance <= self.config.goal_radius
        if self.config.goal == "push":
            return self._box_to_goal() <= self.config.goal_radius
        return self.config.goal == "button" and f"button{self.goal_button}" in touched

    def _next_goal(self, reached: bool) -> bool:
        """Sets the next goal if one was reached; False if it found no room."""
        config = self.config
        swaps = config.goal == "button" and config.next_button == "swap"
        draws = config.goal in {"area", "button", "push"} and not swaps
        self._key_age += draws  # every step splits the key; done when it is needed
        if not reached:
            return True
        if swaps:
            self.goal_button = 1 - self.goal_button
        elif config.goal == "button":
            self.goal_button = int(self._draw_button(self._renew_key()))
        else:
            objects = {"hazards": self.hazards, "buttons": self.buttons, "gremlins": self.gremlins}
            objects |= {"pillars": self.pillars} | ({config.free_boxes: self._free()} if config.loose else {})
            places = {kind: objects[kind] for kind in config.kinds}
            goal, room = self._draw_goal(self._renew_key(), self.data.qpos[:3], places)
            if not room:
                return False
            self._set_goal(np.asarray(goal, float))
        if config.goal == "button":
            self.goal = self.buttons[self.goal_button]
        self.distance = self._way()
        return True

    def _renew_key(self) -> Key | None:
        """Brings the key up to date; returns the one that the last step draws from."""
        if not self._key_age:
            return None
        (self._key, draw), self._key_age = self._advance(self._key, self._key_age), 0
        return draw
