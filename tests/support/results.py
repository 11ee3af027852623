"""Made-up results: summaries of episodes, learning curves, and a policy that always does the same."""

import jax.numpy as jnp
import numpy as np

from tqpo.algorithms.settings import Constraint
from tqpo.evaluation.episodes import Totals
from tqpo.evaluation.summary import summarise
from tqpo.output import plots
from tqpo.output.plots import RunInfo

LIMIT = Constraint(limit=15.0, safety=0.9)


N = 40
STEPS = 1000 * np.arange(1, N + 1)


class Always:
    """Not a pytree: the same action at every step."""

    def __init__(self, action):
        self.action = action

    def init(self):
        return None

    def act(self, obs, carry, key, deterministic):
        return jnp.asarray(self.action, float), carry


def summarised(seeds=3, n=200, rate=0.9, constraints=(LIMIT,), **more):
    rng = np.random.default_rng(0)
    episodes = {}
    for seed in range(seeds):
        cost = np.where(rng.random(n) < rate, rng.integers(0, 16, n), rng.integers(16, 60, n))
        episodes[seed] = Totals(rng.normal(20, 3, n), np.stack([cost, cost // 2], 1).astype(float), np.full(n, 1000))
    return summarise(episodes, constraints, ("cost", "hazards"), deterministic=False, **more)


def metrics(runs, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "return_mean": rng.normal(10, 1, (N, runs)),
        "safety_prob": rng.uniform(0.8, 1, (N, runs, 1)),
        "episode_cost_mean": rng.uniform(5, 10, (N, runs, 1)),
        "episode_cost_quantile": rng.uniform(10, 20, (N, runs, 1)),
        "multiplier": rng.uniform(0, 2, (N, runs, 1)),
        "tilt_up": rng.uniform(0, 1, (N, runs, 1)),
        "tilt_down": rng.uniform(0, 1, (N, runs, 1)),
        "window_episodes": np.where(np.arange(N)[:, None] == 0, 0, 100) * np.ones((1, runs)),
    }


def curves(labels=("a", "b"), seeds=3):
    runs = [RunInfo(label, 15.0, 0.9) for label in labels for _ in range(seeds)]
    return plots.make_curves(metrics(len(runs)), STEPS, runs)
