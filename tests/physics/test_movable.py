"""Parity of the robot and a welded box with MuJoCo: one physics step from states of rollouts and random deep ones."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tqpo.physics import movable, planar
from tqpo.physics.boxes import SLOTS
from tqpo.physics.movable import Body, BoxModel, Target
from tqpo.physics.newton import Problem, minimise
from tqpo.physics.planar import PlanarRobot
from tqpo.physics.push import Circle, as_boxes, target

mujoco = pytest.importorskip("mujoco", minversion="3.12")  # earlier versions find other box–box contacts

ROBOT, BOX = PlanarRobot(), BoxModel()
TRAVEL = 0.35  # m, radius of the target's circle, which is run at 1 rad/s
BATCH = 512  # every compiled call has this size
# The optimum itself; MuJoCo's default tolerance stops up to 5e-4 short of it.
EXACT = 'iterations="200" tolerance="1e-16" ls_iterations="200" ls_tolerance="1e-10"'

XML = """
<mujoco>
  <option timestep="0.002" {option}/>
  <default><geom condim="6" density="1"/><joint damping=".001"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="3.5 3.5 .1"/>
    <body name="robot" pos="0 0 .1">
      <joint type="slide" axis="1 0 0" damping="0.01"/>
      <joint type="slide" axis="0 1 0" damping="0.01"/>
      <joint name="z" type="hinge" axis="0 0 1" damping="0.005"/>
      <geom type="sphere" size=".1" friction="1 0.01 0.01"/>
      <geom type="box" pos="0.1 0 0" size="0.05 0.05 0.05"/>
      <site name="robot"/>
    </body>
    <body name="obj" pos="0 0 .1"><freejoint/><geom type="box" size=".1 .1 .1" density="0.001"/></body>
    <body name="mocap" mocap="true"><geom type="box" size=".1 .1 .1" contype="0" conaffinity="0"/></body>
  </worldbody>
  <equality><weld body1="mocap" body2="obj" solref=".02 1.5"/></equality>
  <actuator>
    <motor site="robot" gear="0.3 0 0 0 0 0" ctrlrange="-1 1" forcerange="-.05 .05"/>
    <velocity joint="z" gear="0.3" kv="1" ctrlrange="-1 1" forcerange="-.05 .05"/>
  </actuator>
</mujoco>
"""


class States(NamedTuple):
    """A batch of states; the box's circle is centred at the origin."""

    pose: np.ndarray  # [N, 3]
    velocity: np.ndarray  # [N, 3]
    control: np.ndarray  # [N, 2]
    pos: np.ndarray  # [N, 3]
    quat: np.ndarray  # [N, 4]
    vel: np.ndarray  # [N, 6]
    time: np.ndarray  # [N, 1]
    yaw: np.ndarray  # [N, 1] of the target


class Twin:
    """One robot and one box in MuJoCo."""

    def __init__(self, option: str = EXACT):
        self.model = mujoco.MjModel.from_xml_string(XML.format(option=option))
        self.data = mujoco.MjData(self.model)

    def load(self, state: States) -> None:
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = np.concatenate([state.pose, state.pos, state.quat])
        self.data.qvel[:] = np.concatenate([state.velocity, state.vel])
        self.data.ctrl[:] = state.control
        self.data.time = state.time[0]
        self.model.eq_data[0, 6:10] = yaw_quat(state.yaw[0])

    def step(self) -> None:
        time = self.data.time
        self.data.mocap_pos[0] = TRAVEL * np.sin(time), TRAVEL * np.cos(time), 0.1
        mujoco.mj_step(self.model, self.data)

    def state(self, control, yaw) -> States:
        q, v = self.data.qpos.copy(), self.data.qvel.copy()
        return States(q[:3], v[:3], control, q[3:6], q[6:10], v[3:], np.array([self.data.time]), np.array([yaw]))

    def contacts(self) -> np.ndarray:
        """dist, point, normal of each contact of the robot with the box."""
        rows = [(c.dist, *c.pos, *c.frame[:3]) for c in self.data.contact if 0 not in c.geom and c.dist < 0]
        return np.array(rows).reshape(-1, 7)


def yaw_quat(yaw):
    half, zero = np.asarray(yaw) / 2, np.zeros_like(yaw)
    return np.stack([np.cos(half), zero, zero, np.sin(half)], axis=-1)


def multiply(a, b):
    result = np.zeros(4)
    mujoco.mju_mulQuat(result, a, b)
    return result


def driven_states(rng, n: int) -> States:
    """States of robots that drive at a box under random commands, while within reach of it."""
    twin, found = Twin(), []
    while len(found) < n:
        yaw, time = rng.uniform(-np.pi, np.pi), rng.uniform(0, 20)
        goal = np.array([TRAVEL * np.sin(time), TRAVEL * np.cos(time), 0.2])
        away = np.array([9.0, 9.0, 0.0])
        twin.load(
            States(away, np.zeros(3), np.zeros(2), goal, yaw_quat(yaw), np.zeros(6), np.array([time]), np.array([yaw]))
        )
        for _ in range(200):  # the box joins its circle
            twin.step()
        bearing = rng.uniform(-np.pi, np.pi)
        place = twin.data.qpos[3:5] + rng.uniform(0.36, 0.5) * np.array([np.cos(bearing), np.sin(bearing)])
        twin.data.qpos[:3] = *place, bearing + np.pi + rng.normal() * 0.7
        twin.data.qvel[:3] = rng.normal(size=3) * [0.4, 0.4, 1.0]
        for k in range(600):
            if k % 10 == 0:
                control = np.array([rng.uniform(-0.3, 1), rng.uniform(-1, 1)])
                twin.data.ctrl[:] = control
            if rng.random() < 0.1 and np.linalg.norm(twin.data.qpos[3:5] - twin.data.qpos[:2]) < 0.34:
                found.append(twin.state(control, yaw))
            twin.step()
    return States(*(np.stack(x) for x in zip(*found[:n], strict=True)))


def random_states(rng, n: int) -> States:
    """Any bearing, depth, speed and tilt, up to a robot in the middle of the box."""
    found = []
    for _ in range(n):
        yaw, time, bearing = rng.uniform(-np.pi, np.pi), rng.uniform(0, 20), rng.uniform(-np.pi, np.pi)
        pos = np.array([TRAVEL * np.sin(time), TRAVEL * np.cos(time), 0.2]) + rng.normal(size=3) * [0.02, 0.02, 0.005]
        tilt = rng.choice([0.0, 0.01, 0.1, 0.5, 2.0]) * rng.normal(size=3)
        angle = np.linalg.norm(tilt)
        turn = np.array([np.cos(angle / 2), *(np.sin(angle / 2) * tilt / max(angle, 1e-9))])
        place = pos[:2] + rng.uniform(0, 0.36) * np.array([np.cos(bearing), np.sin(bearing)])
        vel = np.concatenate([rng.normal(size=3) * 0.5, rng.normal(size=3) * rng.choice([0.0, 1.0, 5.0])])
        found.append(
            States(
                np.array([*place, rng.uniform(-np.pi, np.pi)]),
                rng.normal(size=3) * [0.5, 0.5, 1.5],
                rng.uniform(-1, 1, 2),
                pos,
                multiply(yaw_quat(yaw), turn),
                vel,
                np.array([time]),
                np.array([yaw]),
            )
        )
    return States(*(np.stack(x) for x in zip(*found, strict=True)))


@functools.cache
def some_states() -> States:
    rng = np.random.default_rng(0)
    parts = driven_states(rng, BATCH // 2), random_states(rng, BATCH // 2)
    return States(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def by_component(x, dtype):
    return tuple(jnp.asarray(x[:, i : i + 1], dtype) for i in range(x.shape[1]))  # each [N, 1]


def body_and_target(states: States, dtype) -> tuple[Body, Target]:
    vel = by_component(states.vel, dtype)
    goal = np.concatenate([TRAVEL * np.sin(states.time), TRAVEL * np.cos(states.time), 0.2 + 0 * states.time], axis=1)
    quat = by_component(yaw_quat(states.yaw[:, 0]), dtype)
    return (
        Body(by_component(states.pos, dtype), by_component(states.quat, dtype), vel[:3], vel[3:]),
        Target(by_component(goal, dtype), quat),
    )


@functools.cache
def compiled():
    """Everything at once, so that each precision compiles one program."""

    def everything(pose, velocity, control, body, target, effort):
        frame = movable.Frame(jnp.cos(pose[2]), jnp.sin(pose[2]))
        found, _, _ = movable.find_contacts(ROBOT, BOX, frame, pose, body)
        accel = movable.coupled_acceleration(ROBOT, BOX, pose, velocity, control, body, target, effort)
        pose, velocity = planar.integrate(ROBOT, pose, velocity, accel.robot)
        return (pose, velocity, movable.integrate(body, accel.linear, accel.angular, ROBOT.timestep), accel), found

    return jax.jit(everything)


def ours(states: States, dtype, effort=None):
    parts = [by_component(x, dtype) for x in (states.pose, states.velocity, states.control)]
    effort = effort or (jnp.zeros_like(parts[0][0]),) * 9
    return compiled()(*parts, *body_and_target(states, dtype), effort)


def columns(*parts) -> np.ndarray:
    return np.concatenate([np.asarray(x) for part in parts for x in part], axis=1)


def compare(states: States, dtype, option: str = EXACT) -> dict[str, np.ndarray]:
    """Errors of one step, per state."""
    (pose, velocity, body, felt), _ = ours(states, dtype)
    assert {x.dtype for x in jax.tree.leaves((pose, velocity, body))} == {np.dtype(dtype)}
    twin = Twin(option)
    result = {key: [] for key in ("velocity", "position", "acceleration", "touching")}
    speed, place = columns(velocity, body.vel, body.spin), columns(pose, body.pos, body.quat)
    accel = columns(felt.robot, felt.linear, felt.angular)
    for i in range(len(states.pose)):
        twin.load(States(*(x[i] for x in states)))
        twin.step()
        data = twin.data
        result["velocity"].append(np.max(abs(speed[i] - data.qvel) / np.maximum(1, abs(data.qvel))))
        result["position"].append(np.max(abs(place[i] - data.qpos)))
        result["acceleration"].append(np.max(abs(accel[i] - data.qacc) / np.maximum(1, abs(data.qacc))))
        result["touching"].append(len(twin.contacts()) > 0)
    return {"iterations": np.asarray(felt.iterations)[:, 0], **{k: np.array(v) for k, v in result.items()}}


def rounded(states: States) -> States:
    """As float32 holds them, so that only the arithmetic differs."""
    return States(*(x.astype(np.float32).astype(np.float64) for x in states))


def test_one_step_in_double_precision(x64):
    error = compare(some_states(), jnp.float64)
    assert error["touching"].mean() > 0.3
    assert np.median(error["velocity"]) < 1e-13
    assert error["velocity"].max() < 1e-11
    assert error["position"].max() < 1e-13
    assert error["acceleration"].max() < 1e-10
    assert error["iterations"].max() < 12


def test_one_step_in_single_precision():
    error = compare(rounded(some_states()), jnp.float32)
    assert np.median(error["velocity"]) < 1e-6
    assert error["velocity"].max() < 1e-4
    assert error["iterations"].max() < 12


def test_contacts_are_those_of_mujoco(x64):
    states = some_states()
    (*_, felt), found = ours(states, jnp.float64)
    cos, sin = np.cos(states.pose[:, 2:]), np.sin(states.pose[:, 2:])
    px, py, pz = (np.asarray(x) for x in found.point)
    nx, ny, nz = (np.asarray(x) for x in found.normal)
    x, y = states.pose[:, :1], states.pose[:, 1:2]
    place = [x + cos * px - sin * py, y + sin * px + cos * py, ROBOT.z_height + pz]
    world = np.stack([found.dist, *place, cos * nx - sin * ny, sin * nx + cos * ny, nz], axis=-1)  # [N, SLOTS, 7]
    twin, counts, kinds = Twin(), [], []
    for i in range(BATCH):
        twin.load(States(*(x[i] for x in states)))
        twin.step()
        theirs, own = twin.contacts(), world[i][np.asarray(found.active[i])]
        assert len(theirs) == len(own)
        assert bool(felt.touching[i, 0]) == (len(theirs) > 0)
        counts.append(len(own))
        kinds.append((found.active[i, :12].any(), found.active[i, 12], found.active[i, 13]))
        if len(own):
            gap = np.abs(theirs[:, None] - own[None]).max(axis=-1)
            assert gap.min(axis=0).max() < 1e-12
            assert gap.min(axis=1).max() < 1e-12
    assert max(counts) > 5
    assert np.all(np.mean(kinds, axis=0) > 0.02)  # faces, edges and spheres all occur


def test_a_welded_box_alone(x64):
    """Tilted and spinning, out of the robot's reach."""
    states = random_states(np.random.default_rng(1), 64)
    states = states._replace(pose=states.pose + np.array([5.0, 0.0, 0.0]))
    moved = as_boxes(movable.free_step(BOX, *body_and_target(states, jnp.float64), ROBOT.timestep))  # [64, 1, …]
    twin = Twin()
    for i in range(64):
        twin.load(States(*(x[i] for x in states)))
        twin.step()
        np.testing.assert_allclose(np.concatenate([moved.pos[i, 0], moved.quat[i, 0]]), twin.data.qpos[3:], atol=1e-14)
        np.testing.assert_allclose(moved.vel[i, 0], twin.data.qvel[3:], rtol=1e-12, atol=1e-12)


def test_a_box_joins_its_circle_and_trails_it():
    """From rest at the circle's centre and z = 0.1: on its way within 0.3 s, then 3.14 cm behind, sagging 0.44 mm under
    z = 0.2.

    A point that follows g(t) = r·(sin t, cos t) by v̇ = d·(k·d·(g − p) − b·v) trails it by v·b/(k·d) at low speed:
    0.34 m/s · 105.26/(1231.1·0.95) = 0.0306 m, and the rest is centripetal. Sag: (1 − d)·9.81/(k·d²) = 0.44 mm."""

    zero = jnp.zeros(())
    circle = Circle((zero, zero), zero, zero)

    def step(body, time):
        body = movable.free_step(BOX, body, target(BOX, TRAVEL, circle, time), 0.002)
        after = time + 0.002
        behind = jnp.hypot(body.pos[0] - TRAVEL * jnp.sin(after), body.pos[1] - TRAVEL * jnp.cos(after))
        return body, (behind, body.pos[2])

    start = Body((zero, zero, zero + 0.1), (zero + 1.0, zero, zero, zero), (zero,) * 3, (zero,) * 3)
    _, (behind, height) = jax.lax.scan(step, start, 0.002 * jnp.arange(1500))
    assert behind[0] > 0.34
    assert behind[150] < 0.032
    np.testing.assert_allclose(behind[-1], 0.0314, atol=5e-5)
    np.testing.assert_allclose(height[-1], 0.19956, atol=1e-5)


def test_along_a_push(x64):
    """Every 2 ms of one second of pushing, from MuJoCo's state at that time."""
    states, twin, path = some_states(), Twin(), []
    first = np.flatnonzero(np.asarray(ours(states, jnp.float64)[0][-1].touching)[: BATCH // 2, 0])[0]
    twin.load(States(*(x[first] for x in states)))
    for _ in range(BATCH):
        path.append(twin.state(states.control[first], states.yaw[first, 0]))
        twin.step()
    error = compare(States(*(np.stack(x) for x in zip(*path, strict=True))), jnp.float64)
    assert error["touching"].mean() > 0.3
    assert error["velocity"].max() < 1e-12


def test_ten_steps_on_their_own(x64):
    """One environment step; not more: contacts chatter, and in MuJoCo itself 1e-13 grows to 1e-3 within 100 steps."""
    states = now = some_states()
    effort = None
    for _ in range(10):
        (pose, velocity, body, felt), _ = ours(now, jnp.float64, effort)
        moved = (columns(x) for x in (pose, velocity, body.pos, body.quat, (*body.vel, *body.spin)))
        pose, velocity, pos, quat, vel = moved
        now = States(pose, velocity, now.control, pos, quat, vel, now.time + 0.002, now.yaw)
        effort = felt.effort
    twin, errors = Twin(), []
    for i in range(0, BATCH, 4):
        twin.load(States(*(x[i] for x in states)))
        for _ in range(10):
            twin.step()
        errors.append(np.max(abs(twin.data.qpos - np.concatenate([now.pose[i], now.pos[i], now.quat[i]]))))
    assert np.quantile(errors, 0.95) < 1e-12
    assert np.max(errors) < 1e-6


def test_one_contact_by_hand(x64):
    """One variable, one slot that sees only its normal: ten equal rows c₀ = z + e. With e = −3 and D = 0.2 the minimum
    of ½z² + 10·½·D·(z − 3)² is at z·(1 + 10·D) = 10·D·3, so z = 2."""
    slots = jnp.zeros((1, SLOTS))
    first = slots.at[0, 0].set(1.0)
    column = dict.fromkeys(range(1, 6), slots) | {0: first}
    problem = Problem((column,), (-3.0 * first,) + (slots,) * 5, 0.2 * first)
    (z,), steps = minimise(problem, (jnp.zeros((1, 1)),))
    assert z[0, 0] == pytest.approx(2.0, abs=1e-15)
    assert steps[0, 0] == 1


def test_a_warm_start_changes_the_work_but_not_the_result(x64):
    states = some_states()
    (*_, cold), _ = ours(states, jnp.float64)
    (*_, warm), _ = ours(states, jnp.float64, cold.effort)
    np.testing.assert_allclose(columns(warm.robot), columns(cold.robot), rtol=1e-9, atol=1e-9)
    assert warm.iterations.max() == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_ten_thousand_states(dtype):
    with jax.enable_x64(dtype == "float64"):
        rng = np.random.default_rng(2)
        errors = []
        for make in (driven_states, random_states):
            states = make(rng, 10 * BATCH)
            states = states if dtype == "float64" else rounded(states)
            for k in range(0, 10 * BATCH, BATCH):
                errors.append(compare(States(*(x[k : k + BATCH] for x in states)), jnp.dtype(dtype)))
        error = {key: np.concatenate([e[key] for e in errors]) for key in errors[0]}
        median, worst = (1e-12, 1e-6) if dtype == "float64" else (1e-6, 1e-3)
        assert error["touching"].mean() > 0.3
        assert np.median(error["velocity"]) < median
        assert error["velocity"].max() < worst
        assert error["iterations"].max() < 15
