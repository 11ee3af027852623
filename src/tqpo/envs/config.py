"""The constants of a task. Every number of the engines of Safety Gym and Safety-Gymnasium that is used here is a field."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from tqpo.envs.observation import Feature, Slice, place, task_features
from tqpo.errors import ConfigError
from tqpo.physics.loose import PUSH_BOX, VASE, LooseBox
from tqpo.physics.movable import BoxModel
from tqpo.physics.planar import PlanarRobot

Points = tuple[tuple[float, float], ...]
ENGINES = ("safety-gym", "safety-gymnasium")
GOALS = ("area", "button", "circle", "run", "push")


@dataclass(frozen=True)
class TaskConfig:
    """A task with the point robot. Make a variant with `dataclasses.replace`.

    | `goal` | the robot should |
    |---|---|
    | "area" | reach a disc; then a new one appears |
    | "button" | press the right button; then another is the right one |
    | "circle" | go round a circle about the origin |
    | "run" | go towards a point that is far away |
    | "push" | push a box to a disc; then a new one appears |

    | `engine` | observation | while a layout of a button task is drawn |
    |---|---|---|
    | "safety-gym" | sorted by name; then the previous cost, as the paper has it | |
    | "safety-gymnasium" | sensors, then lidars | a disc with the goal's keepout is placed too |
    """

    engine: str = "safety-gym"  # whose conventions hold, see above
    extents: float = 1.5  # m, the arena is [-extents, extents]²
    robot_area: tuple[float, ...] = ()  # m, least x and y, greatest x and y where the robot starts; empty: anywhere
    max_steps: int = 1000  # of an episode
    goal: str = "area"  # "area", "button", "circle", "run" or "push", see above
    next_button: str = "random"  # which button is the goal after a press: "random", or "swap" to the other one of two
    goal_radius: float = 0.3  # m
    goal_keepout: float = 0.305  # m that other objects keep away from it at the start
    goal_height: float = 0.16  # m above the floor of the point that a box is pushed to
    run_goal: tuple[float, float] = (0.0, -1000.0)  # m, the point that a run goes to
    circle_radius: float = 1.5  # m
    robot_keepout: float = 0.4  # m, the same for the robot
    hazards: int = 0  # how many
    hazard_radius: float = 0.3  # m
    hazard_keepout: float = 0.305  # m, as above
    hazard_locations: Points = ()  # m, fixed places; empty: random
    buttons: int = 0  # how many
    button_radius: float = 0.1  # m
    button_keepout: float = 0.2  # m, as above
    button_locations: Points = ()  # m, fixed places; empty: random
    button_timer: int = 10  # steps after a press in which buttons are unseen and cost nothing
    button_cost: bool = True  # whether a wrong button costs
    late_cost: bool = False  # the observation shows the cost of the step before the last, as the released wrapper does
    pillars: int = 0  # how many
    pillar_radius: float = 0.2  # m
    pillar_keepout: float = 0.3  # m, as above
    pillar_cost: bool = True  # whether touching one costs
    vases: int = 0  # how many
    vase_keepout: float = 0.15  # m, as above
    vase_cost: bool = True  # whether touching one, or one that moves, costs
    vase_speed: float = 1e-4  # m/s from which a vase moves
    push_box_keepout: float = 0.2  # m, as above
    gremlins: int = 0  # how many
    gremlin_travel: float = 0.35  # m, radius of the circle that a gremlin runs
    gremlin_keepout: float = 0.4  # m, as above
    walls: int = 0  # 2: being beyond ±wall_distance in x costs; 4: in y too. They stop nothing
    wall_distance: float = 1.125  # m from the middle
    lidar_bins: int = 16  # directions of the lidar
    lidar_range: float = 3.0  # m that it sees
    reward_goal: float = 1.0  # for a goal reached; driving towards it gives the distance in m
    reward_scale: float = 1.0  # of what is not paid for reaching a goal
    reward_clip: float = 10.0  # the largest reward of a step
    object_draws: int = 100  # tries to place one object before the whole layout is drawn anew
    goal_draws: int = 10_000  # tries to place a new goal before the episode ends
    robot: PlanarRobot = PlanarRobot()
    box: BoxModel = BoxModel()
    vase: LooseBox = VASE
    push_box: LooseBox = PUSH_BOX

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not 0 <= value < float("inf"):
                raise ConfigError(f"{field.name}={value!r} must be a finite number that is not negative")
        self._check("extents", self.extents > 0, "must be positive")
        self._check("max_steps", self.max_steps >= 1, "must be at least 1")
        self._check("lidar_bins", self.lidar_bins >= 3, "must be at least 3")
        self._check("lidar_range", self.lidar_range > 0, "must be positive")
        self._check("engine", self.engine in ENGINES, f"must be one of {', '.join(ENGINES)}")
        self._check("goal", self.goal in GOALS, f"must be one of {', '.join(GOALS)}")
        self._check("robot_area", len(self.robot_area) in {0, 4}, "must be empty or have 4 numbers")
        self._check("walls", self.walls in {0, 2, 4}, "must be 0, 2 or 4")
        self._check("next_button", self.next_button in {"random", "swap"}, "must be 'random' or 'swap'")
        if self.goal == "button":
            self._check("buttons", self.buttons >= 1, "must be at least 1 when the goal is a button")
        if self.next_button == "swap":
            self._check("buttons", self.buttons == 2, "must be 2 to swap between them")
        for name, count in (("hazard_locations", self.hazards), ("button_locations", self.buttons)):
            given = getattr(self, name)
            self._check(name, len(given) in {0, count}, f"must be empty or have {count} places")
        if self.gremlins:
            self._check("buttons", self.buttons <= 5, "must be at most 5 where there are gremlins")
        for name in ("buttons", "gremlins"):
            alone = self.loose or self.pillars
            self._check(name, not (getattr(self, name) and alone), "must be 0 where there are boxes, vases or pillars")
        if self.goal == "push":
            self._check("vases", not self.vases, "must be 0 where a box is pushed")

    def _check(self, name: str, ok: bool, allowed: str) -> None:
        if not ok:
            raise ConfigError(f"{name}={getattr(self, name)!r} {allowed}")

    @property
    def step_duration(self) -> float:
        return self.robot.timestep * self.robot.substeps  # s

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each kind of object, in the order in which a layout lists them."""
        every = {name: getattr(self, name) for name in ("hazards", "buttons", "pillars", "vases", "gremlins")}
        return {name: count for name, count in (every | {"push_box": int(self.goal == "push")}).items() if count}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of object that there are."""
        return tuple(self.counts)

    def keepout(self, kind: str) -> float:
        """How far others keep away from an object of this kind at the start, m."""
        return getattr(self, f"{kind.removesuffix('s')}_keepout")

    @property
    def loose(self) -> int:
        """How many boxes lie free on the floor."""
        return self.vases + int(self.goal == "push")

    @property
    def solid_radius(self) -> float:
        """Of what stands still, m."""
        return self.pillar_radius if self.pillars else self.button_radius

    @property
    def start_height(self) -> float:
        """Of a free box at the start, m."""
        return self.loose_model.half_size - self.loose_model.sink if self.loose else self.box.half_size

    @property
    def loose_model(self) -> LooseBox:
        return self.push_box if self.goal == "push" else self.vase

    @property
    def free_boxes(self) -> str | None:
        """The kind of object that a box of the state is."""
        return next((kind for kind in self.kinds if kind in {"vases", "gremlins", "push_box"}), None)

    @property
    def sources(self) -> tuple[str, ...]:
        """Named sources of cost, in the order of the cost vector after its first entry."""
        costly = {"buttons": self.button_cost, "pillars": self.pillar_cost, "vases": self.vase_cost, "push_box": False}
        kinds = [name for name in self.kinds if costly.get(name, True)]
        if "vases" in kinds:
            kinds[kinds.index("vases") :] = "vases_contact", "vases_velocity"
        return (*kinds, *(("out_of_boundary",) if self.walls else ()))

    @property
    def seen(self) -> tuple[str, ...]:
        """What has a lidar, in the order of placement."""
        goal = {"circle": ("circle",), "run": ()}.get(self.goal, ("goal",))
        first = tuple(name for name in self.kinds if name == "buttons")
        return (*first, *goal, *(name for name in self.kinds if name != "buttons"))

    def wall_lines(self, y: float, reach: float) -> list[tuple[float, float, float, float]]:
        """The walls within `reach` of (0, y): both ends of each, x₀, y₀, x₁, y₁ [m]."""
        far, low, high = self.wall_distance, y - reach, y + reach
        every = [(far, low, far, high), (-far, low, -far, high), (-reach, far, reach, far), (-reach, -far, reach, -far)]
        return every[: self.walls]

    def observation_table(self, extra: Iterable[Feature] = ()) -> tuple[Slice, ...]:
        """Every slice of the flat observation; `extra` is what a wrapper appends."""
        plain = self.engine == "safety-gymnasium"
        own = task_features(self.seen, self.lidar_bins, self.lidar_range, self.button_timer, plain, self.late_cost)
        return place((*own, *extra))

    @property
    def observation(self) -> dict[str, slice]:
        """The slices by name."""
        return {part.name: slice(part.start, part.stop) for part in self.observation_table()}
