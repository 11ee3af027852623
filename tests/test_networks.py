"""Networks: the LSTM's written-out gradient, sequences against single steps, heads and their trunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import signal

from tqpo import networks, references
from tqpo.errors import ConfigError
from tqpo.networks import Context, Head, Memory, NetworkSpec, layers, trunks

OBS, ACTIONS, T, B, H = 5, 2, 7, 3, 8
HEADS = {"value": Head(), "quantiles": Head((2, 4), "exp"), "shape": Head((2,), "4sigmoid")}


def make(kind="lstm", heads=HEADS, init="torch", hidden=(6, H)):
    return networks.make_network(jax.random.key(0), NetworkSpec(kind, hidden, init), OBS, ACTIONS, heads)


def sequence(seed=1):
    keys = jax.random.split(jax.random.key(seed), 6)
    obs = jax.random.normal(keys[0], (T, B, OBS))
    first = jax.random.bernoulli(keys[3], 0.3, (T, B))
    prev_action = jnp.where(first[..., None], 0, jax.random.normal(keys[1], (T, B, ACTIONS)))
    prev_reward = jnp.where(first, 0, jax.random.normal(keys[2], (T, B)))
    memory = Memory(jax.random.normal(keys[4], (B, H)), jax.random.normal(keys[5], (B, H)))
    return obs, Context(prev_action, prev_reward, first), memory


def test_a_layers_written_out_gradient_is_that_of_the_plain_product():
    keys = jax.random.split(jax.random.key(3), 4)
    weight, bias = jax.random.normal(keys[0], (OBS, H)), jax.random.normal(keys[1], (H,))
    x, d = jax.random.normal(keys[2], (T, B, OBS)), jax.random.normal(keys[3], (T, B, H))

    def gradients(layer):
        return jax.grad(lambda *args: jnp.sum(jnp.tanh(layer(*args)) * d), argnums=(0, 1, 2))(weight, bias, x)

    for written, plain in zip(gradients(layers.affine), gradients(lambda w, b, x: x @ w + b), strict=True):
        np.testing.assert_allclose(written, plain, rtol=1e-5, atol=1e-5)


def plain_scan(gates, weight_rec, keep, h, c):
    """The LSTM's loop as autodiff would have it."""

    def step(carry, now):
        x, k = now
        h, c = carry[0] * k, carry[1] * k
        i, f, g, o = jnp.split(x + h @ weight_rec, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return jax.lax.scan(step, (h, c), (gates, keep))[1]


def test_lstm_gradient_is_autodiffs(x64):
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = ((T, B, 4 * H), (H, 4 * H), (B, H), (B, H), (T, B, H))
    gates, weight, h, c, direction = (jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True))
    keep = jax.random.bernoulli(keys[0], 0.7, (T, B, 1)).astype(float)

    def total(f):
        return jax.value_and_grad(lambda g, w, h, c: jnp.sum(direction * f(g, w, keep, h, c)), (0, 1, 2, 3))

    both = [total(f)(gates, weight, h, c) for f in (layers.lstm_scan, plain_scan)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), *both)


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_sequences_agree_with_single_steps(kind):
    network = make(kind)
    obs, context, memory = sequence()
    memory = memory if kind == "lstm" else None
    outputs = networks.unroll(network, obs, context, memory)
    for t in range(T):
        if memory is not None:
            memory = Memory(*(jnp.where(context.first[t][:, None], 0.0, x) for x in memory))
        mean, log_std, memory, features = networks.act(
            network.actor, obs[t], memory, context.prev_action[t], context.prev_reward[t]
        )
        heads = networks.read_heads(network, obs[t], features)
        np.testing.assert_allclose(mean, outputs.mean[t], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(log_std, outputs.log_std)
        for name, x in heads.items():
            np.testing.assert_allclose(x, outputs.heads[name][t], rtol=1e-5, atol=1e-6)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Networks compute as they do where there is one."""
    monkeypatch.setattr(networks.jax, "default_backend", lambda: "gpu")


def loss_and_gradient(network, obs, context=None, memory=None):
    def loss(network):
        outputs = networks.unroll(network, networks.align(network, obs), context, memory)
        return sum(jnp.sum(jnp.sin(3 * x)) for x in jax.tree.leaves((outputs.mean, outputs.heads, outputs.raw)))

    return jax.value_and_grad(loss)(network)


def test_bodies_in_products_that_they_share_give_what_each_gives_alone(request):
    heads = HEADS | {"apart": Head((3,), trunk="own")}
    network, (obs, *_) = make("mlp", heads), sequence()
    plain = loss_and_gradient(network, obs)
    assert not networks.runs_beside(network)
    request.getfixturevalue("as_on_a_gpu")
    assert networks.runs_beside(network)
    assert networks.align(network, obs).shape == (T, B, 16)
    for together, alone in zip(*map(jax.tree.leaves, (loss_and_gradient(network, obs), plain)), strict=True):
        np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_products_of_half_the_bits_are_nearly_those_of_all(request):
    network, (obs, context, memory) = make("lstm"), sequence()
    plain = loss_and_gradient(network, obs, context, memory)
    request.getfixturevalue("as_on_a_gpu")
    with jax.default_matmul_precision("bfloat16"):
        half = loss_and_gradient(network, obs, context, memory)
    differ = 0
    for rounded, exact in zip(*map(jax.tree.leaves, (half, plain)), strict=True):
        assert rounded.dtype == exact.dtype
        np.testing.assert_allclose(rounded, exact, atol=0.05 * float(jnp.abs(exact).max()) + 1e-4)
        differ += not np.array_equal(rounded, exact)
    assert differ > 3, "nothing was rounded"


def test_heads_have_their_shapes_and_ranges():
    obs, context, memory = sequence()
    heads = networks.unroll(make(), 10 * obs, context, memory).heads
    assert heads["value"].shape == (T, B)
    assert heads["quantiles"].shape == (T, B, 2, 4)
    assert heads["quantiles"].min() > 0
    assert heads["shape"].shape == (T, B, 2)
    assert 0 < heads["shape"].min() < heads["shape"].max() < 4


def test_heads_of_one_trunk_do_not_mix():
    network = make("mlp")
    weight = network.readouts["critic"].weight
    np.testing.assert_array_equal([weight.shape[1]], [1 + 8 + 2])
    moved = jax.tree.map(lambda x: x, network)
    object.__setattr__(moved.readouts["critic"], "bias", network.readouts["critic"].bias.at[0].add(1.0))
    obs = sequence()[0]
    before, after = (networks.read_heads(n, obs, None) for n in (network, moved))
    np.testing.assert_allclose(after["value"], before["value"] + 1, rtol=1e-6)
    np.testing.assert_array_equal(after["quantiles"], before["quantiles"])


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
@pytest.mark.parametrize("trunk", ["own"])
def test_a_head_apart_leaves_actor_and_critic_alone(kind, trunk):
    network = make(kind, {"value": Head(), "p": Head((1,), trunk=trunk)})
    obs, context, memory = sequence()

    def total(network):
        return networks.unroll(network, obs, context, memory if kind == "lstm" else None).heads["p"].sum()

    grads = jax.grad(total)(network)
    assert all(not g.any() for g in jax.tree.leaves(grads.actor))
    assert all(not g.any() for g in jax.tree.leaves(grads.trunks.get("critic", ())))
    assert not grads.readouts["critic"].weight.any()
    assert grads.readouts[trunk].weight.any()
    assert (trunk == "own") == ("own" in grads.trunks)


def test_torch_init_is_uniform_within_one_over_root_fan_in():
    network = make(hidden=(300, 200))
    for linear, fan_in in zip(network.actor.body.layers, (OBS, 300), strict=True):
        for x in (linear.weight, linear.bias):
            bound = 1 / np.sqrt(fan_in)
            assert 0.95 * bound < jnp.abs(x).max() <= bound
        assert linear.weight.std() == pytest.approx(1 / np.sqrt(3 * fan_in), rel=0.05)
    lstm = network.actor.lstm
    assert lstm is not None
    for x in (lstm.weight_in, lstm.weight_rec, lstm.bias):
        assert 0.95 / np.sqrt(200) < jnp.abs(x).max() <= 1 / np.sqrt(200)
    assert lstm.weight_in.shape == (200 + ACTIONS + 1, 800)
    np.testing.assert_array_equal(network.actor.log_std, np.zeros(ACTIONS))


def test_orthogonal_init():
    weight = make("mlp", init="orthogonal").actor.body.layers[1].weight  # [6, 8], gain √2
    np.testing.assert_allclose(weight @ weight.T, 2 * np.eye(6), atol=1e-5)


@pytest.mark.parametrize("spec", [{"kind": "cnn"}, {"init": "zeros"}, {"hidden": ()}, {"hidden": (0,)}], ids=str)
def test_impossible_networks_are_refused(spec):
    with pytest.raises(ConfigError):
        NetworkSpec(**spec)


@pytest.mark.parametrize("shape", [(61, 64), (64, 64), (64, 2), (3, 64)])
def test_orthogonal_weights_have_an_orthonormal_shorter_side(shape):
    weight = np.asarray(layers.orthogonal(jax.random.key(0), *shape))
    assert weight.shape == shape
    gram = weight.T @ weight if shape[0] >= shape[1] else weight @ weight.T
    np.testing.assert_allclose(gram, np.eye(min(shape)), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "numpy"),
    [
        ("tanh", np.tanh),
        ("relu", lambda x: np.maximum(x, 0)),
        ("elu", lambda x: np.where(x > 0, x, np.expm1(x))),
        ("silu", lambda x: x / (1 + np.exp(-x))),
    ],
)
def test_layers_have_the_activation_of_that_name(name, numpy):
    spec = NetworkSpec("mlp", (4, H), activation=name)
    network = networks.make_network(jax.random.key(0), spec, OBS, ACTIONS, HEADS)
    x = np.random.default_rng(0).normal(size=(B, OBS)).astype(np.float32)
    by_hand = x
    for layer in network.actor.body.layers:
        by_hand = numpy(by_hand @ np.asarray(layer.weight) + np.asarray(layer.bias))
    np.testing.assert_allclose(network.actor.body(x), by_hand, rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match="activation = 'tanhh': one of tanh, relu, elu, silu"):
        NetworkSpec(activation="tanhh")


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
@pytest.mark.parametrize(("trunk", "shape"), [("cnn", (9, 7, 3)), ("cnn", (2, 9, 7)), ("trunks:Features", (4, 4))])
def test_a_trunk_sees_the_observation_and_what_is_beside_it_goes_past(kind, trunk, shape):
    """Any leading axes; every weight has a gradient; two numbers beside the picture still matter."""
    size = int(np.prod(shape)) + 2
    spec = NetworkSpec(kind, (8,), trunk=trunk)
    network = networks.make_network(jax.random.key(0), spec, size, ACTIONS, HEADS, obs_shape=shape)
    obs = jax.random.normal(jax.random.key(1), (3, 2, size))
    body = network.actor.body
    features = body(obs)
    assert features.shape == (3, 2, 8)
    np.testing.assert_allclose(features[1, 1], body(obs[1, 1]), atol=1e-5)
    assert not np.allclose(features, body(obs.at[..., -1].add(1.0)))
    assert not np.allclose(features, body(obs.at[..., 0].add(5.0)), atol=1e-7)
    gradient = jax.grad(lambda body: jnp.sum(body(obs) ** 2))(body)
    assert all(np.any(g != 0) for g in jax.tree.leaves(gradient))


def test_a_convolution_is_that_of_scipy():
    """The first layer of the CNN, at stride 2, against a full correlation."""
    cnn = trunks.CNN((6, 6, 1), key=jax.random.key(0))
    picture = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    weight, bias = np.asarray(cnn.layers[0].weight), np.asarray(cnn.layers[0].bias)
    found = cnn.layers[0](picture[None])
    for channel in range(3):
        full = signal.correlate2d(picture, weight[channel, 0], mode="same") + bias[channel]
        np.testing.assert_allclose(found[channel], full[::2, ::2], atol=1e-5)


def test_a_trunk_that_cannot_be_one():
    def make(trunk, shape=(4,)):
        spec = NetworkSpec(trunk=references.name_of(trunk))
        return networks.make_network(jax.random.key(0), spec, 4, ACTIONS, HEADS, obs_shape=shape)

    with pytest.raises(ConfigError, match="for pictures"):
        make("cnn")
    with pytest.raises(ConfigError, match="a vector of features is expected"):
        make(lambda shape, key: lambda x: x.sum())
    with pytest.raises(ConfigError, match="its arrays must be of floats"):
        make(lambda shape, key: [jnp.arange(3)])
