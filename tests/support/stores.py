"""What the tests of the store share: a state with every kind of leaf, bit-for-bit comparison, a small training job."""

import pathlib
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tqpo import store

PROVENANCE = {"commit": "0" * 40, "versions": {}, "hardware": {}}


class Window(NamedTuple):
    values: Any  # [R, n]
    count: Any  # [R]


class Layer(eqx.Module):
    weight: jax.Array
    bias: jax.Array | None
    size: int = eqx.field(static=True)


def rich_state(seed: int) -> Any:
    """Nested tuples, dicts, an Equinox module, typed keys, every kind of array."""
    rng = np.random.default_rng(seed)
    odd_nan = np.array([0x7FC00123, 0xFFC00001, 0x80000000], np.uint32).view(np.float32)  # NaNs with payload, −0
    return {
        "key": jax.random.key(seed),
        "keys": jax.random.split(jax.random.key(seed, impl="rbg"), (2, 3)),
        "layers": [Layer(jnp.asarray(rng.normal(size=(3, 2)), jnp.float32), None, 2)] * 2,
        "window": Window(jnp.asarray(rng.normal(size=(4, 5)), jnp.float32), jnp.arange(4)),
        "flags": jnp.asarray(rng.random(7) < 0.5),
        "half": jnp.asarray(rng.normal(size=5), jnp.float16),
        "weak": jnp.asarray(rng.random()),
        "odd": jnp.asarray(odd_nan),
        "empty": jnp.zeros((0, 3)),
        "host": np.asarray(rng.normal(size=(2, 3)), np.float32).T,  # column-major
        "bytes": rng.integers(0, 256, 4, np.uint8),
        "scalar": np.int16(seed),
        "nothing": None,
    }


def small_state(iteration: int) -> Any:
    """Cheap, for tests that save thousands of times."""
    rng = np.random.default_rng(iteration)
    return Window(rng.normal(size=(2, 6)).astype(np.float32), np.array([iteration, -iteration], np.int32))


def bits(leaf: Any) -> tuple:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return "key", str(leaf.dtype), bits(jax.random.key_data(leaf))
    array = np.asarray(leaf)
    weak = getattr(leaf, "weak_type", False)
    return weak, str(array.dtype), array.shape, array.tobytes()


def identical(a: Any, b: Any) -> bool:
    same_structure = jax.tree.structure(a) == jax.tree.structure(b)
    return same_structure and all(map(lambda x, y: bits(x) == bits(y), jax.tree.leaves(a), jax.tree.leaves(b)))


def chunk_rows(iteration: int) -> list[dict[str, Any]]:
    """Rows of one chunk of two iterations and two runs."""
    rng = np.random.default_rng(100 + iteration)
    metrics = {
        "return": rng.normal(size=(2, 2)).astype(np.float32),
        "multiplier": rng.random((2, 2, 1)).astype(np.float32),
    }
    return store.rows_of_chunk(metrics, seeds=(7, 8), start=2 * (iteration - 1), steps=100)


def work(folder: pathlib.Path, last: int = 3, saved: list[int] | None = None, on_warning=None) -> None:
    """A training job: begins, or goes on where it was interrupted; `saved` collects the iterations that were saved."""
    found = None
    if (folder / "manifest.json").exists():
        run = store.open_run(folder, write=True, on_warning=on_warning)
        found = run.resume(small_state(0))
    else:
        run = store.create(folder, {"cost_limit": 15.0}, on_warning=on_warning)
    with run:
        for iteration in range(found[1]["iteration"] + 1 if found else 1, last + 1):
            run.append_metrics(chunk_rows(iteration))
            meta = {"step": 200 * iteration, "iteration": iteration}
            run.save_checkpoint(small_state(iteration), meta, keep=2)
            if saved is not None:
                saved.append(iteration)
        run.save_checkpoint(small_state(last), {**meta_of(last), "again": True}, keep=2)
        run.save_policy({"mean": small_state(last).values}, {"task": "Toy"})
        run.write_json("evaluation.json", {"return": 1.0})
        run.finish()


def meta_of(iteration: int) -> dict[str, Any]:
    return {"step": 200 * iteration, "iteration": iteration}


def leftovers(folder: pathlib.Path) -> list[str]:
    return [p.name for p in folder.rglob("*") if p.name.startswith((".tmp-", ".old-"))]
