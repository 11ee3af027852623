"""Cost functions for Gymnasium's own environments.

In this folder: `tqpo train gym:CartPole-v1 --cost-fn costs:cart_position`.

A cost function sees the observation before the step, the action as the environment got it, the observation after it,
and `info`. It returns the cost of the step: a number that is not negative, or a dict of them by name.
"""


def pendulum_velocity(obs, action, next_obs, info):
    """Pendulum-v1: 1 in a step that ends faster than 6 rad/s. Falling from the top it would reach 7.7 rad/s."""
    return float(abs(next_obs[2]) > 6.0)


def cart_position(obs, action, next_obs, info):
    """CartPole-v1: 1 in a step that ends more than 0.2 m from the middle."""
    return float(abs(next_obs[0]) > 0.2)


def cheetah_velocity(obs, action, next_obs, info):
    """HalfCheetah-v5: 1 in a step faster than 1 m/s."""
    return float(info["x_velocity"] > 1.0)
