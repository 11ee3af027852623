"""Configurations small enough for a unit test, whatever a preset is tuned to."""

from tqpo.algorithms.presets import preset
from tqpo.algorithms.settings import field_names
from tqpo.networks import NetworkSpec

SMALL = {
    "n_envs": 4,
    "n_steps": 8,
    "segment": 4,
    "epochs": 2,
    "minibatches": 2,
    "normalize_advantage": False,
    "gain": 0.1,
    "max_multiplier": float("inf"),
    "margin": 0.0,
    "episode_window": 10,
    "step_window": 50,
    "step_stride": 1,
}


def small(name="fast", algorithm="tqpo", kind="mlp", **changes):
    known = field_names(preset(name, algorithm)) | {"margin"}
    sizes = {k: v for k, v in SMALL.items() if k in known}
    return preset(name, algorithm, network=NetworkSpec(kind, (8, 8), "torch"), **(sizes | changes))
