"""The paper's Theorems 1 and 2 on a problem whose solution is known, with the library's own functions.

One step, one action a ~ N(θ, σ²), reward −½(a − θ₀)², cost C = exp(a + noise): positive, like a number of
collisions, and log-normal. With s² = σ² + σ_noise² and z = Φ⁻¹(1 − ε):

    V(θ) = −½(θ − θ₀)² + const        strictly concave
    q(θ) = exp(θ + z·s)               strictly convex, so V − λq is strictly concave, as Lemma 3 asks
    q* = d,  θ* = log d − z·s         when the limit binds, θ* < θ₀

λ* depends on how the gradient of q is estimated. `quantile_advantage` drops the density, so what multiplies λ
is not ∇q but (scale/ε)·f(q)·∇q, and f(q)·∇q = (φ(z)/(s·q))·q = φ(z)/s. From ∇V = λ·(scale/ε)·φ(z)/s follows

    λ* = (θ₀ − θ*)·s/φ(z)·ε/scale

where the Lagrangian with its density has λ* = (θ₀ − θ*)/d. The policy and its quantile are the same.

Run as `python -m reference.convergence --out results/convergence.json --figure docs/images/convergence.png`.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import pathlib
import statistics
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tqpo.algorithms.dual import Tilt, multiplier_step, track_quantile
from tqpo.algorithms.ppo import penalised
from tqpo.algorithms.tqpo import quantile_advantage, share_below, tilt_rates
from tqpo.maths import distribution
from tqpo.maths.quantile import Window, empirical_quantile, window_init, window_push
from tqpo.maths.schedule import power
from tqpo.provenance import provenance
from tqpo.types import Array, Key

# Step sizes of q, θ and λ at iteration k; hashable, because they are part of the program.
Rates = Callable[[Array], tuple[Array, Array, Array]]


@dataclasses.dataclass(frozen=True)
class Constant:
    """The same α, β, η throughout, as in training."""

    alpha: float = 1.0
    beta: float = 0.03
    eta: float = 0.1

    def __call__(self, k: Array, /) -> tuple[Array, Array, Array]:
        return jnp.full((), self.alpha), jnp.full((), self.beta), jnp.full((), self.eta)


@dataclasses.dataclass(frozen=True)
class ThreeTimescales:
    """α_k, β_k, η_k for q, θ and λ (paper Eq. 17) as Assumption 3 wants them.

    Σa_k = ∞ asks for an exponent of at most 1, Σa_k² < ∞ for one above ½; η_k = o(β_k), β_k = o(α_k) asks for
    them in strictly increasing order.
    """

    alpha: float  # α_0, quantile
    beta: float  # β_0, policy
    eta: float  # η_0, multiplier
    offset: float  # steps before the decay sets in
    exponents: tuple[float, float, float] = (0.6, 0.8, 1.0)

    def __call__(self, k: Array, /) -> tuple[Array, Array, Array]:
        first = (self.alpha, self.beta, self.eta)
        alpha, beta, eta = (power(k, a, self.offset, e) for a, e in zip(first, self.exponents, strict=True))
        return alpha, beta, eta


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
    """What Eq. 17 remembers."""

    q: Array  # q_k
    theta: Array  # θ_k
    multiplier: Array  # λ_k
    recent: Window  # of quantiles, for F_q(d)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """How a set of runs is made."""

    rates: Rates
    batch: int  # episodes per iteration
    iterations: int
    runs: int = 20
    seed: int = 0
    delta: float = 0.1  # of the tilt
    window: int = 100  # quantiles


PROBLEM = Problem()
EARLY = 600  # iterations: the rise of λ and its recovery
# Theorem 2: decaying steps that satisfy Assumption 3, any start.
THEOREM = Experiment(ThreeTimescales(alpha=0.3, beta=0.3, eta=0.1, offset=50.0), batch=1000, iterations=3000)
# The tilt: gain and window as in training, a start at the unsafe optimum of the reward alone, and a policy just slow
# enough for λ to overshoot under either rule. `sweep` shows what changes with that speed.
TILT = Experiment(Constant(), batch=100, iterations=1500)


def policy_gradient(problem: Problem, state: State, action: Array, cost: Array) -> Array:
    """∇_θ of the penalised surrogate by the score function (paper Eq. 11 with the sign of `quantile_advantage`)."""
    reward = -0.5 * (action - problem.optimum["theta_free"]) ** 2
    baseline = jnp.full(cost.shape, problem.outage_prob)
    constraint = quantile_advantage(cost, state.q, problem.outage_prob, problem.scale, baseline)
    advantage = penalised(reward - reward.mean(), constraint[:, None], state.multiplier[None])
    log_std = jnp.log(jnp.full(1, problem.policy_std))

    def surrogate(theta):
        return jnp.mean(advantage * distribution.log_prob(theta[None], log_std, action[:, None]))

    return jax.grad(surrogate)(state.theta)


def sample(problem: Problem, theta: Array, batch: int, key: Key) -> tuple[Array, Array]:
    """Actions and costs of a batch of episodes."""
    key_action, key_noise = jax.random.split(key)
    action = theta + problem.policy_std * jax.random.normal(key_action, (batch,))
    return action, jnp.exp(action + problem.noise_std * jax.random.normal(key_noise, (batch,)))


def step(problem: Problem, experiment: Experiment, tilt: Array, state: State, k: Array, key: Key) -> State:
    """Paper Eq. 17 a–c: q, θ and λ each move from (q_k, θ_k, λ_k), by a fresh batch."""
    alpha, beta, eta = experiment.rates(k)
    action, cost = sample(problem, state.theta, experiment.batch, key)
    q_hat = empirical_quantile(cost, 1 - problem.outage_prob)
    recent = window_push(state.recent, state.q[None], jnp.ones(1, bool))
    up, down = tilt_rates(tilt, share_below(recent, problem.limit), experiment.delta)
    return State(
        q=track_quantile(state.q, q_hat, alpha),
        theta=state.theta + beta * policy_gradient(problem, state, action, cost),
        multiplier=multiplier_step(state.multiplier, state.q, problem.limit, up, down, eta, problem.cost_scale),
        recent=recent,
    )


@functools.partial(jax.jit, static_argnames=("problem", "experiment"))
def trajectories(problem: Problem, experiment: Experiment, starts: State, tilt) -> tuple[Array, Array, Array]:
    """q, θ and λ, each [runs, iterations]."""

    def run(start, key):
        def body(state, k):
            new = step(problem, experiment, tilt, state, k, jax.random.fold_in(key, k))
            return new, new[:3]

        return jax.lax.scan(body, start, jnp.arange(experiment.iterations))[1]

    return jax.vmap(run)(starts, jax.random.split(jax.random.key(experiment.seed), experiment.runs))


def starts_at(experiment: Experiment, q: Array, theta: Array, multiplier: Array) -> State:
    """One state per run; scalars are the same for all."""
    runs = experiment.runs
    recent = jax.tree.map(lambda x: jnp.broadcast_to(x, (runs, *x.shape)), window_init(experiment.window))
    q, theta, multiplier = (jnp.broadcast_to(x, runs) for x in (q, theta, multiplier))
    return State(q, theta, multiplier, recent)


def theorem(problem: Problem, experiment: Experiment = THEOREM, tilt: Tilt = Tilt.NONE) -> dict[str, list[float]]:
    """Where (q, θ, λ) end from random starts: up to 4 limits, up to a quantile of 7 limits, up to λ = 10."""
    u = jax.random.uniform(jax.random.key(experiment.seed + 1), (3, experiment.runs))
    starts = starts_at(experiment, 4 * problem.limit * u[0], 4 * u[1], 10 * u[2])
    paths = trajectories(problem, experiment, starts, int(tilt))
    return {name: path[:, -1].tolist() for name, path in zip(("q", "theta", "multiplier"), paths, strict=True)}


def tilted(problem: Problem, tilt: Tilt, experiment: Experiment = TILT) -> tuple[np.ndarray, ...]:
    """q, θ and λ [runs, iterations] from an unsafe start: the policy that the reward alone leads to, λ₀ = 0.5."""
    free = problem.optimum["theta_free"]
    starts = starts_at(experiment, jnp.array(problem.reach * problem.limit), jnp.array(free), jnp.array(0.5))
    return tuple(np.asarray(x, float) for x in trajectories(problem, experiment, starts, int(tilt)))


def describe(problem: Problem, q: np.ndarray, theta: np.ndarray, multiplier: np.ndarray) -> dict[str, float]:
    """What a tilt does to λ, in means over runs; times in iterations.

    Recovery runs from λ's peak until λ is down to 1.1·λ*; `safety` is the exact Pr[C ≤ d] of the last third's
    policies.
    """
    best, steps = problem.optimum["multiplier"], q.shape[1]
    peak = multiplier.argmax(1)
    high = (multiplier > 1.1 * best) & (np.arange(steps) >= peak[:, None])
    off = np.abs(multiplier / best - 1) > 0.25
    last = theta[:, -steps // 3 :]
    normal = statistics.NormalDist(0.0, problem.spread)
    return {
        "overshoot": float(multiplier.max(1).mean() - best),
        "recovery": float(np.mean([first_false(row[at:]) for row, at in zip(high, peak, strict=True)])),
        "settled_after": float(np.mean([steps - first_false(row[::-1] == 0) for row in off])),
        "first_safe_after": float(np.mean([first_false(row) for row in q >= problem.limit])),
        "smallest_quantile": float(q.min(1).mean()),
        "safety": float(np.mean([normal.cdf(math.log(problem.limit) - x) for x in last.ravel()])),
    }


def first_false(flags: np.ndarray) -> int:
    """How many flags are set before the first that is not."""
    return len(flags) if flags.all() else int(np.argmin(flags))


def results(problem: Problem = PROBLEM) -> dict:
    """Theorem 2 from random starts, and the effect of every kind of tilt, as numbers."""
    best, ends = problem.optimum, theorem(problem)
    errors = {name: max(abs(x / best[name] - 1) for x in values) for name, values in ends.items()}
    tilts = {kind.name.lower(): describe(problem, *tilted(problem, kind)) for kind in Tilt}
    return {
        "problem": dataclasses.asdict(problem),
        "optimum": best,
        "theorem": {"setting": dataclasses.asdict(THEOREM), "ends": ends, "largest_relative_error": errors},
        "tilt": {"setting": dataclasses.asdict(TILT), **tilts},
        "provenance": provenance() | {"command": "python -m reference.convergence"},
    }


def sweep(problem: Problem = PROBLEM, betas: tuple[float, ...] = (0.01, 0.02, 0.03, 0.05)) -> list[dict]:
    """The tilt against the policy's speed β and the window's length.

    λ overshoots less with the tilt at every speed. It comes down sooner only while the window still remembers unsafe
    quantiles: once all of them lie below the limit, F_q(d) = 1 and η₋ is δ/(1 + δ), a tenth of the untilted rate.
    """
    rows, kinds = [], ((Tilt.NONE, 100), (Tilt.ADAPTIVE, 100), (Tilt.ADAPTIVE, 400))
    for beta, (kind, window) in itertools.product(betas, kinds):
        experiment = dataclasses.replace(TILT, rates=Constant(beta=beta), iterations=2500, window=window)
        effect = describe(problem, *tilted(problem, kind, experiment))
        rows.append({"beta": beta, "tilt": kind.name.lower(), "window": window, **effect})
    return rows


def draw_steps(axis, problem: Problem, multiplier: np.ndarray, colour: str, title: str) -> None:
    """The distribution of what moves λ, the tilted quantile d + η·(q − d), on both sides of the limit."""
    moves = np.diff(multiplier[:, :EARLY], axis=1) * problem.cost_scale / float(TILT.rates(jnp.zeros(()))[2])
    edges = problem.limit + np.arange(-14.0, 49.0)
    axis.hist(problem.limit + moves.ravel(), edges, density=True, color=colour, alpha=0.75)
    axis.axvline(problem.limit, color="black", linestyle="--", linewidth=1)
    axis.set_title(f"{title}, first {EARLY} iterations", loc="left", fontsize=10)
    axis.set_ylabel("density")
    text = "\n".join(
        f"$\\Delta\\lambda^{sign}$: {part.size / moves.size:.0%} of iterations, mean ${part.mean():+.1f}$"
        for sign, part in (("+", moves[moves > 0]), ("-", moves[moves < 0]))
    )
    axis.text(0.97, 0.9, text, transform=axis.transAxes, ha="right", va="top", fontsize=9, linespacing=1.5)


def figure(path: pathlib.Path | str, problem: Problem = PROBLEM) -> None:
    """The paper's Fig. 4 on this problem, and λ over time."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(10, 4.2), layout="constrained")
    axes = fig.subplot_mosaic([["none", "path"], ["adaptive", "path"]])
    axes["none"].sharex(axes["adaptive"])
    axes["none"].tick_params(labelbottom=False)
    looks = {Tilt.NONE: ("tab:blue", "without tilt"), Tilt.ADAPTIVE: ("tab:red", "with the adaptive tilt")}
    for kind, (colour, label) in looks.items():
        multiplier = tilted(problem, kind)[2]
        draw_steps(axes[kind.name.lower()], problem, multiplier, colour, label)
        low, high = multiplier.min(0), multiplier.max(0)
        axes["path"].fill_between(np.arange(len(low)), low, high, color=colour, alpha=0.2, linewidth=0)
        axes["path"].plot(multiplier.mean(0), color=colour, label=label)
    tilted_quantile = r"tilted quantile $d + \eta\,(q_{1-\varepsilon} - d)$"
    axes["adaptive"].set_xlabel(rf"{tilted_quantile},  limit $d = {problem.limit:g}$")
    axes["path"].axhline(problem.optimum["multiplier"], color="black", linestyle=":", label=r"$\lambda^*$")
    axes["path"].set(xlabel="iteration", ylabel=r"multiplier $\lambda$")
    axes["path"].set_title(f"mean and range of {TILT.runs} runs", loc="left", fontsize=10)
    axes["path"].legend(frameon=False)
    for axis in axes.values():
        axis.spines[["top", "right"]].set_visible(False)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=160)


def main() -> None:
    """Writes the numbers and the figure."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results/convergence.json"))
    parser.add_argument("--figure", type=pathlib.Path, default=pathlib.Path("docs/images/convergence.png"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results() | {"sweep": sweep()}, indent=2) + "\n")
    figure(args.figure)


if __name__ == "__main__":
    main()
