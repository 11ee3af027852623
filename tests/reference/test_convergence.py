import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reference import convergence
from reference.convergence import PROBLEM, State
from tqpo.maths.quantile import empirical_quantile, window_init


@pytest.fixture(scope="module")
def numbers():
    return convergence.results()


def test_the_step_sizes_satisfy_assumption_3():
    """Sums diverge, sums of squares converge, and each variable is slower than the one before."""
    steps = convergence.THEOREM.rates
    assert all(0.5 < exponent <= 1 for exponent in steps.exponents)
    alpha, beta, eta = steps(np.array([1e2, 1e4, 1e6, 1e8]))
    assert (np.diff(beta / alpha) < 0).all()
    assert (np.diff(eta / beta) < 0).all()
    assert max((beta / alpha)[-1], 0.1 * (eta / beta)[-1]) < 0.06


def gradients(multiplier, batches=200):
    """Of θ at (q*, θ*), by batches of 2,000 episodes."""
    best = PROBLEM.optimum
    state = State(*(jnp.array(x) for x in (best["q"], best["theta"], multiplier)), window_init(1))

    def one(key):
        return convergence.policy_gradient(PROBLEM, state, *convergence.sample(PROBLEM, state.theta, 2000, key))

    return np.asarray(jax.vmap(one)(jax.random.split(jax.random.key(0), batches)), float)


def test_the_known_solution_is_the_recursions_rest_point():
    best = PROBLEM.optimum
    _, cost = convergence.sample(PROBLEM, jnp.array(best["theta"]), 400_000, jax.random.key(0))
    assert np.isclose(empirical_quantile(cost, 0.9), best["q"], rtol=0.01)
    drift = gradients(best["multiplier"])
    error = drift.std() / np.sqrt(len(drift))
    assert abs(drift.mean()) < 4 * error
    assert gradients(0.8 * best["multiplier"]).mean() > 10 * error  # too small a λ: towards the reward
    assert gradients(1.2 * best["multiplier"]).mean() < -10 * error


def test_theorem_2_from_twenty_starts(numbers):
    """The three timescales end within 2 % of (q*, θ*, λ*), whatever the start."""
    found = numbers["theorem"]
    assert [len(ends) for ends in found["ends"].values()] == [20, 20, 20]
    assert all(error < 0.02 for error in found["largest_relative_error"].values())


def test_the_tilt_tames_the_overshoot(numbers):
    """Paper, section "Tilted Quantile Gradient Update": less overshoot of λ, a faster way back, less over-caution."""
    plain, adaptive = numbers["tilt"]["none"], numbers["tilt"]["adaptive"]
    assert adaptive["overshoot"] < 0.2 * plain["overshoot"]
    assert adaptive["recovery"] < 0.75 * plain["recovery"]
    assert adaptive["settled_after"] < 0.5 * plain["settled_after"]
    assert adaptive["smallest_quantile"] > 2 * plain["smallest_quantile"]


def test_the_tilt_delays_the_first_safe_policy(numbers):
    """Its price: a λ that rises slowly lets an unsafe start stay unsafe for longer."""
    assert numbers["tilt"]["adaptive"]["first_safe_after"] > numbers["tilt"]["none"]["first_safe_after"]


def test_the_way_back_is_faster_only_while_the_window_remembers():
    """A slower policy stays over-cautious for longer than 100 iterations; 400 quantiles outlast it."""
    plain, short, long = convergence.sweep(betas=(0.02,))
    assert max(short["overshoot"], long["overshoot"]) < 0.2 * plain["overshoot"]
    assert short["recovery"] > plain["recovery"] > 2 * long["recovery"]


def test_only_a_tilt_that_adapts_keeps_the_safety_asked_for(numbers):
    """A constant pair balances η₊·(rises) against η₋·(falls) away from the limit: paper, ablation, 92 % of 95 %."""
    safety = {kind: numbers["tilt"][kind]["safety"] for kind in ("adaptive", "none", "fixed", "released")}
    assert abs(safety["adaptive"] - 0.9) < 0.01
    assert abs(safety["none"] - 0.9) < 0.01
    assert safety["fixed"] < 0.885
    assert safety["released"] < 0.885


def test_results_are_json(numbers):
    assert json.loads(json.dumps(numbers))["theorem"]["setting"]["seed"] == 0


def test_descriptions_by_hand():
    """λ in units of λ*: its peak 2 at k = 1, down to 1.1 two iterations later, off by a quarter until k = 2."""
    best = PROBLEM.optimum["multiplier"]
    multiplier = best * np.array([[0.5, 2.0, 1.3, 1.1, 1.0, 1.0]])
    q, theta = np.array([[60.0, 20.0, 9.0, 12.0, 15.0, 14.0]]), np.full((1, 6), PROBLEM.optimum["theta"])
    found = convergence.describe(PROBLEM, q, theta, multiplier)
    assert np.isclose(found.pop("overshoot"), best)
    assert np.isclose(found.pop("safety"), 0.9)
    assert found == {"recovery": 2, "settled_after": 3, "first_safe_after": 2, "smallest_quantile": 9}


def test_figure_is_drawn(tmp_path):
    convergence.figure(tmp_path / "new" / "convergence.png")
    assert (tmp_path / "new" / "convergence.png").read_bytes().startswith(b"\x89PNG")
