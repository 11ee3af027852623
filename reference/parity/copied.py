"""Whole episodes of the JAX task, each step of which the twin takes too, from the same state.

Every step whose cost differs, and in double precision every step beyond the tolerances, is listed with its distance to
the nearest boundary (a hazard's rim, the goal's rim, the first touch of a solid): a rounding error can make a step jump
only there.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from reference.parity.episodes import Plan, record
from reference.parity.one_step import pick
from reference.parity.policies import POLICIES
from tqpo.envs import TaskConfig
from tqpo.envs.mujoco import ROBOT_GEOMS, MujocoTask, mujoco

SEED = 2
LISTED = 200  # differing steps that are written down per task


def gap(twin: MujocoTask) -> float:
    """Distance of the robot to the nearest rim of a button or gremlin, in or out [m]; at most 1."""
    solids = [i for i, name in enumerate(twin.geom_names) if name.startswith(("button", "gremlin"))]
    mine = [twin.geom_names.index(name) for name in ROBOT_GEOMS]
    gaps = [mujoco.mj_geomDistance(twin.model, twin.data, i, j, 1.0, None) for i in mine for j in solids]
    return min(map(abs, gaps), default=1.0)


def margins(twin: MujocoTask, goal: np.ndarray) -> dict[str, float]:
    """Distances [m] of this state to the boundaries at which a step's outcome jumps."""
    place, out = twin.data.qpos[:2], {}
    if twin.config.hazards:
        rims = np.linalg.norm(twin.hazards - place, axis=1) - twin.config.hazard_radius
        out["hazard"] = float(np.min(np.abs(rims)))
    if twin.config.goal == "area":
        out["goal"] = abs(float(np.linalg.norm(goal - place)) - twin.config.goal_radius)
    if twin.config.buttons or twin.config.gremlins:
        out["touch"] = gap(twin)
    return out


def compare(config: TaskConfig, policy: str, episodes: int, converged: bool, tolerances) -> dict[str, Any]:
    plan = Plan(config, policy, episodes, seed=SEED)
    states, actions, steps = record(plan)
    twin = MujocoTask(config, converged=converged)
    worst_obs, worst_reward = np.zeros(plan.task.obs_size), 0.0
    obs_tolerance, reward_tolerance = tolerances
    equal, differing = 0, []
    for e in range(episodes):
        for t in range(config.max_steps):
            before, step = pick(states, t, e), pick(steps, t, e)
            twin.set_state(before)
            judge = twin.step(actions[t, e])
            delta = np.abs(step.obs - judge.obs)
            reward = abs(float(step.reward) - float(judge.reward))
            same = np.array_equal(step.cost, judge.cost)
            worst_obs, worst_reward, equal = np.maximum(worst_obs, delta), max(worst_reward, reward), equal + same
            if not same or delta.max() > obs_tolerance or reward > reward_tolerance:
                part = next(n for n, where in config.observation.items() if where.start <= delta.argmax() < where.stop)
                differing.append(
                    {
                        "policy": policy,
                        "episode": e,
                        "step": t,
                        "cost": [step.cost.tolist(), judge.cost.tolist()],
                        "obs": [part, float(delta.max())],
                        "reward": reward,
                        "margins": margins(twin, before.goal),
                    }
                )
            if step.terminated:
                break
    total = episodes * config.max_steps
    return {"steps": total, "obs": worst_obs, "reward": worst_reward, "equal": equal, "differing": differing}


def explain(entry: dict[str, Any], tolerance: float, converged: bool) -> str:
    """The boundary that this step lies on, if it lies on one."""
    near = {name: margin for name, margin in entry["margins"].items() if margin < tolerance}
    if not near:
        return (
            "not at a boundary" if converged else "MuJoCo's default solver stops early (iterated to the end it agrees)"
        )
    name = min(near, key=near.__getitem__)
    return f"{name} boundary, {near[name]:.1e} m away"


def place(entry: dict[str, Any]) -> tuple:
    return entry["policy"], entry["episode"], entry["step"]


class Case(NamedTuple):
    double: bool  # precision of the JAX task
    converged: bool  # MuJoCo's solver
    tolerances: tuple[float, float]  # of observation and reward, beyond which a step is listed
    boundary: float  # m, how near a boundary a rounding error acts


CASES = {
    "float64": Case(True, True, (1e-5, 1e-6), 1e-9),
    "float64_default_solver": Case(True, False, (1e-5, 1e-6), 1e-9),
    "float32": Case(False, True, (np.inf, np.inf), 1e-5),
}


def measure(config: TaskConfig, episodes: int) -> dict[str, Any]:
    result: dict[str, Any] = {"episodes_per_policy": episodes, "policies": list(POLICIES)}
    known: set[tuple] = set()  # steps that differ from the converged solver, too
    for name, case in CASES.items():
        with jax.enable_x64(case.double):
            parts = [compare(config, policy, episodes, case.converged, case.tolerances) for policy in POLICIES]
        listed = [d for part in parts for d in part["differing"]]
        differing = [d | {"why": explain(d, case.boundary, case.converged or place(d) in known)} for d in listed]
        known |= {place(d) for d in listed if case.converged}
        steps = sum(part["steps"] for part in parts)
        obs = np.max([part["obs"] for part in parts], axis=0)
        result[name] = {
            "steps": steps,
            "obs": float(obs.max()),
            "obs_by_part": {part: float(obs[where].max()) for part, where in config.observation.items()},
            "reward": max(part["reward"] for part in parts),
            "equal_cost": sum(part["equal"] for part in parts) / steps,
            "unequal_costs": steps - sum(part["equal"] for part in parts),
            "differing_steps": len(differing),
            "differing": differing[:LISTED],
        }
    return result
