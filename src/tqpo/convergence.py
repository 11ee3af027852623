"""The paper's Theorems 1 and 2 on a problem whose solution is known, with the library's own functions.

One step, one action a ~ N(θ, σ²), reward −½(a − θ₀)², cost C = exp(a + noise): positive, like a number of collisions,
and log-normal. With s² = σ² + σ_noise² and z = Φ⁻¹(1 − ε):

    V(θ) = −½(θ − θ₀)² + const        strictly concave
    q(θ) = exp(θ + z·s)               strictly convex, so V − λq is strictly concave, as Lemma 3 asks
    q* = d,  θ* = log d − z·s         when the limit binds, θ* < θ₀

λ* depends on how the gradient of q is estimated. `quantile_advantage` drops the density, so what multiplies λ is not
∇q but (scale/ε)·f(q)·∇q, and f(q)·∇q = (φ(z)/(s·q))·q = φ(z)/s. From ∇V = λ·(scale/ε)·φ(z)/s follows

    λ* = (θ₀ − θ*)·s/φ(z)·ε/scale

where the Lagrangian with its density has λ* = (θ₀ − θ*)/d. The policy and its quantile are the same.

Run as `python -m tqpo.convergence --out results/convergence.json --figure docs/images/convergence.png`.
"""

import argparse
import dataclasses
import functools
import json
import math
import pathlib
import platform
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import tqpo
from tqpo import gaussian
from tqpo.multiplier import Tilt, multiplier_step, penalised, share_below, tilt_rates
from tqpo.quantile import (
    Window,
    empirical_quantile,
    quantile_advantage,
    track_quantile,
    window_init,
    window_push,
)
from tqpo.schedule import ThreeTimescales
from tqpo.types import Array, Key

Rates = Callable[[Array], tuple[Any, Any, Any]]  # k → α_k, β_k, η_k


@dataclasses.dataclass(frozen=True)
class Problem:
    """The concave problem; the unconstrained optimum has a quantile of four limits."""

    limit: float = 15.0  # d
    outage_prob: float = 0.1  # ε
    policy_std: float = 0.3  # σ
    noise_std: float = 0.4
    reach: float = 4.0  # q(θ₀)/d
    scale: float = 0.1  # of the indicator
    cost_scale: float = 10.0  # of λ's step

    @property
    def spread(self) -> float:
        """s, the standard deviation of log C."""
        return math.hypot(self.policy_std, self.noise_std)

    @property
    def optimum(self) -> dict[str, float]:
        """q*, θ* and λ* of the recursion as implemented; θ₀ is where the reward alone leads."""
        normal = statistics.NormalDist()
        z = normal.inv_cdf(1 - self.outage_prob)
        theta = math.log(self.limit) - z * self.spread
        pull = self.scale / self.outage_prob * normal.pdf(z) / self.spread  # of one unit of λ on θ
        free = theta + math.log(self.reach)
        return {"q": self.limit, "theta": theta, "multiplier": (free - theta) / pull, "theta_free": free}


class State(NamedTuple):
    q: Array  # q_k
    theta: Array  # θ_k
    multiplier: Array  # λ_k
    recent: Window  # of quantiles, for F_q(d)


def policy_gradient(problem: Problem, state: State, action: Array, cost: Array) -> Array:
    """∇_θ of the penalised surrogate (paper Eq. 11 with the sign of `quantile_advantage`), by the score function."""
    reward = -0.5 * (action - problem.optimum["theta_free"]) ** 2
    constraint = quantile_advantage(
        cost, state.q, problem.outage_prob, problem.scale, jnp.full(cost.shape, problem.outage_prob)
    )
    advantage = penalised(reward - reward.mean(), constraint[:, None], state.multiplier[None])
    log_std = jnp.log(jnp.full(1, problem.policy_std))

    def surrogate(theta):
        return jnp.mean(advantage * gaussian.log_prob(theta[None], log_std, action[:, None]))

    return jax.grad(surrogate)(state.theta)


def step(problem: Problem, state: State, rates, tilt, batch: int, key: Key) -> State:
    """Paper Eq. 17 a–c, from a fresh batch of episodes."""
    alpha, beta, eta = rates
    key_action, key_noise = jax.random.split(key)
    action = state.theta + problem.policy_std * jax.random.normal(key_action, (batch,))
    cost = jnp.exp(action + problem.noise_std * jax.random.normal(key_noise, (batch,)))
    q_hat = empirical_quantile(cost, 1 - problem.outage_prob)
    recent = window_push(state.recent, state.q[None], jnp.ones(1, bool))
    tilts = tilt_rates(tilt, share_below(recent, problem.limit), delta=0.1)
    return State(
        q=track_quantile(state.q, q_hat, alpha),
        theta=state.theta + beta * policy_gradient(problem, state, action, cost),
        multiplier=multiplier_step(
            state.multiplier, state.q, problem.limit, *tilts, gain=eta, cost_scale=problem.cost_scale
        ),
        recent=recent,
    )


@functools.partial(jax.jit, static_argnames=("problem", "rates", "batch", "iterations"))
def trajectories(problem: Problem, rates: Rates, starts: State, tilts, keys, batch: int, iterations: int):
    """(q, θ, λ), each [runs, iterations], from `starts` [runs] under `tilts` [runs]."""

    def run(start, tilt, key):
        def body(state, k):
            new = step(problem, state, rates(k), tilt, batch, jax.random.fold_in(key, k))
            return new, new[:3]

        return jax.lax.scan(body, start, jnp.arange(iterations))[1]

    return jax.vmap(run)(starts, tilts, keys)
