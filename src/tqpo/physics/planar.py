"""The exact MuJoCo step of a planar robot against fixed spheres.

The robot is a sphere with a box ahead of it on two slides and a hinge: q = (x, y, θ). Its equation of motion is

    M(θ)·a + c(θ, ω) = τ(u) − D·v + Jᵀf,       M = [m 0 −mℓ sinθ; 0 m mℓ cosθ; · · I + mℓ²]

with ℓ the offset of the centre of mass. Contact forces f follow from `solver.minimise`; the velocity is then advanced
by semi-implicit Euler with the joint damping D taken implicitly, v ← v + h·(M + hD)⁻¹·M·a, and q ← q + h·v.

In the plane a contact's pyramid (condim 6, ten rows) has two rows with the tangent, two with the rolling term about z,
and six that see only the normal.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from tqpo.physics.contact import Softness, pyramid_regulariser
from tqpo.physics.solver import Matrix, Row, Vector, minimise, multiply, solve_spd
from tqpo.types import Array

Pose = tuple[Array, Array, Array]  # x [m], y [m], heading [rad]
Velocity = tuple[Array, Array, Array]  # m/s, m/s, rad/s, in the world frame
Control = tuple[Array, Array]  # thrust and turn command, in [-1, 1]
Points = list[tuple[Array, Array]]  # xy of fixed spheres [m]


@dataclass(frozen=True)
class PlanarRobot:
    """Safety Gym's point robot. Masses and inverse weights follow from the geometry."""

    density: float = 1.0  # kg/m³
    sphere_radius: float = 0.1  # m
    box_half: float = 0.05  # m, half-size of the cube that shows the heading
    box_offset: float = 0.1  # m, its centre ahead of the sphere's
    z_height: float = 0.1  # m, height of the sphere's centre
    damping_linear: float = 0.01  # N·s/m
    damping_angular: float = 0.005  # N·m·s
    gear: float = 0.3
    force_limit: float = 0.05  # N or N·m before the gear
    sphere_friction: tuple[float, float, float] = (1.0, 0.01, 0.01)  # sliding, torsion, rolling
    other_friction: tuple[float, float, float] = (1.0, 0.005, 0.0001)
    timestep: float = 0.002  # s
    substeps: int = 10  # physics steps per environment step
    softness: Softness = Softness()

    @property
    def sphere_mass(self) -> float:
        return self.density * 4.0 / 3.0 * math.pi * self.sphere_radius**3  # kg

    @property
    def box_mass(self) -> float:
        return self.density * (2.0 * self.box_half) ** 3  # kg

    @property
    def mass(self) -> float:
        return self.sphere_mass + self.box_mass  # kg

    @property
    def com_offset(self) -> float:
        return self.box_mass * self.box_offset / self.mass  # m, ahead of the origin

    @property
    def inertia_com(self) -> float:
        """I_zz about the centre of mass, kg·m²."""
        sphere = 0.4 * self.sphere_mass * self.sphere_radius**2 + self.sphere_mass * self.com_offset**2
        box = self.box_mass * (2.0 / 3.0 * self.box_half**2 + (self.box_offset - self.com_offset) ** 2)
        return sphere + box

    @property
    def invweight(self) -> float:
        """MuJoCo's translational `body_invweight0`: mean over x, y, z of the inverse inertia, z being fixed."""
        return 2.0 / (3.0 * self.mass)


def inertia_matrix(robot: PlanarRobot, cos: Array, sin: Array) -> Matrix:
    m, ml = robot.mass, robot.mass * robot.com_offset
    zero, mass = jnp.zeros_like(cos), jnp.full_like(cos, m)
    turn = jnp.full_like(cos, robot.inertia_com + ml * robot.com_offset)
    return (mass, zero, -ml * sin), (zero, mass, ml * cos), (-ml * sin, ml * cos, turn)


def applied_force(robot: PlanarRobot, cos: Array, sin: Array, velocity: Velocity, control: Control) -> Vector:
    """Motors (saturated), minus joint damping, minus the centripetal term."""
    vx, vy, omega = velocity
    limit = robot.force_limit
    thrust = robot.gear * jnp.clip(control[0], -limit, limit)
    torque = robot.gear * jnp.clip(control[1] - robot.gear * omega, -limit, limit)
    centripetal = robot.mass * robot.com_offset * omega * omega
    return (
        (thrust + centripetal) * cos - robot.damping_linear * vx,
        (thrust + centripetal) * sin - robot.damping_linear * vy,
        torque - robot.damping_angular * omega,
    )


def sphere_gap(robot: PlanarRobot, pose: Pose, point: tuple[Array, Array], radius: float):
    """Robot sphere against a fixed sphere of the same height: gap, unit normal away from the robot, contact arm."""
    dx, dy = point[0] - pose[0], point[1] - pose[1]
    distance = jnp.sqrt(jnp.maximum(dx * dx + dy * dy, 1e-30))
    nx, ny = dx / distance, dy / distance
    gap = distance - (robot.sphere_radius + radius)
    arm = robot.sphere_radius + 0.5 * gap
    return gap, (nx, ny), (arm * nx, arm * ny)


def box_gap(robot: PlanarRobot, cos: Array, sin: Array, pose: Pose, point: tuple[Array, Array], radius: float):
    """As `sphere_gap`, for the robot's box. A sphere's centre inside the box leaves by the nearest side."""
    half = robot.box_half
    dx, dy = point[0] - pose[0], point[1] - pose[1]
    u, v = cos * dx + sin * dy - robot.box_offset, cos * dy - sin * dx  # the sphere's centre in the box's frame
    cu, cv = jnp.clip(u, -half, half), jnp.clip(v, -half, half)
    squared = (u - cu) ** 2 + (v - cv) ** 2
    outside = squared > 1e-30
    distance = jnp.sqrt(jnp.where(outside, squared, 1.0))
    depth_u, depth_v = half - jnp.abs(u), half - jnp.abs(v)
    by_u = depth_u <= depth_v
    sign_u, sign_v = jnp.where(u >= 0, 1.0, -1.0), jnp.where(v >= 0, 1.0, -1.0)
    nu = jnp.where(outside, (u - cu) / distance, jnp.where(by_u, sign_u, 0.0))
    nv = jnp.where(outside, (v - cv) / distance, jnp.where(by_u, 0.0, sign_v))
    inner = jnp.minimum(depth_u, depth_v)
    gap = jnp.where(outside, distance, -inner) - radius
    # The contact point lies midway between the box's surface and the sphere's deepest point.
    reach = jnp.where(outside, distance - radius, inner - radius) * 0.5
    pu = jnp.where(outside, cu, u) + reach * nu + robot.box_offset
    pv = jnp.where(outside, cv, v) + reach * nv
    normal = (cos * nu - sin * nv, sin * nu + cos * nv)
    return gap, normal, (cos * pu - sin * pv, sin * pu + cos * pv)


def contact_rows(robot: PlanarRobot, velocity: Velocity, gap, normal, arm, rolling: float) -> list[Row]:
    """The five distinct rows of a planar contact with a fixed thing; `normal` points away from the robot."""
    (nx, ny), (rx, ry) = normal, arm
    vx, vy, omega = velocity
    mu = max(robot.sphere_friction[0], robot.other_friction[0])
    impedance = robot.softness.impedance(gap)
    stiffness = 1.0 / pyramid_regulariser(impedance, mu, robot.invweight)
    stiffness = jnp.where(gap < 0, stiffness, 0.0)
    jn = (-nx, -ny, nx * ry - ny * rx)
    jt = (ny, -nx, -(ny * ry + nx * rx))
    rate_n, rate_t = (j[0] * vx + j[1] * vy + j[2] * omega for j in (jn, jt))
    spring = -robot.softness.stiffness * impedance * gap

    def row(tangent: float, roll: float, multiplicity: float) -> Row:
        jacobian = (jn[0] + tangent * jt[0], jn[1] + tangent * jt[1], jn[2] + tangent * jt[2] + roll)
        rate = rate_n + tangent * rate_t + roll * omega
        return Row(jacobian, spring - robot.softness.damping * rate, multiplicity * stiffness)

    return [row(mu, 0, 1), row(-mu, 0, 1), row(0, rolling, 1), row(0, -rolling, 1), row(0, 0, 6)]


def all_rows(robot: PlanarRobot, pose: Pose, velocity: Velocity, spheres: Points, radius: float) -> list[Row]:
    cos, sin = jnp.cos(pose[2]), jnp.sin(pose[2])
    rolling_sphere = max(robot.sphere_friction[2], robot.other_friction[2])
    rows = []
    for point in spheres:
        gap = sphere_gap(robot, pose, point, radius)
        rows += contact_rows(robot, velocity, *gap, rolling=rolling_sphere)
        gap = box_gap(robot, cos, sin, pose, point, radius)
        rows += contact_rows(robot, velocity, *gap, rolling=robot.other_friction[2])
    return rows


def acceleration(
    robot: PlanarRobot, pose: Pose, velocity: Velocity, control: Control, spheres: Points, radius: float
) -> Vector:
    """a = d²q/dt² at this state, contacts included (what the accelerometer feels)."""
    cos, sin = jnp.cos(pose[2]), jnp.sin(pose[2])
    inertia = inertia_matrix(robot, cos, sin)
    free = solve_spd(inertia, applied_force(robot, cos, sin, velocity, control))
    return minimise(inertia, free, all_rows(robot, pose, velocity, spheres, radius)) if spheres else free


def integrate(robot: PlanarRobot, pose: Pose, velocity: Velocity, accel: Vector) -> tuple[Pose, Velocity]:
    """One semi-implicit Euler step with implicit joint damping."""
    h = robot.timestep
    inertia = inertia_matrix(robot, jnp.cos(pose[2]), jnp.sin(pose[2]))
    damping = (robot.damping_linear, robot.damping_linear, robot.damping_angular)
    damped = tuple(
        tuple(entry + h * damping[i] if i == j else entry for j, entry in enumerate(row))
        for i, row in enumerate(inertia)
    )
    change = solve_spd(damped, multiply(inertia, accel))
    vx, vy, omega = (v + h * c for v, c in zip(velocity, change, strict=True))
    return (pose[0] + h * vx, pose[1] + h * vy, pose[2] + h * omega), (vx, vy, omega)


def environment_step(
    robot: PlanarRobot, pose: Pose, velocity: Velocity, control: Control, spheres: Points, radius: float
) -> tuple[Pose, Velocity, Vector]:
    """Ten physics steps, and the acceleration felt at the end of them under the same control."""

    def felt(pose, velocity):
        return acceleration(robot, pose, velocity, control, spheres, radius)

    def one(i, state):
        pose, velocity, _ = state
        accel = felt(pose, velocity)
        moved = integrate(robot, pose, velocity, accel)
        state = jax.tree.map(lambda new, old: jnp.where(i < robot.substeps, new, old), moved, (pose, velocity))
        return *state, accel

    if not spheres:
        return free_step(robot, pose, velocity, control)
    # One round more than there are steps: the last only feels. So the solver is compiled once.
    return lax.fori_loop(0, robot.substeps + 1, one, (pose, velocity, (jnp.zeros_like(pose[0]),) * 3))


def free_step(robot: PlanarRobot, pose: Pose, velocity: Velocity, control: Control) -> tuple[Pose, Velocity, Vector]:
    """`environment_step` without contacts, in the robot's own frame.

    There M does not change, so that its inverses are numbers, and from one physics step to the next the frame turns by an
    angle whose sine and cosine are short sums.
    """
    h, ml = robot.timestep, robot.mass * robot.com_offset
    turn = robot.inertia_com + ml * robot.com_offset
    gain, response = 1.0 / (robot.mass + h * robot.damping_linear), 1.0 / robot.mass
    gains = inverse_2x2(robot.mass + h * robot.damping_linear, ml, turn + h * robot.damping_angular)
    responses = inverse_2x2(robot.mass, ml, turn)

    def pushed(forward: float, sideways: tuple[float, float, float], velocity: Velocity) -> Vector:
        """An inverse times the force at this velocity, both in the robot's frame."""
        one, zero = jnp.ones_like(pose[0]), jnp.zeros_like(pose[0])
        ahead, aside, torque = applied_force(robot, one, zero, velocity, control)
        a, b, d = sideways
        return forward * ahead, a * aside + b * torque, b * aside + d * torque

    def one(_, state):
        (x, y, heading), (cos, sin), velocity = state
        u, v, omega = (w + h * c for w, c in zip(velocity, pushed(gain, gains, velocity), strict=True))
        x, y = x + h * (cos * u - sin * v), y + h * (sin * u + cos * v)
        c, s = small_turn(h * omega)
        frame = cos * c - sin * s, sin * c + cos * s
        return (x, y, heading + h * omega), frame, (c * u + s * v, c * v - s * u, omega)

    cos, sin = jnp.cos(pose[2]), jnp.sin(pose[2])
    vx, vy, omega = velocity
    state = pose, (cos, sin), (cos * vx + sin * vy, cos * vy - sin * vx, omega)
    pose, (cos, sin), (u, v, omega) = lax.fori_loop(0, robot.substeps, one, state)
    a, b, alpha = pushed(response, responses, (u, v, omega))
    velocity = cos * u - sin * v, sin * u + cos * v, omega
    return pose, velocity, (cos * a - sin * b, sin * a + cos * b, alpha)


def inverse_2x2(a: float, b: float, d: float) -> tuple[float, float, float]:
    """Of the symmetric [a b; b d]: its first row and its last entry."""
    determinant = a * d - b * b
    return d / determinant, -b / determinant, a / determinant


def small_turn(angle: Array) -> tuple[Array, Array]:
    """Cosine and sine of an angle of at most 0.1 rad, whose Taylor series end below the last digit of float64."""
    q = angle * angle
    cos = 1.0 - q / 2 * (1.0 - q / 12 * (1.0 - q / 30 * (1.0 - q / 56)))
    sin = angle * (1.0 - q / 6 * (1.0 - q / 20 * (1.0 - q / 42 * (1.0 - q / 72))))
    return cos, sin


def touches_sphere(robot: PlanarRobot, pose: Pose, point: tuple[Array, Array], radius: float) -> Array:
    """Whether the robot's sphere or box overlaps a fixed sphere of the same height."""
    cos, sin = jnp.cos(pose[2]), jnp.sin(pose[2])
    by_sphere = sphere_gap(robot, pose, point, radius)[0] < 0
    return by_sphere | (box_gap(robot, cos, sin, pose, point, radius)[0] < 0)
