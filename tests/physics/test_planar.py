"""The planar physics against MuJoCo and against the conditions of optimality."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from kernels import lowered_for_gpu
from mjcf import robot_among_spheres

from tqpo.errors import ConfigError
from tqpo.physics import kernel, planar
from tqpo.physics.dispatch import drive_flat, make_drive
from tqpo.physics.drive import can_reach, solve
from tqpo.physics.planar import PlanarRobot
from tqpo.physics.solver import minimise, residuals

ROBOT, RADIUS, SPHERES = PlanarRobot(), 0.1, 2


def random_states(rng: np.random.Generator, n: int, closest: float = 0.02, farthest: float = 0.45):
    """Pose, velocity, control and spheres; down to spheres deep inside the robot."""
    pose = rng.uniform([-1, -1, -7], [1, 1, 7], (n, 3))
    velocity = rng.normal(size=(n, 3)) * [1, 1, 3]
    control = rng.uniform(-1, 1, (n, 2))
    radius, angle = rng.uniform(closest, farthest, (n, SPHERES)), rng.uniform(0, 2 * np.pi, (n, SPHERES))
    spheres = pose[:, None, :2] + radius[..., None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    return pose, velocity, control, spheres


def mujoco_step(states, steps: int = 1):
    """Velocities after `steps` physics steps, and which states begin in contact."""
    model = robot_among_spheres(SPHERES)
    data = mujoco.MjData(model)
    velocities, touching = [], []
    for pose, velocity, control, spheres in zip(*states, strict=True):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = pose, velocity, control
        data.mocap_pos[:] = np.c_[spheres, np.full(SPHERES, 0.1)]
        mujoco.mj_step(model, data)
        names = [{model.geom(c.geom1).name, model.geom(c.geom2).name} for c in data.contact]
        touching.append(any("floor" not in pair for pair in names))
        for _ in range(steps - 1):
            mujoco.mj_step(model, data)
        velocities.append(data.qvel.copy())
    return np.array(velocities), np.array(touching)


def one_step(dtype):
    def step(pose, velocity, control, spheres):
        points = [(spheres[k, 0], spheres[k, 1]) for k in range(SPHERES)]
        state = (tuple(pose), tuple(velocity))
        accel = planar.acceleration(ROBOT, *state, tuple(control), points, RADIUS)
        return jnp.stack(planar.integrate(ROBOT, *state, accel)[1])

    compiled = jax.jit(jax.vmap(step))
    return lambda states: np.asarray(compiled(*(np.asarray(x, dtype) for x in states)))


def check_parity(n: int) -> None:
    states = random_states(np.random.default_rng(0), n)
    reference, touching = mujoco_step(states)
    assert touching.mean() > 0.3
    with jax.enable_x64(True):
        error = np.abs(one_step(np.float64)(states) - reference).max(axis=1)
    assert np.median(error) <= 1e-12
    assert error.max() <= 1e-10
    error = np.abs(one_step(np.float32)(states) - reference).max(axis=1)
    assert np.median(error) <= 1e-6
    assert error.max() <= 1e-3


def test_one_step_equals_mujoco():
    check_parity(500)


@pytest.mark.slow
def test_one_step_equals_mujoco_in_ten_thousand_states():
    check_parity(10_000)


def test_masses_and_inverse_weights_equal_mujoco():
    model = robot_among_spheres(0)
    robot = model.body("robot")
    assert ROBOT.mass == pytest.approx(robot.mass[0], rel=1e-12)
    assert ROBOT.com_offset == pytest.approx(robot.ipos[0], rel=1e-12)
    assert ROBOT.invweight == pytest.approx(robot.invweight0[0], rel=1e-9)


def test_every_contact_state_converges_to_the_optimum(x64):
    """At the minimum the gradient M(a − a₀) + Σ D·Jᵀ·min(0, Ja − a_ref) vanishes, however deep the contacts."""
    pose, velocity, control, spheres = random_states(np.random.default_rng(1), 2000, closest=0.0, farthest=0.2)

    def gradient(pose, velocity, control, spheres):
        points = [(spheres[k, 0], spheres[k, 1]) for k in range(SPHERES)]
        state = (tuple(pose), tuple(velocity))
        cos, sin = jnp.cos(pose[2]), jnp.sin(pose[2])
        inertia = planar.inertia_matrix(ROBOT, cos, sin)
        force = planar.applied_force(ROBOT, cos, sin, state[1], tuple(control))
        free = planar.solve_spd(inertia, force)
        rows = planar.all_rows(ROBOT, *state, points, RADIUS)
        a = minimise(inertia, free, rows)
        total = planar.multiply(inertia, tuple(x - y for x, y in zip(a, free, strict=True)))
        for row, r in zip(rows, residuals(rows, a), strict=True):
            pull = row.stiffness * jnp.minimum(r, 0.0)
            total = tuple(t + pull * j for t, j in zip(total, row.jacobian, strict=True))
        return jnp.stack(total), jnp.stack(force)

    left, force = jax.jit(jax.vmap(gradient))(pose, velocity, control, spheres)
    assert float(jnp.max(jnp.abs(left))) < 1e-9 * max(1.0, float(jnp.max(jnp.abs(force))))


def test_a_batch_is_driven_as_each_robot_alone():
    """Compaction, chunks and nested vmaps change nothing but rounding."""
    pose, velocity, control, spheres = (
        jnp.asarray(x, jnp.float32) for x in random_states(np.random.default_rng(2), 120, closest=0.15, farthest=1.0)
    )
    drive = make_drive(ROBOT, RADIUS)
    flat = jax.jit(jax.vmap(drive))(pose, velocity, control, spheres)
    plain = solve(ROBOT, RADIUS, pose, velocity, control, spheres)
    for got, expected in zip(flat[:2], plain[:2], strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-4)
    fold = (x.reshape(8, 15, *x.shape[1:]) for x in (pose, velocity, control, spheres))
    nested = jax.vmap(jax.vmap(drive))(*fold)
    np.testing.assert_allclose(nested.pose.reshape(-1, 3), flat.pose, atol=1e-6)


def test_who_is_called_out_of_reach_touches_nothing(x64):
    states = random_states(np.random.default_rng(3), 2000, closest=0.2, farthest=0.4)
    pose, velocity, control, spheres = (jnp.asarray(x) for x in states)
    far = ~np.asarray(can_reach(ROBOT, RADIUS, pose, velocity, spheres))
    assert far.sum() > 100
    reference, _ = mujoco_step([x[far] for x in states], ROBOT.substeps)
    free = solve(ROBOT, RADIUS, pose[far], velocity[far], control[far], spheres[far, :0])
    np.testing.assert_allclose(free.velocity, reference, atol=1e-12)


def test_the_kernel_computes_the_same_function(monkeypatch):
    monkeypatch.setattr(kernel, "INTERPRET", jax.default_backend() != "gpu")
    states = random_states(np.random.default_rng(4), 40, closest=0.15, farthest=0.6)
    arrays = [jnp.asarray(x, jnp.float32) for x in states]
    by_kernel = kernel.drive_pallas(ROBOT, RADIUS, *arrays)
    plain = solve(ROBOT, RADIUS, *arrays)
    np.testing.assert_allclose(by_kernel.pose, plain.pose, atol=1e-5)
    np.testing.assert_allclose(by_kernel.velocity, plain.velocity, atol=1e-3)


@pytest.mark.parametrize("spheres", [0, 2, 6])
def test_the_kernel_lowers_for_a_gpu(spheres, monkeypatch):
    monkeypatch.setenv("TQPO_PHYSICS", "pallas")
    shapes = (900, 3), (900, 3), (900, 2), (900, spheres, 2)
    assert "triton" in lowered_for_gpu(make_drive(ROBOT, RADIUS), *map(np.empty, shapes))


def test_an_unknown_physics_path_is_an_error(monkeypatch):
    monkeypatch.setenv("TQPO_PHYSICS", "fast")
    with pytest.raises(ConfigError, match="'fast' is not a physics path; use xla, pallas or auto"):
        drive_flat(ROBOT, RADIUS, *(jnp.zeros(s) for s in ((1, 3), (1, 3), (1, 2), (1, 0, 2))))
