"""The kernels of the robot among boxes against plain XLA; interpreted where there is no GPU."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import lowered_for_gpu

from tqpo.physics import kernel
from tqpo.physics.dispatch import make_push
from tqpo.physics.movable import Boxes, BoxModel
from tqpo.physics.planar import PlanarRobot
from tqpo.physics.push import BoxMotion, Fixture, Scene, push_xla

TRAVEL = 0.35
FIXTURE = Fixture(PlanarRobot(), BoxModel(), TRAVEL, radius=0.1)
N, G = 48, 3


def random_states(rng: np.random.Generator, spheres: int):
    """Boxes near their places on three circles, tilted and spinning; robots up to 0.7 m from one of them, spheres beside."""
    time, yaw = rng.uniform(0, 20, N), rng.uniform(-np.pi, np.pi, (N, G))
    around = rng.uniform(0, 2 * np.pi, (N, 1)) + 2 * np.pi / G * np.arange(G)
    centre = np.stack([np.cos(around), np.sin(around)], -1)
    place = centre + TRAVEL * np.stack([np.sin(time), np.cos(time)], -1)[:, None]
    pos = np.concatenate([place, np.full((N, G, 1), 0.2)], -1) + 0.01 * rng.normal(size=(N, G, 3))
    quat = np.stack([np.cos(yaw / 2), 0 * yaw, 0 * yaw, np.sin(yaw / 2)], -1) + 0.03 * rng.normal(size=(N, G, 4))
    quat /= np.linalg.norm(quat, axis=-1, keepdims=True)
    boxes = Boxes(pos, quat, rng.normal(size=(N, G, 6)) * 0.3)
    bearing, gap = rng.uniform(0, 2 * np.pi, N), rng.uniform(0.1, 0.7, N)
    beside = pos[np.arange(N), rng.integers(G, size=N), :2]
    pose = np.c_[beside + gap[:, None] * np.stack([np.cos(bearing), np.sin(bearing)], -1), rng.uniform(-3, 3, N)]
    state = pose, rng.normal(size=(N, 3)) * [0.5, 0.5, 1.5], rng.uniform(-1, 1, (N, 2))
    gremlins = np.concatenate([centre, yaw[..., None]], -1)
    beside = pose[:, None, :2] + rng.uniform(0.2, 0.5, (N, spheres, 1)) * heading(rng.uniform(-3, 3, (N, spheres)))
    return jax.tree.map(jnp.asarray, (*state, boxes, gremlins, time, beside))


def heading(angle: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angle), np.sin(angle)], -1)


@pytest.mark.parametrize("spheres", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_the_kernels_push_as_xla_does(monkeypatch, spheres):
    """Interpreted in double precision; on a GPU the real kernels in single precision, as training uses them."""
    on_gpu = jax.default_backend() == "gpu"
    monkeypatch.setattr(kernel, "INTERPRET", not on_gpu)
    place, speed, acceleration = (1e-5, 5e-3, 5.0) if on_gpu else (1e-12, 1e-10, 1e-8)
    with jax.enable_x64(not on_gpu):
        states = random_states(np.random.default_rng(0), spheres)
        plain = jax.jit(partial(push_xla, FIXTURE))(Scene(*states))
        by_kernel = kernel.push_pallas(FIXTURE, Scene(*states))
    assert 0.2 < plain.touching.mean() < 0.8
    np.testing.assert_array_equal(by_kernel.touching, plain.touching)
    tolerances = BoxMotion(place, speed, acceleration, Boxes(place, place, speed), 0.0)
    jax.tree.map(lambda x, y, atol: np.testing.assert_allclose(x, y, rtol=0, atol=atol), by_kernel, plain, tolerances)


@pytest.mark.parametrize("spheres", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_the_kernels_lower_for_a_gpu(monkeypatch, spheres):
    monkeypatch.setenv("TQPO_PHYSICS", "pallas")
    states = random_states(np.random.default_rng(0), spheres)
    assert lowered_for_gpu(make_push(*FIXTURE), *states).count("gpu.triton") == 3  # drive, weld, pair
