"""Shared set-up: a persistent compilation cache, so that a test pays for a program once."""

import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

CACHE = pathlib.Path(__file__).parent.parent / ".jax_cache"
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield
