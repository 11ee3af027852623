"""Safe reinforcement learning with a stated probability.

tqpo.train("SimpleEnv", safety=0.9, cost_limit=15, out="runs/mine")
policy = tqpo.load("runs/mine"); policy.act(obs)
tqpo.evaluate("runs/mine")["verdict"]["sentence"]

`tqpo.resume` goes on, `tqpo.compare` sets runs side by side, `tqpo.report` writes a page.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqpo.api import compare, evaluate, load, report, resume, train

__version__ = "0.2.0"
__all__ = ["compare", "evaluate", "load", "report", "resume", "train"]
TASKS = (
    *("SimpleEnv", "DynamicEnv", "GremlinEnv", "DynamicButtonEnv"),
    *(f"SafetyPoint{task}{level}" for task in ("Goal", "Button", "Circle", "Push") for level in range(3)),
    "SafetyPointRun0",
)


def __getattr__(name: str) -> Any:
    """The API, imported when it is used: `import tqpo` alone is light."""
    if name in __all__:
        from tqpo import api

        return getattr(api, name)
    raise AttributeError(f"module 'tqpo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "TASKS", "__version__", "register_tasks"]


def register_tasks() -> None:
    """Makes the tasks known to `gymnasium.make` and `make_vec`; what they need is imported when one is made."""
    import gymnasium

    for task in TASKS:
        if (name := f"tqpo/{task}-v0") not in gymnasium.registry:
            entry = "tqpo.envs.gymnasium:TaskEnv"
            vector_entry = "tqpo.envs.gymnasium:TaskVectorEnv"
            gymnasium.register(name, entry, vector_entry_point=vector_entry, kwargs={"task": task})


if "gymnasium" in sys.modules:  # `import tqpo` alone stays light
    register_tasks()
