"""The budget in the observation; the outage critic and its gradient against closed forms; the control of λ by hand."""

import dataclasses
import itertools
import math
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jobs import small_job
from probes import Counter, result
from scipy import stats

from tqpo import algorithms, networks
from tqpo.algorithms import budget, episodes, rollout
from tqpo.algorithms.presets import VARIANTS, preset
from tqpo.algorithms.rollout import Decision
from tqpo.algorithms.settings import Constraint
from tqpo.envs import Task, make
from tqpo.envs.budget import Budget, Budgeted, BudgetedTwin, unwrapped
from tqpo.maths import normalize
from tqpo.networks import NetworkSpec
from tqpo.training.job import Job, describe_env, observed

WIDE = make("SimpleEnv", max_steps=25, hazard_radius=0.8)  # hazards that are met at once
LIMIT = Budget((0,), (15.0,), horizon=1000)


@pytest.mark.parametrize("array", [np.array, jnp.array])
@pytest.mark.parametrize(
    ("spent", "t", "wanted"),
    [
        (0.0, 0, [1, 0, 0, 1]),
        (12.0, 250, [0.2, 0, 0.2, 0.75]),  # 3 of 15 left; 3/3.75 of the last quarter
        (15.0, 500, [0, 0, 1, 0.5]),  # nothing left, and not yet lost
        (16.5, 750, [-0.1, 1, 1, 0.25]),
        (40.0, 1000, [-1, 1, 1, 0]),
    ],
)
def test_features_by_hand(array, spent, t, wanted):
    np.testing.assert_allclose(LIMIT.features(array([spent]), t), wanted, atol=1e-6)


def test_a_limit_of_zero_is_lost_with_the_first_cost():
    none = Budget((0,), (0.0,))
    np.testing.assert_array_equal(none.features(np.array([[0.0], [1e-3]]), None), [[0, 0, 1], [-1, 1, 1]])


def test_each_constraint_has_its_features_and_the_time_comes_last():
    two = Budget((1, 0), (2.0, 8.0), horizon=4)
    assert two.names(("cost", "heat")) == (
        "heat_remaining",
        "heat_lost",
        "heat_nearness",
        "cost_remaining",
        "cost_lost",
        "cost_nearness",
        "time_left",
    )
    assert two.size == 7
    found = two.features(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([1, 3]))
    np.testing.assert_allclose(found, [[-0.5, 1, 1, 0.5, 0, 0, 0.75], [1, 0, 0, 1, 0, 0, 0.25]])
    assert Budget((0,), (2.0,)).size == 3


@given(limit=st.floats(1e-2, 1e4), share=st.floats(0, 3), scale=st.sampled_from([1e3, 1e-3]), t=st.integers(0, 1000))
def test_costs_in_other_units_give_the_same_features(limit, share, scale, t):
    assume(abs(share - 1) > 1e-6)
    ours, other = (Budget((0,), (limit * s,), 1000).features(np.array([share * limit * s]), t) for s in (1, scale))
    np.testing.assert_allclose(ours, other, atol=1e-9)


def forward(obs, memory, prev_action, prev_reward, noise):
    """Full speed ahead, turning at random."""
    action = jnp.concatenate([jnp.ones_like(noise[:, :1]), noise[:, 1:]], 1)
    return Decision(action, jnp.zeros(len(obs)), None, None)


@pytest.mark.parametrize(
    ("env", "steps"), [pytest.param(WIDE, 60, marks=pytest.mark.slow), (Counter(), 11)], ids=["SimpleEnv", "Counter"]
)
def test_the_wrapper_shows_the_cost_so_far(env, steps):
    both = Budgeted(env, Budget((0, 1), (2.0, 3.0), env.max_steps))
    runner = rollout.start(jax.random.key(0), both, 5, None)
    batch = jax.jit(lambda: rollout.rollout(jax.random.key(1), both, forward, runner, steps)[1].batch)()
    cost, over = np.asarray(batch.cost)[..., :2], np.asarray(batch.terminated | batch.truncated)
    assert cost.sum() > 10
    assert over.any()
    spent, t = np.zeros((5, 2)), np.zeros(5)
    for now in range(steps):
        np.testing.assert_allclose(batch.obs[now, :, env.obs_size :], both.budget.features(spent, t), atol=1e-6)
        spent, t = spent + cost[now], t + 1
        np.testing.assert_allclose(batch.next_obs[now, :, env.obs_size :], both.budget.features(spent, t), atol=1e-6)
        spent[over[now]], t[over[now]] = 0, 0


def test_the_environment_itself_is_unchanged():
    env = Counter()
    both = Budgeted(env, Budget((0,), (2.0,), 4))
    (state, obs), (inner, plain) = both.reset(jax.random.key(3)), env.reset(jax.random.key(3))
    np.testing.assert_array_equal(obs[:2], plain)
    (state, step), (inner, wanted) = both.step(state, jnp.ones(1)), env.step(inner, jnp.ones(1))
    np.testing.assert_array_equal(step.obs[:2], wanted.obs)
    assert all(bool(jnp.all(a == b)) for a, b in zip(step[1:], wanted[1:], strict=True))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(a == b), state.inner, inner))
    for name in ("action_size", "discrete", "cost_names", "max_steps", "min_steps"):
        assert getattr(both, name) == getattr(env, name)
    assert unwrapped(both) is unwrapped(env) is env


def test_the_twin_in_mujoco_shows_the_same():
    from tqpo.envs.mujoco import MujocoTask

    task = make("SimpleEnv", max_steps=60)
    both = Budgeted(task, Budget((0,), (1.0,), 60))
    twin = BudgetedTwin(lambda: MujocoTask(task.config), both.budget)
    (_, obs), seen = both.reset(jax.random.key(5)), twin.reset(jax.random.key(5))
    np.testing.assert_allclose(seen, obs, atol=1e-4)
    spent = 0.0
    for t in range(1, 61):
        seen, _, cost, _, truncated = twin.step(np.array([1.0, 0.3]))
        spent += cost[0]
        np.testing.assert_allclose(seen[-4:], both.budget.features(np.array([spent]), t))
    assert truncated


def test_a_job_wraps_its_environment_and_knows_how_long_it_trains():
    job, plain = small_job(algo="budget", cost_limit=7.0).prepare(), small_job().prepare()
    assert isinstance(job.env, Budgeted)
    assert isinstance(unwrapped(job.env), Task)
    assert job.env.budget == Budget((0,), (7.0,), 50)
    assert job.config.iterations == job.iterations == 12
    assert describe_env(job.env) == describe_env(plain.env)
    assert isinstance(plain.env, Task)
    assert isinstance(small_job(algo="budget-blind").prepare().env, Task)
    same = [small_job(algo=algo).prepare().env for algo in ("budget", "tqpo-observed", "ppo-lag-observed")]
    assert same[0] == same[1] == same[2]
    early = small_job(algo="ppo-early").prepare()
    assert early.group.env.ends
    assert early.env == same[0]  # where episodes go on


def test_memory_is_a_setting_of_the_task_that_the_user_may_change():
    def network(task, algo="budget", **settings):
        found = Job(task=task, algo=algo, settings=settings).prepare().config.learner.network
        return found.kind, found.hidden

    small = ("mlp", (64, 64))
    assert network("GremlinEnv") == network("GremlinEnv", "budget-dial") == ("lstm", (128, 128))
    assert network("GremlinEnv", "tqpo") == network("SimpleEnv") == small
    assert network("GremlinEnv", kind="mlp", hidden=(64, 64)) == small


STEPS, RISK, ALLOWED = 6, 0.3, 2  # a cost of 1 with this probability at each step; C ~ Bin(6, 0.3), d = 2


def tail(t, spent):
    """Pr[C > d | C_t] in closed form."""
    return stats.binom.sf(ALLOWED - spent, STEPS - t, RISK)


def paths():
    """Every episode, [T, N] costs, and its probability [N]."""
    cost = np.array(list(itertools.product([0.0, 1.0], repeat=STEPS))).T
    return cost, np.prod(np.where(cost > 0, RISK, 1 - RISK), 0)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.9, 1.0])
def test_the_exact_outage_probability_has_no_advantage_on_average(x64, gae_lambda):
    """At each state (t, C_t), the mean of A_out over all that may follow is 0, and A_out + p is I(C > d) at λ_GAE = 1."""
    cost, weight = paths()
    after = np.cumsum(cost, 0)
    before = after - cost
    t = np.arange(STEPS)[:, None]
    logit, next_logit = (
        stats.logistic.ppf(np.clip(tail(t + k, c), 1e-12, 1 - 1e-12)) for k, c in ((0, before), (1, after))
    )
    cut = np.broadcast_to(t == STEPS - 1, cost.shape)
    lost, lost_after = before > ALLOWED, after > ALLOWED
    columns = (jnp.asarray(x, float)[..., None] for x in (lost, lost_after, logit, next_logit))
    found = budget.outage_targets(*columns, jnp.array(cut), jnp.array(cut), gae_lambda)
    advantage, target = (np.asarray(x)[..., 0] for x in found)
    np.testing.assert_allclose(advantage[lost], 0, atol=1e-9)
    for step, spent in itertools.product(range(STEPS), range(STEPS)):
        here = before[step] == spent
        if here.any():
            mean = np.average(advantage[step, here], weights=weight[here])
            assert abs(mean) < 1e-9
    if gae_lambda == 1:
        np.testing.assert_allclose(target, np.where(lost, 0, after[-1] > ALLOWED), atol=1e-9)


def test_the_gradient_is_that_of_the_outage_probability(x64):
    """Three steps, two actions, costs by chance: all of it enumerated, against finite differences of Pr[C > d]."""
    steps, limit = 3, 1.0
    risk = np.array([0.1, 0.6])  # of a cost of 1, by action
    theta = np.random.default_rng(0).normal(size=(steps, steps + 1, 2))  # logits by (t, C_t)

    def probabilities(theta):
        e = np.exp(theta - theta.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def outage(theta):
        """p [t, C]: backwards from the end."""
        pi = probabilities(theta)
        p = np.zeros((steps + 1, steps + 2))
        p[:, 2:] = 1.0
        for t in reversed(range(steps)):
            for c in range(2):
                meet = (pi[t, c] * risk).sum()
                p[t, c] = meet * p[t + 1, c + 1] + (1 - meet) * p[t + 1, c]
        return p

    wanted = np.zeros_like(theta)
    for at in np.ndindex(*theta.shape):
        moved = np.zeros_like(theta)
        moved[at] = 1e-6
        wanted[at] = (outage(theta + moved)[0, 0] - outage(theta - moved)[0, 0]) / 2e-6

    episodes_ = np.array(list(itertools.product(range(2), repeat=2 * steps)))  # a, cost, a, cost, …
    action, cost = episodes_[:, ::2].T, episodes_[:, 1::2].T  # [T, N]
    after = np.cumsum(cost, 0)
    before, t = after - cost, np.arange(steps)[:, None]
    pi, p = probabilities(theta), outage(theta)
    chance = np.where(cost > 0, risk[action], 1 - risk[action])
    weight = np.prod(pi[t, before, action] * chance, 0)
    lost, lost_after = before > limit, after > limit
    logit, next_logit = (
        stats.logistic.ppf(np.clip(x, 1e-15, 1 - 1e-15)) for x in (p[t, before], p[t + 1, np.minimum(after, steps)])
    )
    cut = jnp.broadcast_to(t == steps - 1, cost.shape)
    columns = (jnp.asarray(x, float)[..., None] for x in (lost, lost_after, logit, next_logit))
    advantage = np.asarray(budget.outage_targets(*columns, cut, cut, 0.99)[0])[..., 0]
    found = np.zeros_like(theta)
    for step, n in np.ndindex(*action.shape):
        score = -pi[step, before[step, n]]
        score[action[step, n]] += 1
        found[step, before[step, n]] += weight[n] * advantage[step, n] * score
    assert np.abs(wanted).max() > 0.05
    np.testing.assert_allclose(found, wanted, atol=1e-8)


@dataclasses.dataclass(frozen=True)
class Coins:
    """`STEPS` steps, whatever is done: each costs `unit` with probability `RISK`. Nothing but the budget is seen."""

    unit: float = 1.0
    obs_size: int = 1
    action_size: int = 1
    discrete: bool = False
    cost_names: tuple[str, ...] = ("cost", "other")
    max_steps: int = STEPS
    min_steps: int = STEPS

    def reset(self, key):
        return (key, jnp.zeros((), int)), jnp.zeros(1)

    def step(self, state, action):
        key, t = state
        cost = self.unit * jax.random.bernoulli(jax.random.fold_in(key, t), RISK)
        return (key, t + 1), result(jnp.zeros(1), 0.0, cost, truncated=t + 1 >= STEPS)


def trained(unit: float, iterations: int):
    """The last state of a short training on coins, and the environment."""
    sizes = {"n_envs": 256, "n_steps": 12, "epochs": 2, "minibatches": 4}
    sizes |= {"learning_rate": 3e-3, "learning_rate_exponent": 1.0, "decay_offset": 20.0}
    config = preset(
        "fast",
        "budget",
        cost_limit=ALLOWED * unit,
        network=NetworkSpec("mlp", (32, 32)),
        iterations=iterations,
        **sizes,
    )
    env = observed(Coins(unit), config.constraints)
    state = jax.jit(lambda key: budget.init(key, env, config))(jax.random.key(0))

    def update(state, _):
        return algorithms.update("budget", state, env, config)

    return jax.jit(lambda s: jax.lax.scan(update, s, length=iterations))(state)[0], env


def test_the_outage_critic_learns_the_closed_form():
    state, env = trained(1.0, 300)
    core = state.learner
    for t, spent in itertools.product(range(STEPS), range(ALLOWED + 1)):
        if spent <= t:
            obs = jnp.concatenate([jnp.zeros(1), env.budget.features(jnp.array([float(spent)]), t)])
            heads = networks.read_heads(core.network, normalize.normalize(core.moments, obs), None)
            assert abs(float(jax.nn.sigmoid(heads["outage"][0])) - tail(t, spent)) < 0.06, (t, spent)


def test_costs_in_other_units_train_the_same_policy():
    """To the last bit, as 1024 is a power of two."""
    (one, _), (other, _) = trained(1.0, 3), trained(1024.0, 3)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), one.learner.network, other.learner.network)
    assert jax.tree.all(same)
    np.testing.assert_array_equal(one.integral, other.integral)


def test_the_aim_goes_along_the_path_and_stays_at_its_level():
    constraints = (Constraint(safety=0.9, margin=0.2), Constraint(safety=0.5))
    config = preset("fast", "budget", iterations=100, constraints=constraints)
    half_way = math.sqrt(0.2 * 0.1)  # between (0.15, 0.2) and (0.45, 0.1), in the logarithm
    for k, first in ((0, 0.4), (15, 0.2), (30, half_way), (45, 0.1), (60, 0.08), (99, 0.08)):
        share = budget.passed_share(at_iteration(k), config)
        np.testing.assert_allclose(budget.aimed_outage(share, config), [first, 0.5], rtol=1e-4)
    for change in ({"iterations": 0}, {"start_outage": 0.0}):
        other = dataclasses.replace(config, **change)
        found = budget.aimed_outage(budget.passed_share(at_iteration(0), other), other)
        np.testing.assert_allclose(found, [0.08, 0.5], rtol=1e-5)


def at_iteration(k: int, passed: float | None = None) -> budget.State:
    """A state in which nothing else is asked for."""
    core = types.SimpleNamespace(iteration=jnp.array(k))
    return budget.State(core, jnp.zeros(1), None if passed is None else jnp.array(passed))  # type: ignore[arg-type]


def test_with_a_dial_the_aim_passes_every_level_of_the_path_and_only_falls():
    config = preset("fast", "budget-dial", iterations=1000)
    aims = np.array([float(budget.aimed_outage(jnp.array(k / 1000), config)[0]) for k in range(0, 1001, 10)])
    assert np.all(np.diff(aims) <= 0)
    for share, aim in budget.DIAL_PATH:
        np.testing.assert_allclose(budget.aimed_outage(jnp.array(share), config), [aim], rtol=1e-4)
    assert budget.aimed_outage(jnp.array(5.0), config)[0] == aims[-1]
    assert budget.passed_share(at_iteration(500, passed=0.3), config) == pytest.approx(0.3)


def test_a_dial_with_an_exponent_begins_slowly_and_ends_where_others_do():
    """With 2, half of the time is a quarter of the path."""
    plain = preset("fast", "budget-dial", iterations=1000)
    late = dataclasses.replace(plain, dial_exponent=2.0)
    for passed, share in ((0.0, 0.0), (0.5, 0.25), (0.9, 0.81), (1.0, 1.0)):
        expected = budget.aimed_outage(jnp.array(share), plain)
        np.testing.assert_allclose(budget.aimed_outage(jnp.array(passed), late), expected, rtol=1e-5)


def test_a_dial_goes_on_faster_where_the_multiplier_is_small():
    """1/1000 of its path in each of 1000 iterations where λ is large, 1.6 times that where it is 0; without haste never."""
    config = preset("fast", "budget-dial", iterations=1000)
    for haste, multiplier, rate in ((0.6, 0.0, 1.6), (0.6, math.log(2), 1.3), (0.6, 50.0, 1.0), (0.0, 0.0, 1.0)):
        other = dataclasses.replace(config, dial_haste=haste)
        after = budget.pass_on(jnp.array(0.25), jnp.array([multiplier]), other)
        np.testing.assert_allclose(after, 0.25 + rate / 1000, rtol=1e-5)


def test_the_control_by_hand_and_its_integral_cannot_wind_up():
    """K_p = 1, K_i = 0.1: from I = −1, an error of 0.5 gives I = −0.95, log λ = −0.45."""
    config = preset("fast", "budget", proportional_gain=1.0, integral_gain=0.1)
    integral, lam = budget.control(jnp.array([-1.0]), jnp.array([0.5]), config)
    np.testing.assert_allclose([integral[0], np.log(lam[0])], [-0.95, -0.45], rtol=1e-5)
    for _ in range(60):
        integral, lam = budget.control(integral, jnp.array([1.5]), config)
    np.testing.assert_allclose([integral[0], np.log(lam[0])], [4, 4], rtol=1e-5)
    integral, lam = budget.control(integral, jnp.array([-1.5]), config)
    np.testing.assert_allclose([integral[0], np.log(lam[0])], [3.85, 2.35], rtol=1e-5)


def test_the_error_of_the_control_by_hand():
    """Outage 0.3, aim 0.24, ε 0.1: 0.06/0.24. Aim below ε: the error is relative to ε. A mean of 30 where 20 is the limit: ½."""
    constraints = (Constraint(safety=0.9), Constraint(kind="mean", limit=20.0))
    found = episodes.Estimates(*map(jnp.array, ([0.0, 0.0], [5.0, 30.0], [0.7, 0.0], [0.0, 0.0], 50)))
    np.testing.assert_allclose(budget.control_error(found, jnp.array([0.24, 0.0]), constraints), [0.25, 0.5], rtol=1e-5)
    np.testing.assert_allclose(
        budget.control_error(found, jnp.array([0.08, 0.0]), constraints), [1.5, 0.5], rtol=1e-5
    )  # 2.2, bounded
    safe = found._replace(safety_prob=jnp.array([0.96, 0.0]))
    np.testing.assert_allclose(budget.control_error(safe, jnp.array([0.08, 0.0]), constraints)[0], -0.4, rtol=1e-5)
    unknown = found._replace(n_episodes=jnp.array(0))
    np.testing.assert_array_equal(budget.control_error(unknown, jnp.array([0.24, 0.0]), constraints), 0)


def test_the_constraints_advantage_by_hand():
    """−10·A_out − (2 + lost)·A_cost; of a mean constraint −A_cost."""
    constraints = (Constraint(), Constraint(kind="mean"))
    config = preset("fast", "budget", constraints=constraints, after_weight=1.0)
    outage, cost = jnp.array([[0.1, 0.1], [0.0, 0.0]]), jnp.array([[0.5, 0.5], [0.5, 0.5]])
    lost = jnp.array([[0.0, 0.0], [1.0, 1.0]])
    found = budget.constraint_advantage(outage, cost, lost, config)
    np.testing.assert_allclose(found, [[-2.0, -0.5], [-1.5, -0.5]], rtol=1e-6)


def test_an_episode_that_ends_at_its_limit_never_exceeds_it():
    """Counter costs 1 a step: with a limit of 3 the third step is the last."""
    env = Budgeted(Counter(), Budget((0,), (3.0,), Counter().max_steps), ends=True)
    state, _ = env.reset(jax.random.key(0))
    ends = []
    for _ in range(3):
        state, step = env.step(state, jnp.zeros(env.action_size))
        ends.append(bool(step.terminated))
    assert ends == [False, False, True]
    assert float(state.spent[0]) == 3.0


@pytest.mark.parametrize("algorithm", ["budget", *(name for name in VARIANTS if VARIANTS[name][0] == "budget")])
def test_no_variant_begins_anew_on_the_host(algorithm):
    """Environments on the host cannot: they would be refused."""
    assert preset("fast", algorithm, host=True, own=True).learner.restart_share == 0


def test_the_noise_is_held_below_a_bound_that_falls():
    """Between 20 and 80 % of the time the bound falls from 0.25 by `noise_fall`; below it the noise is free."""
    prepared = small_job(algo="budget").prepare()
    core = algorithms.get("budget").init(jax.random.key(0), prepared.group.env, prepared.config).learner

    def after(share, fall, log_std):
        actor = eqx.tree_at(lambda n: n.actor.log_std, core.network, jnp.array(log_std))
        config = dataclasses.replace(prepared.config, noise_fall=fall)
        return budget.quietened(core._replace(network=actor), jnp.array(share), config).network.actor.log_std

    np.testing.assert_allclose(after(0.1, 1.2, [0.5, -0.5]), [0.25, -0.5])
    np.testing.assert_allclose(after(0.5, 1.2, [0.5, -0.5]), [-0.35, -0.5], atol=1e-6)
    np.testing.assert_allclose(after(1.0, 1.2, [0.5, -0.5]), [-0.95, -0.95], atol=1e-6)
    np.testing.assert_allclose(after(1.0, 0.0, [0.5, -0.5]), [0.5, -0.5])
