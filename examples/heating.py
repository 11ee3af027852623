"""A room to keep warm with a budget of energy: at most 30 kWh a day, on nine days of ten.

    tqpo train heating:make --algo budget --safety 0.9 --cost-limit 30 --steps 1e6

Comfort is the reward and energy the cost, a real number. Cold days need more than the budget, mild ones less, and the day's
weather shows only as it comes. `RULE` heats to 21 °C as long as the budget lasts.

    python heating.py [FILE]   # what the rule earns; FILE: also as JSON
"""

import json
import pathlib
import sys

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit

from tqpo.provenance import provenance

STEPS = 96  # quarters of an hour in a day
POWER = 0.75  # kWh that full heating takes in a quarter of an hour
LIMIT = 30.0  # kWh
WANTED = 21.0  # °C


class Heating(gymnasium.Env):
    """Observation: indoor and outdoor temperature, hour as sine and cosine. Action: the heating's share of its power."""

    def __init__(self):
        self.observation_space = Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = Box(0.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.inside = 0, WANTED + self.np_random.normal()
        self.day, self.drift = self.np_random.normal(5.0, 4.0), 0.0  # °C: the day's mean, and what departs from it
        return self.observe(), {}

    @property
    def outside(self):
        return self.day + self.drift - 4.0 * np.cos(2 * np.pi * (self.t / STEPS - 0.15))

    def observe(self):
        hour = 2 * np.pi * self.t / STEPS
        values = [(self.inside - WANTED) / 5, self.outside / 10, np.sin(hour), np.cos(hour)]
        return np.array(values, np.float32)

    def step(self, action):
        used = POWER * float(np.clip(action[0], 0.0, 1.0))
        self.inside += 0.03 * (self.outside - self.inside) + 1.2 * used
        self.drift = 0.95 * self.drift + self.np_random.normal(0.0, 0.4)
        self.t += 1
        comfort = 1.0 - min(abs(self.inside - WANTED) / 4.0, 1.0)
        return self.observe(), comfort, False, False, {"cost": used}


def make():
    return TimeLimit(Heating(), STEPS)


def rule(obs, spent):
    """Heats to the wanted temperature while there is budget for a full step more."""
    missing = -5.0 * obs[0] + 0.03 * (WANTED - 10.0 * obs[1])  # °C to make up for in this step
    return np.array([np.clip(missing / (1.2 * POWER), 0.0, 1.0) if spent + POWER <= LIMIT else 0.0], np.float32)


def play(choose, episodes=500):
    """Mean return and the share of days within the limit."""
    env, returns, costs = make(), [], []
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        total = spent = 0.0
        over = False
        while not over:
            obs, reward, _, over, info = env.step(choose(obs, spent))
            total, spent = total + reward, spent + info["cost"]
        returns.append(total)
        costs.append(spent)
    return np.mean(returns), np.mean(np.array(costs) <= LIMIT), np.quantile(costs, [0.1, 0.5, 0.9])


if __name__ == "__main__":
    results: dict = {"provenance": provenance()}
    for name, choose in (("rule", rule), ("full comfort", lambda obs, spent: rule(obs, 0.0))):
        earned, safe, quantiles = play(choose)
        print(
            f"{name}: return {earned:.1f}, {safe:.1%} of days within {LIMIT:g} kWh; cost quantiles {quantiles.round(1)}"
        )
        results[name] = {"days": 500, "return": float(earned), "safety_prob": float(safe)}
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")
