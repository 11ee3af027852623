"""What both sides are given: a batch of three episodes of 40 steps, weights, and a history. NumPy alone.

Episodes follow one another, as one environment gives them: arrays are [120, …]. Segments have 10 steps. Double precision.
"""

import numpy as np

EPISODES, LENGTH, SEGMENT = 3, 40, 10
STEPS = EPISODES * LENGTH
OBS, ACTIONS, WIDTH, QUANTILES = 6, 2, 8, 25
COST_LIMIT, OUTAGE = 15.0, 0.1
PAST_EPISODES = 97  # with the three of the batch 100: the window is full
STEP_WINDOW = 100_000
MADE_UP = 120  # quantiles; more than the tilt's window of 100 holds
FIXTURE = "tests/data/released.npz"


def past_episode_costs() -> np.ndarray:
    """Of the episodes before the batch: all different, around the limit."""
    return (np.arange(PAST_EPISODES) * 37) % PAST_EPISODES * 0.25


def past_cost_returns() -> np.ndarray:
    """Of the steps before the batch, as many as leave room for half of it. The oldest, which must go, are high; the others are
    below and above every value of the batch, so that the 0.9-quantile of them all is the 100th of its 120."""
    kept = STEP_WINDOW - STEPS
    low = round((1 - OUTAGE) * STEP_WINDOW) - 100
    return np.repeat([9.0, -9.0, 9.0], [STEPS // 2, low, kept - low])


def made_up_quantiles() -> np.ndarray:
    """Episode-cost quantiles, far above the limit at first, then on both sides of it."""
    k = np.arange(MADE_UP)
    return COST_LIMIT + 150 * np.exp(-k / 8) + 9 * np.sin(k * 1.3) - 2


def inputs() -> dict[str, np.ndarray]:
    """The batch, the observations of the batch before it, and the weights of both networks, named as in PyTorch."""
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return scale * rng.standard_normal(shape)

    done = np.arange(1, STEPS + 1) % LENGTH == 0
    cost = (rng.random(STEPS) < 0.3).astype(float)
    mean, log_std = np.tanh(normal(STEPS, ACTIONS, scale=0.5)), np.full((STEPS, ACTIONS), -0.2)
    batch = {
        "observation_before": 2 + normal(STEPS, OBS, scale=3),
        "observation": 1 + normal(STEPS, OBS, scale=2),
        "prev_action": normal(STEPS, ACTIONS),
        "prev_reward": normal(STEPS, scale=0.1),
        "action": mean + np.exp(log_std) * normal(STEPS, ACTIONS),
        "mean": mean,
        "log_std": log_std,
        "reward": normal(STEPS, scale=0.1),
        "cost": cost,
        "cum_cost": cost.reshape(EPISODES, LENGTH).cumsum(1).reshape(-1),
        "done": done,
        "h": normal(STEPS, WIDTH, scale=0.3),
        "c": normal(STEPS, WIDTH, scale=0.3),
    }
    batch["h"][::LENGTH] = batch["c"][::LENGTH] = 0.0  # an episode begins without a memory
    heads = {"value": (), "cost_value": (), "quantiles": (QUANTILES,), "shape": (), "scale": ()}
    for name, shape in heads.items():  # what the acting network said; the last row is of the state after the batch
        raw = normal(STEPS + 1, *shape, scale=0.5)
        batch[name] = {"quantiles": np.exp(raw), "shape": 1.5 + 0.5 * np.tanh(raw), "scale": np.exp(raw)}.get(name, raw)
    trunk = {
        "body.model.0.weight": (WIDTH, OBS),
        "body.model.0.bias": (WIDTH,),
        "body.model.2.weight": (WIDTH, WIDTH),
        "body.model.2.bias": (WIDTH,),
        "lstm.weight_ih_l0": (4 * WIDTH, WIDTH + ACTIONS + 1),
        "lstm.weight_hh_l0": (4 * WIDTH, WIDTH),
        "lstm.bias_ih_l0": (4 * WIDTH,),
        "lstm.bias_hh_l0": (4 * WIDTH,),
        "mu.0.weight": (ACTIONS, WIDTH),
        "mu.0.bias": (ACTIONS,),
        "value.weight": (1, WIDTH),
        "value.bias": (1,),
        "log_std": (ACTIONS,),
    }
    own = {
        "tqpo": {"constraint.weight": (1, WIDTH), "constraint.bias": (1,)},
        "qcpo": {
            "constraint.weight": (QUANTILES, WIDTH),
            "constraint.bias": (QUANTILES,),
            "w_alpha.0.weight": (1, WIDTH),
            "w_alpha.0.bias": (1,),
            "w_beta.weight": (1, WIDTH),
            "w_beta.bias": (1,),
        },
    }
    for algorithm, heads_ in own.items():
        batch |= {f"{algorithm}:{name}": normal(*shape, scale=0.3) for name, shape in (trunk | heads_).items()}
    return batch
