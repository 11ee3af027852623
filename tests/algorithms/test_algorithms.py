"""Algorithms: every preset builds and updates; multipliers; baselines; updates that are not finite; wrong settings."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Chain, Counter, Poison, TwoArms
from small import small

from tqpo import algorithms, networks
from tqpo.algorithms import dual, episodes, learner, ppo, presets, qcpo, tqpo
from tqpo.algorithms.dual import Tilt
from tqpo.algorithms.presets import preset
from tqpo.algorithms.settings import Constraint, replace
from tqpo.errors import ConfigError, UnknownNameError
from tqpo.maths import quantile

ENV = Counter()
STRUCTURES = [*algorithms.ALGORITHMS, "tqpo-baseline", "tqpo-no-baseline"]  # the other variants are only numbers


def base_of(name):
    return presets.VARIANTS.get(name, (name,))[0]


def module_of(name):
    return algorithms.get(base_of(name))


def start(config, algorithm="tqpo", env=ENV, seed=0):
    module = module_of(algorithm)
    module.check(config, env)
    return jax.jit(lambda key: module.init(key, env, config))(jax.random.key(seed))


def updater(config, algorithm="tqpo", env=ENV):
    return jax.jit(lambda s: algorithms.update(base_of(algorithm), s, env, config))


def describe(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), tree)


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [*itertools.product(["qcpo", "budget"], ["mlp", "lstm"]), ("tqpo", "mlp"), ("ppo-lag", "lstm")],
)
def test_an_update_as_a_gpu_computes_it_gives_the_same_numbers(algorithm, kind, monkeypatch):
    """There weights and what a step shows are packed into one array each, and bodies, parts of the loss and sums share kernels."""
    config = small("fast", algorithm, kind)
    state = start(config, algorithm)
    state = state._replace(learner=state.learner._replace(iteration=jnp.ones((), jnp.int32)))  # not the warm one
    plain = updater(config, algorithm)(state)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    as_on_gpu = updater(config, algorithm)(state)
    assert describe(as_on_gpu) == describe(plain)
    moved = 0
    for a, b, before in zip(*map(jax.tree.leaves, (as_on_gpu[0], plain[0], state)), strict=True):
        if not jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
            moved += not np.array_equal(b, before)
    assert moved > 20
    for name, x in plain[1].items():
        np.testing.assert_allclose(as_on_gpu[1][name], x, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("algorithm", STRUCTURES)
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_builds_and_keeps_its_state_in_shape(name, kind, algorithm):
    config = small(name, algorithm, kind)
    state = jax.eval_shape(lambda: start(config, algorithm))
    after, metrics = jax.eval_shape(lambda s: algorithms.update(base_of(algorithm), s, ENV, config), state)
    assert describe(after) == describe(state)
    assert {"return_mean", "episode_cost_quantile", "safety_prob", "loss", "kl", "skipped"} <= set(metrics)
    if algorithm == "budget":
        assert {"multiplier", "aimed_outage"} <= set(metrics)
    elif algorithm != "ppo":
        assert {"multiplier", "tilt_up", "tilt_down", "share_below"} <= set(metrics)


@pytest.mark.parametrize(
    ("name", "algorithm", "kind"),
    [
        ("fast", "ppo", "mlp"),
        ("paper", "ppo-lag", "lstm"),
        ("paper", "qcpo", "mlp"),
        ("fast", "tqpo", "lstm"),
        ("fast", "budget", "mlp"),
    ],
)
def test_updates_learn_something_finite(name, algorithm, kind):
    config = small(name, algorithm, kind)
    update, state = updater(config, algorithm), start(config, algorithm)
    first, metrics = update(state)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(metrics))
    same = jax.tree.map(lambda a, b: bool((a == b).all()), first.learner.network, state.learner.network)
    assert all(jax.tree.leaves(same)), "the first batch only feeds the normaliser"
    assert first.learner.moments.count == 32
    second, metrics = update(first)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(metrics))
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), second.learner.network, first.learner.network)
    assert all(jax.tree.leaves(moved)), "every weight learns"
    assert metrics["steps"] == 32
    assert metrics["skipped"] == 0
    assert second.learner.iteration == 2


@pytest.mark.parametrize("name", presets.PRESETS)
def test_variants_are_valid(name):
    for variant, (base, changes) in presets.VARIANTS.items():
        config = preset(name, variant)
        algorithms.get(base).check(config, ENV)
        assert config == preset(name, base, **changes)


def test_paper_preset_is_the_released_configuration():
    c = preset("paper", "tqpo")
    assert (c.learner.n_envs, c.learner.n_steps, c.learner.epochs, c.learner.minibatches) == (12, 1000, 8, 1)
    assert (c.learner.network.kind, c.learner.network.hidden, c.learner.segment) == ("lstm", (512, 512), 100)
    assert (c.learner.clip, c.learner.learning_rate, c.learner.discount, c.learner.gae_lambda) == (
        0.1,
        1e-4,
        0.99,
        0.97,
    )
    assert (c.learner.value_coef, c.learner.cost_value_coef, c.learner.max_grad_norm) == (1.0, 0.5, 1.0)
    assert not c.learner.bootstrap_timeouts
    assert not c.learner.normalize_advantage
    assert (c.dual.initial_multiplier, c.dual.gain, c.dual.cost_scale, c.dual.delta, c.dual.alpha) == (
        0.5,
        0.1,
        10,
        0.1,
        1,
    )
    assert (c.indicator_scale, c.step_window, c.learner.episode_window, c.baseline) == (0.1, 100_000, 100, "none")
    assert (c.dual.tilt, c.dual.max_step, c.dual.max_multiplier) == (Tilt.ADAPTIVE, 10, float("inf"))
    assert preset("paper", "qcpo").dual.initial_multiplier == 0
    assert preset("paper", "qcpo").dual.tilt == Tilt.NONE
    assert preset("paper", "qcpo-tilt").dual.tilt == Tilt.ADAPTIVE


def test_two_constraints_at_once():
    """A quantile on channel 0 and a mean on channel 1 (twice as large): two λ, two estimates, one tilt."""
    constraints = (
        Constraint(channel=0, kind="quantile", limit=1.0, safety=0.5),
        Constraint(channel=1, kind="mean", limit=100.0),
    )
    config = small(constraints=constraints, baseline="separate", dual=dual.DualConfig(cost_scale=1.0))
    update, state = updater(config), start(config)
    for _ in range(3):
        state, metrics = update(state)
    costs = np.asarray(state.learner.episodes.recent.values)  # [3, window]
    assert metrics["episode_cost_quantile"][0] == np.quantile(costs[1], 0.5, method="inverted_cdf")
    np.testing.assert_allclose(metrics["episode_cost_mean"][1], costs[2].mean(), rtol=1e-6)
    np.testing.assert_allclose(state.dual.tracked, [metrics["episode_cost_quantile"][0], costs[2].mean()], rtol=1e-6)
    assert metrics["multiplier"][0] > 0.5 > metrics["multiplier"][1]  # above its limit; far below it
    np.testing.assert_allclose(metrics["tilt_up"], [0.1 / 1.1, 1.0], rtol=1e-6)
    assert metrics["safe_episodes"].shape == (2,)
    assert state.q.shape == (2,)


def test_a_mean_constraint_gets_ppo_lagrangians_advantage():
    constraints = (Constraint(kind="mean"), Constraint(safety=0.9))
    config = small(constraints=constraints, indicator_scale=0.2)
    cost_return = jnp.array([[[1.0, 1.0], [3.0, 3.0]]])  # [T=1, B=2, K=2]
    cost_advantage = jnp.array([[[0.3, 0.3], [-0.2, -0.2]]])
    got = tqpo.constraint_advantage(cost_return, cost_advantage, jnp.array([2.0, 2.0]), None, config)
    np.testing.assert_allclose(got, [[[-0.3, 0.0], [0.2, -2.0]]], rtol=1e-5)
    p = jnp.full((1, 2, 2), 0.25)
    got = tqpo.constraint_advantage(cost_return, cost_advantage, jnp.array([2.0, 2.0]), p, config)
    np.testing.assert_allclose(got, [[[-0.3, 0.5], [0.2, -1.5]]], rtol=1e-5)


def test_multiplier_waits_for_the_first_episode():
    """Episodes of 20 steps, batches of 8: λ moves in the third iteration and not before. The others' first were cut off."""
    config = small(cost_limit=1.0, dual=dual.DualConfig(cost_scale=1.0), n_steps=8)
    update, state = updater(config, env=Chain(20)), start(config, env=Chain(20))
    seen = []
    for _ in range(3):
        state, metrics = update(state)
        seen.append((float(metrics["multiplier"][0]), int(metrics["episodes"]), float(state.dual.recent.count[0])))
    assert seen[:2] == [(0.5, 0, 0), (0.5, 0, 0)]
    assert seen[2][1:] == (1, 1)
    step = 0.1 / 1.1 * 0.1 * 10  # η₊ = δ/(1+δ), gain 0.1, excess 20 − 1 bounded to 10
    assert seen[2][0] == pytest.approx(0.5 + step)
    assert metrics["episode_cost_quantile"][0] == 20


def test_the_tilt_moves_once_quantiles_cross_the_limit():
    """Two quantiles above d = 10, then below: F_q(d) = 0, 0, 1/3, 2/4; η₋ falls from 1, η₊ rises from δ/(1+δ)."""
    config = dual.DualConfig(cost_scale=10.0)
    constraints = (Constraint(limit=10.0),)
    state = dual.init(config, 1)
    expected_lam, shares = 0.5, []
    for k, q in enumerate([20.0, 30.0, 5.0, 0.0]):
        found = episodes.Estimates(jnp.array([q]), jnp.zeros(1), jnp.zeros(1), jnp.array([q]), jnp.array(3))
        state, metrics = dual.step(state, found, constraints, config, jnp.array(k), tqpo.tilt)
        share = sum(x < 10 for x in [20, 30, 5, 0][: k + 1]) / (k + 1)
        eta = (share + 0.1) / 1.1 if q >= 10 else (1 - share + 0.1) / 1.1
        expected_lam = max(expected_lam + eta * 0.1 * (q - 10) / 10, 0)
        shares.append(float(metrics["share_below"][0]))
        assert metrics["multiplier"][0] == pytest.approx(expected_lam, rel=1e-5)
    assert shares == pytest.approx([0, 0, 1 / 3, 1 / 2])


def test_tracking_takes_the_first_estimate_whole_and_then_alpha():
    config = dual.DualConfig(alpha=0.5)
    one = dual.track(jnp.zeros(1), jnp.array([8.0]), config, jnp.array(0), jnp.array([False]))
    two = dual.track(one, jnp.array([4.0]), config, jnp.array(1), jnp.array([True]))
    np.testing.assert_allclose([one[0], two[0]], [8.0, 6.0])


def test_step_window_keeps_the_newest_and_refuses_what_is_not_finite():
    empty = jax.tree.map(lambda x: x[None], quantile.window_init(4))
    batch = jnp.arange(6.0).reshape(3, 2, 1)  # rows t: (0, 1), (2, 3), (4, 5)
    window = tqpo.push_steps(empty, batch, stride=2)
    np.testing.assert_allclose(window.values[0][quantile.window_mask(window)[0]], [0, 1, 4, 5])
    window = tqpo.push_steps(window, 10 + batch[:1], stride=1)
    np.testing.assert_allclose(window.values[0], [4, 5, 10, 11])
    same = tqpo.push_steps(window, batch.at[0].set(jnp.nan), stride=1)
    np.testing.assert_allclose(same.values, window.values)


def test_baseline_does_not_pull_at_the_policy():
    """With nothing else to learn, p's loss leaves the actor and the critic's trunk where they are."""
    config = small("fast", "tqpo", baseline="separate", value_coef=0.0, cost_value_coef=0.0)
    obs, zeros = jax.random.normal(jax.random.key(0), (6, 2)), jnp.zeros(6)
    sample = learner.Sample(obs, jnp.zeros((6, 1)), zeros, None)
    targets = tqpo.Targets(zeros, zeros, zeros[:, None], zeros[:, None], jnp.ones((6, 1)))

    def total(network):
        outputs = networks.unroll(network, obs, None, None)
        return tqpo.loss(outputs, zeros, sample, targets, jnp.ones(1), config)

    (value, parts), grads = jax.jit(jax.value_and_grad(total, has_aux=True))(start(config).learner.network)
    assert value == pytest.approx(float(parts["baseline_loss"]))
    assert not any(g.any() for g in jax.tree.leaves((grads.actor, grads.trunks["critic"])))
    assert grads.readouts["own"].weight.any()


def test_qcpo_reads_the_level_of_the_released_code():
    levels = jnp.array([0.7, 0.8, 0.9, 0.95, 0.99])
    np.testing.assert_array_equal(qcpo.level_index(levels, 25), [17, 19, 22, 23, 24])  # ⌊25(1−ε) − ½⌋
    quantiles = jnp.array([[3.0, 1.0, 2.0], [6.0, 4.0, 5.0]])  # [K, N], not in order
    np.testing.assert_allclose(qcpo.at_level(quantiles, jnp.array([0, 2])), [1.0, 6.0])


def test_each_term_is_clipped_by_itself():
    """ρ = 1.5 beyond 1.2: a reward of 1 counts 1.2, a constraint of −1 counts −1.5; λ = 1 halves the sum."""
    ratio = jnp.array([1.5])
    value, parts = ppo.penalised_surrogate(ratio, jnp.array([1.0]), jnp.array([[-1.0]]), jnp.array([1.0]), 0.2)
    assert value == pytest.approx((1.2 - 1.5) / 2)
    assert parts["policy_loss"] == pytest.approx(-1.2)
    np.testing.assert_allclose(parts["constraint_loss"], [1.5])


def test_updates_that_are_not_finite_are_skipped_and_counted():
    """Rewards are NaN in steps 20 … 27: iteration 2 (steps 16–23) and 3 (24–31) skip all their updates."""
    env = Poison(bad=20, until=28)
    config = small("fast", "tqpo")
    update, state = updater(config, env=env), start(config, env=env)
    before, skipped, in_a_row = [], [], []
    for _ in range(5):
        before.append((state.learner.network, state.learner.opt_state))
        state, metrics = update(state)
        skipped.append(int(metrics["skipped"]))
        in_a_row.append(int(metrics["skipped_in_a_row"]))
    assert skipped == [0, 0, 4, 4, 0]
    assert in_a_row == [0, 0, 4, 8, 0]
    same = jax.tree.map(lambda *x: all((a == x[0]).all() for a in x), before[2], before[3], before[4])
    assert all(jax.tree.leaves(same))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.learner.network, state.dual, state.q)))
    assert np.isfinite(metrics["loss"])
    assert state.learner.skipped_in_a_row == 0


def test_schedules_of_the_proof():
    config = preset("fast", alpha=0.5, alpha_exponent=0.6, decay_offset=10.0)
    assert dual.track(jnp.zeros(()), jnp.ones(()), config.dual, jnp.array(10), jnp.array(True)) == pytest.approx(
        0.5 / 2**0.6
    )


def test_settings_change_by_name():
    config = preset("fast", "tqpo", cost_limit=25.0, safety=0.95, margin=0.1, learning_rate=1e-3, gain=0.3)
    assert config.constraints == (Constraint(limit=25.0, safety=0.95, margin=0.1),)
    assert (config.learner.learning_rate, config.dual.gain) == (1e-3, 0.3)
    two = replace(config, constraints=(Constraint(), Constraint(channel=1)), cost_limit=3.0)
    assert [c.limit for c in two.constraints] == [3.0, 3.0]
    with pytest.raises(UnknownNameError, match="learning_rat"):
        replace(config, learning_rat=1.0)
    with pytest.raises(UnknownNameError, match="fast"):
        preset("quick")
    with pytest.raises(UnknownNameError, match="qcpo-tilt"):
        preset("fast", "trpo")
    with pytest.raises(UnknownNameError, match="ppo-lag"):
        algorithms.get("trpo")


def test_settings_take_what_fits_their_kind():
    config = preset("fast", gain=1, epochs=4.0, n_envs=np.int64(8), bootstrap_timeouts=np.bool_(False), hidden=(8,))
    got = (config.dual.gain, config.learner.epochs, config.learner.n_envs, config.learner.bootstrap_timeouts)
    assert [(x, type(x)) for x in got] == [(1.0, float), (4, int), (8, int), (False, bool)]
    assert config.learner.network.hidden == (8,)
    assert replace(config, gain=0.5).dual.gain == 0.5
    assert replace(config, tilt=Tilt.FIXED).dual.tilt == Tilt.FIXED
    assert replace(config, matmul_precision=None).learner.matmul_precision is None
    assert replace(config, max_multiplier=float("inf")).dual.max_multiplier == float("inf")
    assert replace(config, gain=jnp.array(0.5)).dual.gain.shape == ()
    for wrong in ({"gain": {}}, {"gain": True}, {"epochs": 1.5}, {"hidden": (8.5,)}, {"baseline": 3}, {"network": 3}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            replace(config, **wrong)


def test_margin_holds_back_a_share_of_the_outage_probability():
    constraints = (Constraint(safety=0.9, margin=0.2), Constraint(safety=0.95))
    np.testing.assert_allclose(episodes.levels(constraints), [0.92, 0.95], rtol=1e-6)


def test_numbers_are_traced_and_structure_is_not():
    one, two = preset("fast", safety=0.9, tilt=Tilt.NONE), preset("fast", safety=0.95, learning_rate=1.0)
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert jax.tree.structure(one) != jax.tree.structure(preset("fast", n_envs=4))
    for algorithm in algorithms.ALGORITHMS:
        leaves = jax.tree.leaves(preset("paper", algorithm))
        assert all(isinstance(x, float | int) and not isinstance(x, bool) for x in leaves)


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("tqpo", {"minibatches": 5}),
        ("tqpo", {"n_envs": 0}),
        ("tqpo", {"safety": 1.0}),
        ("tqpo", {"cost_limit": -1.0}),
        ("tqpo", {"margin": 1.0}),
        ("tqpo", {"baseline": "mean"}),
        ("tqpo", {"step_stride": 9}),
        ("tqpo", {"tilt": 7}),
        ("tqpo", {"learning_rate": 0.0}),
        ("tqpo", {"discount": 1.5}),
        ("tqpo", {"cost_scale": 0.0}),
        ("tqpo", {"constraints": (Constraint(channel=2),)}),
        ("tqpo", {"constraints": (Constraint(kind="median"),)}),
        ("ppo-lag", {"constraints": (Constraint(kind="quantile"),)}),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(algorithm, changes):
    config = small("fast", algorithm, **changes)
    with pytest.raises(ConfigError):
        algorithms.get(algorithm).check(config, TwoArms())


def test_segments_must_divide_the_batch():
    with pytest.raises(ConfigError, match="segment"):
        algorithms.get("tqpo").check(small("fast", "tqpo", "lstm", segment=3), ENV)


def test_configs_are_plain_frozen_data():
    config = preset("fast", "tqpo")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.indicator_scale = 1.0
