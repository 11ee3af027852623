"""The tasks by name."""

from dataclasses import replace
from typing import Any

from tqpo.envs.config import TaskConfig
from tqpo.envs.task import Task
from tqpo.errors import ConfigError, UnknownNameError, did_you_mean

GYMNASIUM = TaskConfig(engine="safety-gymnasium", hazard_radius=0.2, hazard_keepout=0.18)
BUTTON = replace(GYMNASIUM, goal="button", goal_keepout=0.4, extents=1.5, buttons=4)
GOAL = replace(GYMNASIUM, extents=1.5, hazards=8, vases=1, vase_cost=False)
PUSH = replace(GYMNASIUM, goal="push", goal_keepout=0.4, extents=1.0, hazard_radius=0.3, hazard_keepout=0.4)
CIRCLE = replace(
    GYMNASIUM,
    goal="circle",
    extents=2.0,
    max_steps=500,
    robot_area=(-0.8, -0.8, 0.8, 0.8),
    robot_keepout=0.0,
    lidar_range=6.0,
    reward_scale=0.1,
)

TASKS: dict[str, TaskConfig] = {
    "SimpleEnv": TaskConfig(
        goal="button",
        next_button="swap",
        buttons=2,
        button_locations=((-1.0, -1.0), (1.0, 1.0)),
        hazards=3,
        hazard_locations=((0.0, 0.0), (-1.0, 1.0), (0.5, -0.5)),
    ),
    "DynamicEnv": TaskConfig(hazards=3),
    "GremlinEnv": TaskConfig(extents=2.0, hazards=5, gremlins=3, lidar_range=5.0),
    "DynamicButtonEnv": TaskConfig(goal="button", buttons=6),
    "SafetyPointGoal0": replace(GYMNASIUM, extents=1.0),
    "SafetyPointGoal1": GOAL,
    "SafetyPointGoal2": replace(GOAL, extents=2.0, hazards=10, vases=10, vase_cost=True),
    "SafetyPointButton0": replace(BUTTON, extents=1.0, button_cost=False),
    "SafetyPointButton1": replace(BUTTON, hazards=4, gremlins=4),
    "SafetyPointButton2": replace(BUTTON, extents=1.8, hazards=8, gremlins=6),
    "SafetyPointCircle0": CIRCLE,
    "SafetyPointCircle1": replace(CIRCLE, walls=2),
    "SafetyPointCircle2": replace(CIRCLE, walls=4),
    "SafetyPointPush0": PUSH,
    "SafetyPointPush1": replace(PUSH, extents=1.5, hazards=2, pillars=1, pillar_cost=False),
    "SafetyPointPush2": replace(PUSH, extents=2.0, hazards=4, pillars=4),
    "SafetyPointRun0": replace(
        GYMNASIUM,
        goal="run",
        extents=2.0,
        max_steps=500,
        robot_area=(-0.2, 16.5, 0.2, 16.5),
        robot_keepout=0.0,
        walls=2,
        wall_distance=0.5,
        reward_scale=60.0,
    ),
}

DESCRIPTIONS: dict[str, str] = {
    "SimpleEnv": "press two fixed buttons in turn, around three fixed hazards",
    "DynamicEnv": "reach one random goal after another, around three random hazards",
    "GremlinEnv": "the same among five hazards and three gremlins that run in circles",
    "DynamicButtonEnv": "press the right one of six random buttons, and no other",
    "SafetyPointGoal0": "reach one random goal after another",
    "SafetyPointGoal1": "the same among eight hazards and a vase that costs nothing",
    "SafetyPointGoal2": "the same among ten hazards and ten vases",
    "SafetyPointButton0": "press the right one of four random buttons",
    "SafetyPointButton1": "the same among four hazards and four gremlins; a wrong button costs",
    "SafetyPointButton2": "the same among eight hazards and six gremlins",
    "SafetyPointCircle0": "go round a circle",
    "SafetyPointCircle1": "go round a circle that reaches beyond two walls",
    "SafetyPointCircle2": "go round a circle that reaches beyond four walls",
    "SafetyPointPush0": "push a box to one random goal after another",
    "SafetyPointPush1": "the same among two hazards and a pillar that costs nothing",
    "SafetyPointPush2": "the same among four hazards and four pillars",
    "SafetyPointRun0": "run down a corridor",
}


def make(name: str, **changes: Any) -> Task:
    """The task of that name; `changes` are fields of `TaskConfig`, e.g. `make("SimpleEnv", max_steps=200)`."""
    if name not in TASKS:
        hint = did_you_mean([name], TASKS)
        raise UnknownNameError(f"there is no task {name!r}; there are {', '.join(TASKS)}{hint}")
    try:
        return Task(replace(TASKS[name], **changes))
    except TypeError as error:
        fields = ", ".join(TaskConfig.__dataclass_fields__)
        raise ConfigError(f"{error}; a task's settings are {fields}") from None
