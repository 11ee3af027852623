"""A drawing of a task from above, without OpenGL. `python -m reference.pictures` draws those of the docs with it.

Colours follow Safety Gym: robot red, goal green, hazards blue, buttons orange, gremlins purple, vases turquoise, the box
to push yellow, pillars grey, walls red. Around the
robot is one ring per lidar, in the colour of what it sees; the closer an object, the more opaque its bin. A red frame
marks a step with a cost. A run has no end, so there the view goes along.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tqpo.envs.config import TaskConfig
from tqpo.envs.task import State

Colour = tuple[int, int, int]

ROBOT, ROBOT_DARK = (224, 58, 62), (170, 34, 42)
GOAL, HAZARD, BUTTON, GREMLIN = (38, 166, 91), (59, 105, 224), (245, 146, 32), (134, 72, 190)
VASE, PUSH_BOX, PILLAR = (32, 178, 170), (232, 190, 30), (112, 120, 150)
ALARM = (230, 30, 45)
PAGE, ARENA, GRID, EDGE = (240, 242, 246), (255, 255, 255), (235, 238, 243), (203, 209, 219)
INK, FAINT = (38, 44, 56), (134, 142, 156)
KINDS = {
    "goal_lidar": GOAL,
    "circle_lidar": GOAL,
    "hazards_lidar": HAZARD,
    "buttons_lidar": BUTTON,
    "pillars_lidar": PILLAR,
    "vases_lidar": VASE,
    "push_box_lidar": PUSH_BOX,
    "gremlins_lidar": GREMLIN,
}

OVERSAMPLING = 3  # drawn so many times larger, then averaged: smooth edges
MARGIN = 0.3  # m seen beyond the arena
RING_START, RING_WIDTH, RING_GAP = 0.2, 0.045, 0.014  # m


@dataclass(frozen=True)
class Caption:
    """What the line under the picture says, beside the step."""

    episode_return: float = 0.0
    episode_cost: float = 0.0


NOTHING_YET = Caption()


class Canvas:
    """Draws in metres. `span` is half the width of what is seen around (0, y)."""

    def __init__(self, image: Image.Image, span: float, y: float = 0.0) -> None:
        self.image, self.span, self.y = image, span, y
        self.scale = image.width / (2.0 * span)  # px/m
        self.pen = ImageDraw.Draw(image, "RGBA")

    def px(self, x: float, y: float) -> tuple[float, float]:
        return (x + self.span) * self.scale, (self.span - y + self.y) * self.scale

    def disc(self, at, radius: float, fill, outline=None, width: float = 0.0) -> None:
        x, y = self.px(*at[:2])
        r = radius * self.scale
        self.pen.ellipse((x - r, y - r, x + r, y + r), fill, outline, round(width * self.scale))

    def polygon(self, points, fill, outline=None, width: float = 0.0) -> None:
        corners = [self.px(*p) for p in points]
        self.pen.polygon(corners, fill)
        if outline:
            self.pen.line([*corners, corners[0], corners[1]], outline, round(width * self.scale), joint="curve")

    def dashes(self, at, radius: float, colour, width: float, count: int = 36) -> None:
        x, y = self.px(*at[:2])
        r, step = radius * self.scale, 360.0 / count
        for k in range(count):
            self.pen.arc((x - r, y - r, x + r, y + r), k * step, (k + 0.55) * step, colour, round(width * self.scale))


def square(at, half: float, yaw: float, offset: tuple[float, ...] = (0.0, 0.0)) -> list[tuple[float, float]]:
    """Corners of a square whose middle is `offset` from `at`, in its own frame."""
    cos, sin = math.cos(yaw), math.sin(yaw)
    inside = [(offset[0] + a * half, offset[1] + b * half) for a, b in ((1, 1), (-1, 1), (-1, -1), (1, -1))]
    return [(at[0] + u * cos - v * sin, at[1] + u * sin + v * cos) for u, v in inside]


@lru_cache(maxsize=8)
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


@lru_cache(maxsize=8)
def background(size: int, height: int, span: float, extents: float, shift: float) -> Image.Image:
    """Page, arena, and a half-metre grid whose lines lie `shift` higher."""
    image = Image.new("RGB", (size, height), PAGE)
    canvas = Canvas(image, span)
    corner = [canvas.px(-extents, extents), canvas.px(extents, -extents)]
    canvas.pen.rectangle([*corner[0], *corner[1]], ARENA)
    thin = max(1, round(0.006 * canvas.scale))
    for k in range(-math.floor(2 * extents), math.floor(2 * extents) + 1):
        canvas.pen.line([canvas.px(k / 2, -extents), canvas.px(k / 2, extents)], GRID, thin)
        canvas.pen.line([canvas.px(-extents, k / 2 + shift), canvas.px(extents, k / 2 + shift)], GRID, thin)
    canvas.pen.rectangle([*corner[0], *corner[1]], None, EDGE, 2 * thin)
    return image


def draw_floor(canvas: Canvas, state: State, config: TaskConfig) -> None:
    """What the robot drives over: hazards, the goal area, the circles of gremlins."""
    for place in state.hazards:
        canvas.disc(place, config.hazard_radius, (*HAZARD, 62), (*HAZARD, 190), 0.012)
        canvas.disc(place, 0.55 * config.hazard_radius, (*HAZARD, 34))
    if config.goal in {"area", "push"}:
        canvas.disc(state.goal, config.goal_radius, (*GOAL, 70), (*GOAL, 255), 0.016)
        canvas.disc(state.goal, 0.5 * config.goal_radius, None, (*GOAL, 140), 0.012)
        canvas.disc(state.goal, 0.035, (*GOAL, 255))
    if config.goal == "circle":
        canvas.disc(state.goal, config.circle_radius, (*GOAL, 26), (*GOAL, 255), 0.02)
    for x0, y0, x1, y1 in config.wall_lines(canvas.y, config.extents):
        canvas.pen.line([canvas.px(x0, y0), canvas.px(x1, y1)], (*ALARM, 150), round(0.03 * canvas.scale))
    for centre in state.gremlins:
        canvas.dashes(centre, config.gremlin_travel, (*GREMLIN, 120), 0.01)


def draw_solids(canvas: Canvas, state: State, config: TaskConfig) -> None:
    waiting = int(state.timer) > 0
    for i, place in enumerate(state.buttons):
        is_goal = i == int(state.goal_button)
        colour = GOAL if is_goal else BUTTON
        if is_goal:
            canvas.disc(place, 1.9 * config.button_radius, (*GOAL, 46), (*GOAL, 170), 0.012)
        canvas.disc(place, config.button_radius, (*colour, 110 if waiting else 255), darker(colour), 0.014)
        shine = place + config.button_radius * np.array([-0.3, 0.33])
        canvas.disc(shine, 0.26 * config.button_radius, (255, 255, 255, 60 if waiting else 120))
    for place in () if state.pillars is None else state.pillars:
        canvas.disc(place, config.pillar_radius, (*PILLAR, 255), darker(PILLAR), 0.014)
        canvas.disc(place, 0.6 * config.pillar_radius, (255, 255, 255, 50))
    for pos, quat in zip(np.asarray(state.boxes.pos), np.asarray(state.boxes.quat), strict=True):
        draw_box(canvas, pos, quat, config)


def draw_box(canvas: Canvas, pos: np.ndarray, quat: np.ndarray, config: TaskConfig) -> None:
    """A gremlin, a vase, or the box that is pushed with its four posts."""
    w, x, y, z = quat
    yaw = math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    colour = KINDS[f"{config.free_boxes}_lidar"]
    parts = config.loose_model.parts if config.loose else ()
    squares = [(part.half[0], part.offset[:2]) for part in parts] or [(config.box.half_size, (0.0, 0.0))]
    for half, offset in squares:
        canvas.polygon(square(pos, half, yaw, offset), (*colour, 235), darker(colour), 0.014)
    canvas.polygon(square(pos, 0.45 * squares[0][0], yaw), (255, 255, 255, 60))


def darker(colour: Colour) -> Colour:
    red, green, blue = (round(0.74 * c) for c in colour)
    return red, green, blue


def draw_rings(canvas: Canvas, pose: np.ndarray, obs: np.ndarray, config: TaskConfig) -> None:
    """One ring per lidar; bin k covers the angles from k to k + 1 bin widths left of the heading."""
    width = 2.0 * math.pi / config.lidar_bins
    inner = RING_START
    rings = [(name, colour) for name, colour in KINDS.items() if name in config.observation]
    canvas.disc(pose, inner + len(rings) * (RING_WIDTH + RING_GAP), (255, 255, 255, 150))
    for name, colour in rings:
        for k, closeness in enumerate(obs[config.observation[name]]):
            start, end = pose[2] + (k + 0.06) * width, pose[2] + (k + 0.94) * width
            segment = ring_segment(pose, inner, inner + RING_WIDTH, start, end)
            canvas.polygon(segment, (*colour, 24 + round(231 * float(closeness) ** 0.75)))
        inner += RING_WIDTH + RING_GAP


def ring_segment(at, inner: float, outer: float, start: float, end: float) -> list[tuple[float, float]]:
    angles = np.linspace(start, end, 5)
    out = [(at[0] + outer * math.cos(a), at[1] + outer * math.sin(a)) for a in angles]
    return out + [(at[0] + inner * math.cos(a), at[1] + inner * math.sin(a)) for a in angles[::-1]]


def draw_robot(canvas: Canvas, pose: np.ndarray, config: TaskConfig) -> None:
    robot = config.robot
    ahead = pose[:2] + robot.box_offset * np.array([math.cos(pose[2]), math.sin(pose[2])])
    canvas.polygon(square(ahead, robot.box_half, pose[2]), ROBOT_DARK, ROBOT_DARK, 0.012)
    canvas.disc(pose, robot.sphere_radius, ROBOT, ROBOT_DARK, 0.014)
    arrow = [(0.062, 0.0), (-0.034, 0.046), (-0.012, 0.0), (-0.034, -0.046)]  # m, ahead and left
    cos, sin = math.cos(pose[2]), math.sin(pose[2])
    canvas.polygon([(pose[0] + u * cos - v * sin, pose[1] + u * sin + v * cos) for u, v in arrow], (255, 255, 255))


def draw_caption(image: Image.Image, top: int, state: State, caption: Caption) -> None:
    """Three pairs of a small label and its value."""
    pen = ImageDraw.Draw(image)
    unit = image.width / 480.0
    costly = float(state.cost) > 0
    values = (
        ("STEP", f"{int(state.steps)}", INK),
        ("RETURN", f"{caption.episode_return:.2f}", INK),
        ("COST", f"{caption.episode_cost:.0f}", ALARM if costly else INK),
    )
    for i, (label, value, colour) in enumerate(values):
        x = unit * (24 + 156 * i)
        small, large = font(round(12 * unit)), font(round(20 * unit))
        pen.text((x, top + 31 * unit), label, FAINT, small, anchor="ls")
        pen.text((x + small.getlength(label) + 9 * unit, top + 31 * unit), value, colour, large, anchor="ls")


def draw(
    state: State, obs: np.ndarray, config: TaskConfig, caption: Caption = NOTHING_YET, size: int = 480
) -> np.ndarray:
    """One frame, uint8 [1.1·size, size, 3]. `state` holds NumPy arrays; `obs` is what the robot sees in it."""
    pose = np.asarray(state.pose, float)
    y = float(pose[1]) if config.goal == "run" else 0.0
    span = max(config.extents, abs(pose[0]), abs(pose[1] - y)) + MARGIN  # zooms out for a robot that leaves the arena
    large, bar = size * OVERSAMPLING, size // 10
    image = background(large, large + bar * OVERSAMPLING, round(span, 3), config.extents, round(-y % 0.5, 2)).copy()
    canvas = Canvas(image, round(span, 3), y)
    draw_floor(canvas, state, config)
    draw_rings(canvas, pose, obs, config)
    draw_solids(canvas, state, config)
    if float(state.cost) > 0:
        canvas.disc(pose, 0.165, (*ALARM, 90))
        canvas.pen.rectangle((0, 0, large - 1, large - 1), None, (*ALARM, 60), round(0.024 * large))
        canvas.pen.rectangle((0, 0, large - 1, large - 1), None, (*ALARM, 255), round(0.011 * large))
    draw_robot(canvas, pose, config)
    canvas.pen.rectangle((0, large, large, image.height), ARENA)
    image = image.reduce(OVERSAMPLING)
    draw_caption(image, size, state, caption)
    return np.asarray(image)
