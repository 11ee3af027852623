"""A pytree of arrays and typed PRNG keys as named arrays and back, bit for bit.

Names are the paths of the leaves (`learner.network.actor.layers.0.weight`).
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

Leaves = dict[str, dict[str, Any]]  # name → kind, dtype, shape


def describe(leaf: Any) -> dict[str, Any]:
    """What must agree between a stored leaf and the template's."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return {"kind": "key", "dtype": str(dtype), "shape": list(leaf.shape)}
    if dtype is None or dtype.kind not in "biuf" or not dtype.isnative:
        raise StoreError(f"a {type(leaf).__name__} {dtype or ''} cannot be stored: arrays and keys only")
    return {"kind": "array", "dtype": str(dtype), "shape": list(leaf.shape)}


def named_leaves(tree: PyTree) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    if len(named) != len(leaves):
        raise StoreError("two leaves of the tree have one name: its dicts have keys with dots in them")
    return named


def pack(tree: PyTree) -> tuple[bytes, Leaves]:
    """The leaves as a safetensors file, and what they are."""
    data, leaves = {}, {}
    for name, leaf in named_leaves(tree).items():
        data[name], leaves[name] = leaf, describe(leaf)
        if leaves[name]["kind"] == "key":
            leaves[name]["impl"] = str(jax.random.key_impl(leaf))
            data[name] = jax.random.key_data(leaf)
        if getattr(leaf, "weak_type", False):
            leaves[name]["weak"] = True
    return safetensors.numpy.save({k: np.asarray(x, order="C") for k, x in jax.device_get(data).items()}), leaves


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
    if arrays.keys() != leaves.keys():
        raise DamagedError(f"{path} has missing or unexpected tensors: {_some(arrays.keys() ^ leaves.keys())}")
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
    values = [_restore(name, arrays[name], leaves[name], where) for name in named_leaves(template)]
    return jax.tree.unflatten(jax.tree.structure(template), values)


def _restore(name: str, array: np.ndarray, leaf: dict[str, Any], where: Any) -> jax.Array:
    """The leaf as a copy on the device, whose buffer may be donated."""
    value = jnp.array(array)
    if leaf["kind"] == "key":
        try:
            value = jax.random.wrap_key_data(value, impl=leaf.get("impl"))
        except (TypeError, ValueError) as error:
            raise DamagedError(f"{where}: tensor {name} is not a key: {error}") from None
    elif leaf.get("weak"):
        blank = jnp.zeros_like(jnp.asarray(array.dtype.type(0).item()), shape=array.shape)  # weakly typed
        value = blank.at[...].set(array) if blank.dtype == array.dtype else value
    if describe(value).items() <= leaf.items() and (leaf["kind"] == "key" or leaf["dtype"] == str(array.dtype)):
        return value
    hint = " (is jax_enable_x64 off?)" if "64" in leaf["dtype"] else ""
    raise DamagedError(f"{where}: tensor {name} does not come back as {leaf}{hint}")
