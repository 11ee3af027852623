"""The tasks: `make("SimpleEnv")` gives one as a pair of pure functions, `reset` and `step`."""

from tqpo.envs.config import TaskConfig
from tqpo.envs.registry import DESCRIPTIONS, TASKS, make
from tqpo.envs.task import State, Task

__all__ = ["DESCRIPTIONS", "TASKS", "State", "Task", "TaskConfig", "make"]
