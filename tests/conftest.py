"""Shared set-up: a persistent compilation cache, so that a test pays for a program once."""

import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

CACHE = pathlib.Path(__file__).parent.parent / ".jax_cache"
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)

QUICK = "--xla_backend_optimization_level=0"  # a program compiles in little more than half the time


def pytest_configure(config):
    """Fast tests compile much and compute little. Slow tests, and those on a GPU, have programs as users have them."""
    if config.option.markexpr == "not slow" and os.environ["JAX_PLATFORMS"] == "cpu":
        os.environ.setdefault("XLA_FLAGS", QUICK)


MAPPINGS = 20_000  # of memory, a third of what Linux allows a process; a compiled program has dozens


@pytest.fixture(autouse=True, scope="module")
def room_for_programs():
    """Programs are given up after a module that leaves too many: a process that runs out of mappings dies."""
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAPPINGS:
        jax.clear_caches()


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield
