"""A pytree as named arrays and back, bit for bit: arrays, typed PRNG keys, Python numbers.

Names are the paths of the leaves (`learner.network.actor.layers.0.weight`). Functions among the leaves (activations)
are structure, not data: their place is recorded and the template's own are kept.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from tqpo.errors import StoreError
from tqpo.store.disk import DamagedError
from tqpo.types import PyTree

NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64}
NATIVE = {"bool", "float16", "float32", "float64", "complex64"} | {
    f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)
}

Leaves = dict[str, dict[str, Any]]  # name → kind, dtype, shape


def describe(leaf: Any) -> dict[str, Any]:
    """What must agree between a stored leaf and the template's."""
    if type(leaf) in NUMBERS:
        return {"kind": type(leaf).__name__}
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return {"kind": "key" if is_key else "array", "dtype": str(leaf.dtype), "shape": list(leaf.shape)}
    if callable(leaf):
        return {"kind": "function"}
    raise StoreError(f"a {type(leaf).__name__} cannot be stored: arrays, keys, numbers and functions only")


def named_leaves(tree: PyTree) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    if len(named) != len(leaves):
        raise StoreError("two leaves of the tree have one name: its dicts have keys with dots in them")
    return named


def pack(tree: PyTree) -> tuple[bytes, Leaves]:
    """The leaves as a safetensors file, and what they are."""
    named = named_leaves(tree)
    leaves = {name: describe(leaf) for name, leaf in named.items()}
    data = {}
    for name, leaf in named.items():
        if leaves[name]["kind"] == "key":
            leaves[name]["impl"] = str(jax.random.key_impl(leaf))
            data[name] = jax.random.key_data(leaf)
        elif leaves[name]["kind"] != "function":
            data[name] = leaf
        if getattr(leaf, "weak_type", False):
            leaves[name]["weak"] = True
    arrays = {name: _storable(name, value) for name, value in jax.device_get(data).items()}
    return safetensors.numpy.save(arrays), leaves


def _storable(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value, NUMBERS.get(type(value)), order="C")  # safetensors mixes up any other order
    except OverflowError as error:
        raise StoreError(f"{name} cannot be stored: {error}") from None
    if array.dtype.name in NATIVE and array.dtype.isnative:
        return array
    if _is_small(array.dtype):
        return array.view(f"u{array.dtype.itemsize}")
    raise StoreError(f"{name} cannot be stored: it is of type {array.dtype}")


def _is_small(dtype: np.dtype) -> bool:
    """Whether it is one of JAX's short types (bfloat16, float8), which safetensors writes but does not read."""
    return dtype.type.__module__ == "ml_dtypes"


def check_leaves(leaves: Any, path: pathlib.Path) -> Leaves:
    """What a record says of its leaves, if it is of the right form."""
    if not isinstance(leaves, dict) or not all(isinstance(x, dict) and "kind" in x for x in leaves.values()):
        raise DamagedError(f"{path} does not say what its tensors are")
    return leaves


def parse(data: bytes, leaves: Leaves, path: pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, which must be those that were recorded."""
    try:
        arrays = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"{path} is not a safetensors file: {error}") from None
    expected = {name for name, leaf in leaves.items() if leaf["kind"] != "function"}
    if arrays.keys() != expected:
        raise DamagedError(f"{path} has missing or unexpected tensors: {_some(arrays.keys() ^ expected)}")
    return arrays


def check_fit(template: PyTree, leaves: Leaves, where: Any) -> None:
    """Raises unless the stored leaves are those of the template."""
    own = {name: describe(leaf) for name, leaf in named_leaves(template).items()}
    if own.keys() != leaves.keys():
        raise StoreError(f"{where} holds another structure ({_some(own.keys() ^ leaves.keys())}): use the run's config")
    for name in (name for name in own if not own[name].items() <= leaves[name].items()):
        raise StoreError(f"{where} has {name} as {leaves[name]}, not {own[name]}: use the run's own config")


def _some(names: Any) -> str:
    first = sorted(names)[:4]
    return ", ".join(first) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def unpack(template: PyTree, arrays: dict[str, np.ndarray], leaves: Leaves, where: Any) -> PyTree:
    """The template with the stored values. Its leaves may be `jax.ShapeDtypeStruct`s."""
    check_fit(template, leaves, where)
    values = [
        leaf if leaves[name]["kind"] == "function" else _restore(name, leaf, arrays[name], leaves[name], where)
        for name, leaf in named_leaves(template).items()
    ]
    return jax.tree.unflatten(jax.tree.structure(template), values)


def _restore(name: str, like: Any, array: np.ndarray, leaf: dict[str, Any], where: Any) -> Any:
    if type(like) in NUMBERS:
        value = array.item() if array.shape == () else array
    elif leaf["kind"] == "key":
        value = _restore_key(array, leaf.get("impl"))
    else:
        stored = array if array.dtype == like.dtype else _view(array, like.dtype)
        value = _like(like, stored, leaf.get("weak", False))
    if describe(value).items() <= leaf.items():
        return value
    hint = " (is jax_enable_x64 off?)" if "64" in leaf.get("dtype", "") else ""
    raise DamagedError(f"{where}: tensor {name} does not come back as {leaf}{hint}")


def _restore_key(data: np.ndarray, impl: Any) -> Any:
    try:
        return jax.random.wrap_key_data(jnp.array(data), impl=impl)
    except (TypeError, ValueError):
        return data


def _view(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Undoes the storage of a short type as an unsigned integer."""
    return array.view(dtype) if _is_small(dtype) and array.dtype == f"u{dtype.itemsize}" else array


def _like(like: Any, array: np.ndarray, weak: bool) -> Any:
    if isinstance(like, np.generic):
        return array[()]
    if isinstance(like, np.ndarray):
        return np.array(array)
    if weak:
        blank = jnp.zeros_like(jnp.asarray(array.dtype.type(0).item()), shape=array.shape)  # weakly typed
        return blank.at[...].set(array) if blank.dtype == array.dtype else jnp.array(array)
    return jnp.array(array)  # a copy: the buffer may be donated
