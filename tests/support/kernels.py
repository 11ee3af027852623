"""What the tests of the GPU kernels share."""

import jax
import jax.numpy as jnp
import pytest


def lowered_for_gpu(function, *batch) -> str:
    """The program of a `vmap` over a batch of single precision, as a GPU would get it."""
    inputs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), batch)
    try:
        return jax.jit(jax.vmap(function)).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()
    except RuntimeError as error:  # JAX 0.12
        if "No supported GPU devices found" not in str(error):
            raise
        pytest.skip("this JAX lowers a kernel only where there is a GPU")
