"""The tasks by name."""

from dataclasses import replace
from typing import Any

from tqpo.envs.config import TaskConfig
from tqpo.envs.task import Task
from tqpo.errors import ConfigError, UnknownNameError, did_you_mean

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
}

DESCRIPTIONS: dict[str, str] = {
    "SimpleEnv": "press two fixed buttons in turn, around three fixed hazards",
    "DynamicEnv": "reach one random goal after another, around three random hazards",
    "GremlinEnv": "the same among five hazards and three gremlins that run in circles",
    "DynamicButtonEnv": "press the right one of six random buttons, and no other",
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
