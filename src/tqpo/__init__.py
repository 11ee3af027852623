"""Safe reinforcement learning with a stated probability.

tqpo.train("SimpleEnv", safety=0.9, cost_limit=15, out="runs/mine")
policy = tqpo.load("runs/mine"); policy.act(obs)
tqpo.evaluate("runs/mine")["verdict"]["sentence"]
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqpo.api import evaluate, load, train

__version__ = "0.1.0"
__all__ = ["evaluate", "load", "train"]


def __getattr__(name: str) -> Any:
    """The API, imported when it is used: `import tqpo` alone is light."""
    if name in __all__:
        from tqpo import api

        return getattr(api, name)
    raise AttributeError(f"module 'tqpo' has no attribute {name!r}")
