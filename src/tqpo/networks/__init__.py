"""Actor-critics: an MLP, and an MLP with an LSTM beside it whose output is added to the features.

    mlp   obs ─▶ body ─▶ tanh mean              obs ─▶ critic body ─▶ heads
    lstm  obs ─▶ body ─┬──────────────▶ + ─▶ tanh mean, heads
                       └▶ LSTM(features, previous action, previous reward) ─▲

A body may begin with a trunk of its own (`trunks`). The log standard deviation is a free vector; without one the mean is
not squashed and holds the logits of a choice, or of several. What the heads mean is their user's business: a `Head` has a
name, a shape, an activation and a trunk. An `Actor` is all that acting needs; it can be stored and loaded alone.

All functions take any leading axes unless a comment fixes them; observations arrive normalised.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tqpo.errors import ConfigError
from tqpo.maths.distribution import Choices
from tqpo.networks import trunks as own_trunks
from tqpo.networks.layers import (
    ALIGNED,
    LAYERS,
    LSTM,
    MLP,
    Linear,
    Memory,
    affine,
    cell,
    gates_in,
    lstm_scan,
    make_linear,
    make_lstm,
    product,
)
from tqpo.types import Array, Key

ACTIVATIONS = {
    "linear": lambda x: x,
    "exp": jnp.exp,
    "sigmoid": jax.nn.sigmoid,
    "4sigmoid": lambda x: 4 * jax.nn.sigmoid(x),
}
TRUNKS = ("critic", "own")


@dataclasses.dataclass(frozen=True)
class Head:
    """A linear read-out of the critic's trunk, or of one of its `own`."""

    shape: tuple[int, ...] = ()
    activation: str = "linear"
    trunk: str = "critic"

    def __post_init__(self):
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"activation = {self.activation!r}: one of {', '.join(ACTIVATIONS)}")
        if self.trunk not in TRUNKS:
            raise ConfigError(f"trunk = {self.trunk!r}: one of {', '.join(TRUNKS)}")

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=int))


@dataclasses.dataclass(frozen=True)
class NetworkSpec:
    """The structure of an actor-critic."""

    kind: str = "mlp"  # "mlp": actor and critic apart; "lstm": one trunk for both
    hidden: tuple[int, ...] = (128, 128)  # the LSTM is as wide as the last, since its output is added to it
    init: str = "orthogonal"  # or "torch": U(±1/√fan_in), PyTorch's default
    init_log_std: float = 0.0  # log of the actions' standard deviation at the start
    activation: str = "tanh"  # of the layers: tanh, relu, elu or silu
    trunk: str | None = None  # what comes before them: cnn for pictures, or module:Class of your own

    def __post_init__(self):
        if self.kind not in ("mlp", "lstm"):
            raise ConfigError(f"network kind = {self.kind!r}: mlp or lstm")
        if self.init not in ("orthogonal", "torch"):
            raise ConfigError(f"network init = {self.init!r}: orthogonal or torch")
        if self.activation not in LAYERS:
            raise ConfigError(f"activation = {self.activation!r}: one of {', '.join(LAYERS)}")
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"network hidden = {self.hidden}: at least one positive layer size")


Body = MLP | own_trunks.Fronted


class Context(NamedTuple):
    """What an LSTM sees besides the observations of a sequence."""

    prev_action: Array  # [T, B, A]; 0 where an episode starts
    prev_reward: Array  # [T, B]; 0 where an episode starts
    first: Array  # [T, B] bool: an episode starts here


class Actor(eqx.Module):
    body: Body
    lstm: LSTM | None
    mean: Linear
    log_std: Array | Choices | None  # [A]; None or `Choices`: `mean` gives the logits of a choice, or of several


class Network(eqx.Module):
    actor: Actor
    trunks: dict[str, Body]  # "critic" (mlp only: an lstm's heads read the actor's features), "own"
    readouts: dict[str, Linear]  # one per trunk in use: all heads of a trunk are one product
    heads: tuple[tuple[str, Head], ...] = eqx.field(static=True)


class Outputs(NamedTuple):
    mean: Array  # [..., A]
    log_std: Array | Choices | None  # [A]
    heads: dict[str, Array]  # name → [..., *head.shape]
    raw: Array  # [..., A] the mean before its tanh


def make_network(
    key: Key,
    spec: NetworkSpec,
    obs_size: int,
    action_size: int,
    heads: Mapping[str, Head],
    discrete: bool = False,
    obs_shape: tuple[int, ...] = (),
    choices: tuple[int, ...] = (),
) -> Network:
    """Fresh weights. A trunk of its own sees the first of the observations, in `obs_shape`; `choices` are the sizes of
    several discrete actions."""
    keys = iter(jax.random.split(key, 8))
    width = spec.hidden[-1]
    obs_shape = obs_shape or (obs_size,)
    free = jnp.full(action_size, spec.init_log_std, float)
    log_std = free if not discrete else Choices(choices) if len(choices) > 1 else None
    actor = Actor(
        body=_body(next(keys), obs_size, obs_shape, spec),
        lstm=make_lstm(next(keys), width + action_size + 1, width) if spec.kind == "lstm" else None,
        mean=make_linear(next(keys), width, action_size, spec.init, gain=0.01),
        log_std=log_std,
    )
    used = {head.trunk for head in heads.values()}
    trunks = {}
    if spec.kind == "mlp" and "critic" in used:
        trunks["critic"] = _body(next(keys), obs_size, obs_shape, spec)
    if "own" in used:
        trunks["own"] = _body(next(keys), obs_size, obs_shape, spec)
    readouts = {}
    for trunk in (t for t in TRUNKS if t in used):
        size = sum(head.size for head in heads.values() if head.trunk == trunk)
        readouts[trunk] = make_linear(next(keys), width, size, spec.init, gain=1.0)
    return Network(actor, trunks, readouts, tuple(heads.items()))


def initial_memory(actor: Actor, batch: tuple[int, ...]) -> Memory | None:
    """The state at the start of an episode; None for an MLP."""
    if actor.lstm is None:
        return None
    zeros = jnp.zeros((*batch, actor.lstm.weight_rec.shape[0]))
    return Memory(zeros, zeros)


def act(
    actor: Actor, obs: Array, memory: Memory | None, prev_action: Array, prev_reward: Array
) -> tuple[Array, Array | Choices | None, Memory | None, Array]:
    """One step: mean, log_std, the memory after it, and the features that `read_heads` takes."""
    features = actor.body(obs)
    if actor.lstm is not None and memory is not None:
        gates = gates_in(actor.lstm, features, prev_action, prev_reward)
        memory, _ = cell(gates + product(memory.h, actor.lstm.weight_rec), memory.c)
        features = features + memory.h
    return _squash(actor, actor.mean(features)), actor.log_std, memory, features


def unroll(network: Network, obs: Array, context: Context | None, memory: Memory | None) -> Outputs:
    """Outputs of whole sequences [T, B, …] from the memory at their start; an MLP needs no context and no memory.

    The LSTM's input products are one large product before the loop: only the recurrent one is inside it.
    """
    actor = network.actor
    if runs_beside(network):
        return _unroll_beside(network, obs)
    features = actor.body(obs)
    if actor.lstm is not None and context is not None and memory is not None:
        gates = gates_in(actor.lstm, features, context.prev_action, context.prev_reward, ALIGNED)  # [T, B, 4H]
        keep = 1.0 - context.first[..., None].astype(gates.dtype)
        features = features + lstm_scan(gates, actor.lstm.weight_rec, keep, memory.h, memory.c)
    raw = actor.mean(features)
    return Outputs(_squash(actor, raw), actor.log_std, read_heads(network, obs, features), raw)


def runs_beside(network: Network) -> bool:
    """Whether `unroll` computes all bodies in products that they share: a few large ones are what a GPU is fast at."""
    bodies = [network.actor.body, *network.trunks.values()]
    shapes = [[layer.weight.shape for layer in body.layers] if isinstance(body, MLP) else None for body in bodies]
    alike = all(shape == shapes[0] for shape in shapes) and shapes[0] is not None
    return alike and network.actor.lstm is None and jax.default_backend() != "cpu"


def _unroll_beside(network: Network, obs: Array) -> Outputs:
    """`unroll` of an MLP whose bodies have one shape: one product for all first layers, then batches of products."""
    names = list(network.trunks)
    bodies = [b for b in (network.actor.body, *network.trunks.values()) if isinstance(b, MLP)]
    readouts = [network.actor.mean, *(network.readouts[name] for name in names)]
    first, *later = zip(*(body.layers for body in bodies), strict=True)
    activate, beside = LAYERS[bodies[0].activation], jax.vmap(affine)
    flat = obs.reshape(-1, obs.shape[-1])
    x = affine(jnp.concatenate([w.weight for w in first], -1), jnp.concatenate([w.bias for w in first]), flat)
    x = activate(x.reshape(len(flat), len(bodies), -1).swapaxes(0, 1))  # [bodies, N, H]
    for layers in later:
        x = activate(beside(jnp.stack([w.weight for w in layers]), jnp.stack([w.bias for w in layers]), x))
    width = -(-max(len(w.bias) for w in readouts) // ALIGNED) * ALIGNED
    weights = [jnp.pad(w.weight, ((0, 0), (0, width - len(w.bias)))) for w in readouts]
    biases = [jnp.pad(w.bias, (0, width - len(w.bias))) for w in readouts]
    out = beside(jnp.stack(weights), jnp.stack(biases), x).reshape(len(bodies), *obs.shape[:-1], width)
    raw = out[0, ..., : len(readouts[0].bias)]
    heads = _split_heads(network, {name: out[1 + i] for i, name in enumerate(names)})
    return Outputs(_squash(network.actor, raw), network.actor.log_std, heads, raw)


def align(network: Network, obs: Array) -> Array:
    """Observations filled up with zeros to a width that a GPU's matrix kernels take as it is; others go as they are."""
    plain = all(isinstance(body, MLP) for body in (network.actor.body, *network.trunks.values()))
    fill = -obs.shape[-1] % (2 * ALIGNED) if plain and jax.default_backend() != "cpu" else 0
    return jnp.pad(obs, (*[(0, 0)] * (obs.ndim - 1), (0, fill)))


def _squash(actor: Actor, raw: Array) -> Array:
    """The tanh mean of an action, or the logits of a choice as they are."""
    return raw if actor.log_std is None or isinstance(actor.log_std, Choices) else jnp.tanh(raw)


def read_heads(network: Network, obs: Array, features: Array | None) -> dict[str, Array]:
    """Every head at these observations. `features` are the actor's; an mlp's heads do without (None)."""
    trunks = {name: trunk(obs) for name, trunk in network.trunks.items()}
    if "critic" not in trunks and features is not None:
        trunks["critic"] = features
    return _split_heads(network, {name: readout(trunks[name]) for name, readout in network.readouts.items()})


def _split_heads(network: Network, raw: dict[str, Array]) -> dict[str, Array]:
    """Each head's part of what was read from its trunk."""
    offset = dict.fromkeys(raw, 0)
    heads = {}
    for name, head in network.heads:
        start = offset[head.trunk]
        offset[head.trunk] = start + head.size
        piece = raw[head.trunk][..., start : start + head.size]
        heads[name] = ACTIVATIONS[head.activation](piece.reshape(*piece.shape[:-1], *head.shape))
    return heads


def _body(key: Key, obs_size: int, obs_shape: tuple[int, ...], spec: NetworkSpec) -> Body:
    if spec.trunk is None:
        return _mlp(key, obs_size, spec)
    key, own = jax.random.split(key)
    arrays, fixed, features = own_trunks.make(own, spec.trunk, obs_shape)
    past = obs_size - int(np.prod(obs_shape))
    return own_trunks.Fronted(arrays, fixed, obs_shape, _mlp(key, features + past, spec))


def _mlp(key: Key, obs_size: int, spec: NetworkSpec) -> MLP:
    sizes = (obs_size, *spec.hidden)
    keys = jax.random.split(key, len(spec.hidden))
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return MLP(tuple(make_linear(k, a, b, spec.init, gain=np.sqrt(2)) for k, a, b in pairs), spec.activation)
