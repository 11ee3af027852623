"""Layers: products, the affine layer, the MLP and the LSTM, with their gradients and their first weights.

All functions take any leading axes unless a comment fixes them.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tqpo.types import Array, Key


@jax.custom_vjp
def tanh(x: Array) -> Array:
    """With d·(1 − y²) as its gradient, of which only y is kept; the built-in one also keeps 1 − y."""
    return jnp.tanh(x)


def _tanh_forward(x):
    y = jnp.tanh(x)
    return y, y


tanh.defvjp(_tanh_forward, lambda y, d: (d - (d * y) * y,))

LAYERS = {"tanh": tanh, "relu": jax.nn.relu, "elu": jax.nn.elu, "silu": jax.nn.silu}
SMALL = 128 * 192  # entries of a weight whose gradient alone does not keep a GPU busy
ALIGNED = 8  # a GPU's fast matrix kernels want inner sizes that are multiples of this


def rounded(*operands: Array) -> tuple[Array, ...]:
    """The operands of a product, in half the bits where the precision asked for is bfloat16 (not on a CPU, which is slow at
    it)."""
    asked = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    half = asked == "bfloat16" and jax.default_backend() != "cpu"
    return tuple(x.astype(jnp.bfloat16) for x in operands) if half else operands


def product(x: Array, y: Array) -> Array:
    """x @ y of `rounded` operands, summed in float32."""
    return jnp.matmul(*rounded(x, y), preferred_element_type=jnp.result_type(float))


@jax.custom_vjp
def affine(weight: Array, bias: Array, x: Array) -> Array:
    """x·W + b, with the gradient written out for `outer_sum`'s sake. Columns of x beyond W's rows are zeros (`align`)."""
    return product(x, jnp.pad(weight, ((0, x.shape[-1] - weight.shape[0]), (0, 0)))) + bias


def _affine_forward(weight, bias, x):
    return affine(weight, bias, x), (weight, x)


def _affine_backward(residuals, d):
    weight, x = residuals
    d_x = jnp.pad(product(d, weight.T), (*[(0, 0)] * (x.ndim - 1), (0, x.shape[-1] - weight.shape[0])))
    return outer_sum(x, d)[: len(weight)], d.reshape(-1, d.shape[-1]).sum(0), d_x


affine.defvjp(_affine_forward, _affine_backward)


def outer_sum(x: Array, d: Array) -> Array:
    """Σ x ⊗ d over all leading axes, [in, out]: the gradient of a weight.

    XLA's CPU backend is slow at a product over the first axis of both; a transpose and a plain product take less. The barrier
    keeps it from undoing that. On a GPU the sums of a small weight are split into parts, of a length that its matrix kernels
    take as it is.
    """
    x, d = x.reshape(-1, x.shape[-1]), d.reshape(-1, d.shape[-1])
    if jax.default_backend() == "cpu":
        return product(jax.lax.optimization_barrier(x.T), d)
    parts = split_of(len(x)) if x.shape[-1] * d.shape[-1] <= SMALL else 1
    x, d = (y.reshape(parts, -1, y.shape[-1]) for y in (x, d))
    return product(x.swapaxes(1, 2), d).sum(0)


def split_of(n: int) -> int:
    """Into how many parts a sum over n goes: at most 16, each a multiple of `ALIGNED`, or 1."""
    return max((k for k in range(1, 17) if n % (k * ALIGNED) == 0), default=1)


class Linear(eqx.Module):
    weight: Array  # [in, out]
    bias: Array  # [out]

    def __call__(self, x: Array) -> Array:
        return affine(self.weight, self.bias, x)


class MLP(eqx.Module):
    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True, default="tanh")

    def __call__(self, x: Array) -> Array:
        for layer in self.layers:
            x = LAYERS[self.activation](layer(x))
        return x


class Memory(NamedTuple):
    """The LSTM's state, zero when an episode starts."""

    h: Array  # [..., H]
    c: Array  # [..., H]


class LSTM(eqx.Module):
    """Gates in PyTorch's order i, f, g, o, with its two biases: Adam moves their sum twice as fast as one."""

    weight_in: Array  # [in, 4H]
    weight_rec: Array  # [H, 4H]
    bias: Array  # [2, 4H]


def gates_in(lstm: LSTM, features: Array, prev_action: Array, prev_reward: Array, multiple: int = 1) -> Array:
    """The inputs' part of the gates.

    Zeros fill the inputs up to a `multiple`, which changes the speed and nothing else.
    """
    fill = -lstm.weight_in.shape[0] % multiple
    zeros = jnp.zeros((*prev_reward.shape, fill))
    x = jnp.concatenate([features, prev_action, prev_reward[..., None], zeros], -1)
    return affine(jnp.pad(lstm.weight_in, ((0, fill), (0, 0))), lstm.bias.sum(0), x)


def cell(gates: Array, c: Array) -> tuple[Memory, tuple[Array, ...]]:
    """c' = σ(f)·c + σ(i)·tanh(g), h' = σ(o)·tanh(c'); also the gates after their activation."""
    i, f, g, o = jnp.split(gates, 4, -1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    c = f * c + i * g
    return Memory(o * jnp.tanh(c), c), (i, f, g, o)


@jax.custom_vjp
def lstm_scan(gates: Array, weight_rec: Array, keep: Array, h: Array, c: Array) -> Array:
    """h_t of every step: `gates` [T, B, 4H] hold the inputs' part, `keep` [T, B, 1] is 0 where an episode starts.

    The gradient is written out because plain autodiff of the scan adds a [H, 4H] gradient to a running sum at
    every step. Here the backward scan yields the gates' gradients, and the weight's is one product after it.
    """
    return _lstm_forward(gates, weight_rec, keep, h, c)[0]


def _lstm_forward(gates, weight_rec, keep, h, c):
    (weight,) = rounded(weight_rec)  # once, not in every step

    def step(carry, now):
        x, k = now
        h, c = carry[0] * k, carry[1] * k
        memory, activated = cell(x + product(h, weight), c)
        return memory, (memory.h, *rounded(h, c, jnp.concatenate(activated, -1)))

    _, (out, h_in, c_in, activated) = jax.lax.scan(step, Memory(h, c), (gates, keep))
    return out, (weight, keep, h_in, c_in, activated)


def _lstm_backward(residuals, d_out):
    weight, keep, h_in, c_in, activated = residuals

    def step(carry, now):
        d_h, d_c = carry
        d_y, k, c, gates = now
        c, gates = c.astype(d_y.dtype), gates.astype(d_y.dtype)
        i, f, g, o = jnp.split(gates, 4, -1)
        tanh_c = jnp.tanh(f * c + i * g)
        d_h = d_h + d_y
        d_c = d_c + d_h * o * (1 - tanh_c**2)
        (d_gates,) = rounded(
            jnp.concatenate(
                [
                    d_c * g * i * (1 - i),
                    d_c * c * f * (1 - f),
                    d_c * i * (1 - g**2),
                    d_h * tanh_c * o * (1 - o),
                ],
                -1,
            )
        )
        return (k * product(d_gates, weight.T), k * d_c * f), d_gates

    zero = jnp.zeros_like(d_out[0])
    (d_h, d_c), d_gates = jax.lax.scan(step, (zero, zero), (d_out, keep, c_in, activated), reverse=True)
    return d_gates.astype(d_out.dtype), outer_sum(h_in, d_gates), jnp.zeros_like(keep), d_h, d_c


lstm_scan.defvjp(_lstm_forward, _lstm_backward)


def orthogonal(key: Key, rows: int, columns: int) -> Array:
    """A random matrix whose shorter side is orthonormal, by Gram–Schmidt, each vector twice against those before it.

    Not by LAPACK's QR: on a CPU with two cores, jaxlib's batched calls can wait for each other for ever.
    """
    n, m = max(rows, columns), min(rows, columns)
    columns_first = jax.random.normal(key, (m, n))  # one vector per row

    def orthonormalise(j, basis):
        vector = columns_first[j]
        for _ in range(2):
            vector = vector - basis.T @ (basis @ vector)  # rows not reached yet are zero
        return basis.at[j].set(vector / jnp.linalg.norm(vector))

    basis = jax.lax.fori_loop(0, m, orthonormalise, jnp.zeros((m, n)))
    return basis.T if rows >= columns else basis


def make_linear(key: Key, size_in: int, size_out: int, init: str, gain: float) -> Linear:
    if init == "orthogonal":
        weight = gain * orthogonal(key, size_in, size_out)
        return Linear(weight, jnp.zeros(size_out))
    bound = 1 / np.sqrt(size_in)
    weight_key, bias_key = jax.random.split(key)
    return Linear(
        jax.random.uniform(weight_key, (size_in, size_out), minval=-bound, maxval=bound),
        jax.random.uniform(bias_key, (size_out,), minval=-bound, maxval=bound),
    )


def make_lstm(key: Key, size_in: int, width: int) -> LSTM:
    """PyTorch's default for every weight of an LSTM: U(±1/√H)."""
    bound = 1 / np.sqrt(width)
    shapes = ((size_in, 4 * width), (width, 4 * width), (2, 4 * width))
    keys = jax.random.split(key, 3)
    return LSTM(*(jax.random.uniform(k, s, minval=-bound, maxval=bound) for k, s in zip(keys, shapes, strict=True)))
