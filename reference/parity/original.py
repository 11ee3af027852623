"""The tasks of Safety-Gymnasium's Point suite against Safety-Gymnasium itself.

    .venv-safety-gymnasium/bin/python reference/original.py --out runs/original.npz --steps 6000 --layouts 0
    python -m reference.parity.original runs/original.npz --out results/original.json --doc docs/parity-safety-gymnasium.md

Each step of the recording is taken again from the recorded state: by the JAX task in double precision and, to tell the
versions of MuJoCo apart from us, by its twin on the installed MuJoCo.
"""

import argparse
import json
import pathlib
from typing import Any

import jax
import numpy as np

from reference.parity.document import number, table
from reference.parity.episodes import stepper
from reference.parity.one_step import pick
from tqpo.envs import TASKS, State, Task, TaskConfig
from tqpo.envs.mjcf import model_xml
from tqpo.envs.mujoco import MujocoTask, of_numpy
from tqpo.physics.movable import Boxes
from tqpo.provenance import provenance
from tqpo.types import Step

REWARD = 1e-4  # what two rewards may differ by
FREE_BOXES = """
Vases and the box to push agree though their contacts are those of another MuJoCo: with vases touched or in motion the
reward differs by 4e-6 at most, and every cost is equal (Goal2 by the twin alone). The first 2 ms of a push episode
depend on rounding in the original, where the box starts at a distance of 0 from the floor. In Push2
three rewards are beyond 1e-4 and two costs unequal. Pillars stand nearby in some of these steps, whose contact with the
robot's cube MuJoCo finds by iteration; the cause was not established for each."""


def suite() -> dict[str, TaskConfig]:
    """The tasks by the name that Safety-Gymnasium has for them, less the robot's."""
    prefix = "SafetyPoint"
    return {name.removeprefix(prefix): config for name, config in TASKS.items() if name.startswith(prefix)}


def states(config: TaskConfig, recorded: dict[str, np.ndarray]) -> State:
    """[N, …], with the key as words."""
    count, boxes = len(recorded["pose"]), recorded["boxes"]
    zero, robot, goal = np.zeros(count), recorded["pose"][:, :2], recorded["goal"]
    distance = np.linalg.norm(goal - robot, axis=1)
    if config.goal == "push":
        at = (np.column_stack([xy, zero + z]) for xy, z in ((robot, config.robot.z_height), (goal, config.goal_height)))
        distance = sum(np.linalg.norm(boxes[:, 0, :3] - place, axis=1) for place in at)
    return of_numpy(
        State,
        key=np.zeros((count, 2), np.uint32),
        **{name: recorded[name] for name in ("pose", "velocity", "hazards", "buttons", "goal", "goal_button")},
        acceleration=np.zeros((count, 3)),
        gremlins=recorded["gremlins"],
        boxes=of_numpy(Boxes, pos=boxes[..., :3], quat=boxes[..., 3:7], vel=boxes[..., 7:]),
        touching=np.zeros(count, bool),
        timer=recorded["timer"],
        distance=distance,
        cost=zero,
        steps=recorded["steps"],
        pillars=recorded["pillars"] if recorded.get("pillars", np.zeros((0, 0, 2))).shape[1] else None,
    )


def by_jax(config: TaskConfig, recorded: dict[str, np.ndarray]) -> Step:
    with jax.enable_x64(True):
        _, steps = stepper(Task(config))(states(config, recorded), recorded["action"])
        return jax.device_get(steps)


def by_twin(config: TaskConfig, recorded: dict[str, np.ndarray]) -> Step:
    twin, before, steps = MujocoTask(config), states(config, recorded), []
    for i, action in enumerate(recorded["action"]):
        twin.set_state(pick(before, i))
        steps.append(twin.step(action))
    return jax.tree.map(lambda *x: np.array(x), *steps)


def compare(config: TaskConfig, recorded: dict[str, np.ndarray], ours: Step) -> dict[str, Any]:
    """How far our steps are from the recorded ones. A goal that was drawn anew is left out of the observation.

    Steps in which the robot touches a gremlin, or in which a free box is touched or moves, are told apart: contacts of boxes
    differ between versions of MuJoCo.
    """
    calm = ~recorded["touching"]
    gap = np.abs(np.asarray(ours.obs) - recorded["obs"])
    parts = config.observation
    for name in ("goal_lidar", "buttons_lidar"):
        if name in parts:
            gap[recorded["met"].astype(bool), parts[name]] = 0.0
    reward = np.abs(np.asarray(ours.reward) - recorded["reward"])
    equal = np.asarray(ours.cost)[:, 0] == recorded["costs"][:, 0]
    return {
        "steps": len(reward),
        "costs": int(recorded["costs"][:, 0].sum()),
        "goals": int(recorded["met"].sum()),
        "touching": int(np.sum(~calm)),
        "reward": float(reward[calm].max()),
        "reward_over": int(np.sum(reward[calm] > REWARD)),
        "reward_touching": float(reward[~calm].max(initial=0.0)),
        "equal_cost": float(np.mean(equal[calm])),
        "equal_cost_touching": float(np.mean(equal[~calm])) if np.any(~calm) else None,
        "unequal": np.flatnonzero(~equal).tolist(),
        "obs": {name: float(gap[calm][:, where].max()) for name, where in parts.items()},
        "obs_p99": float(np.quantile(gap[calm].max(axis=1), 0.99)),
    }


def load(path: pathlib.Path) -> dict[str, dict[str, np.ndarray]]:
    """The recorded steps by task."""
    out: dict[str, dict[str, np.ndarray]] = {}
    with np.load(path) as file:
        for key in file.files:
            if "/steps/" in key:
                task, name = key.split("/steps/")
                out.setdefault(task, {})[name] = file[key]
    return out


def document(result: dict[str, Any]) -> str:
    rows = []
    for task, sides in result["tasks"].items():
        for side, label in (("jax", "JAX, float64"), ("twin", "twin")):
            if side not in sides:  # Goal2 was measured by the twin alone at first
                continue
            cell = sides[side]
            worst = max(cell["obs"], key=cell["obs"].get)
            rows.append(
                [
                    task,
                    label,
                    f"{cell['steps']:,}",
                    f"{cell['goals']}",
                    f"{cell['costs']}",
                    number(cell["reward"]),
                    f"{cell['reward_over']}",
                    f"{cell['equal_cost']:.3%}",
                    f"{cell['touching']}",
                    number(cell["reward_touching"]),
                    "–" if cell["equal_cost_touching"] is None else f"{cell['equal_cost_touching']:.1%}",
                    number(cell["obs_p99"]),
                    f"{number(cell['obs'][worst])} ({worst})",
                ]
            )
    head = ["task", "by", "steps", "goals", "costly steps", "reward", f"beyond {REWARD:g}", "equal cost"]
    head += ["a box is touched or moves", "reward there", "equal cost there"]
    versions = result["provenance"]["versions"]
    return f"""# Agreement with Safety-Gymnasium

Written by `python -m reference.parity.original`; its docstring has both commands. Recorded with
{", ".join(result["versions"])}; repeated with jax {versions["jax"]} and mujoco {versions["mujoco"]}.

Episodes of Safety-Gymnasium itself, driven at what its lidars see and at random. Each step is taken again from the
recorded state, by the JAX task in double precision, and by its MuJoCo twin on today's MuJoCo: where both differ from
the recording alike, the version of MuJoCo makes the difference. Columns have the largest difference, but for the one
that says 99 %. Where a goal is reached, the next one is drawn at random, and its lidar is not compared. Steps that
begin or end in contact with a gremlin, or with a vase or the box to push touched or in motion, have columns of their
own and are left out of the others.

Contacts of a gremlin differ because MuJoCo's box–box collider does: under MuJoCo 2.3.3 our model gives, from those
very states, the recorded velocities within 1.4e-12 at the median and 3.8e-3 at worst, and every cost of gremlins (442
steps of Button1, 565 of Button2; `reference/old_mujoco.py`). A few contacts begin and end within one step; those have
the largest differences of the other columns. In the first step of an episode gremlins leave the floor, which holds
them back a little only in the original: their lidar differs by up to 2e-3 there.
{FREE_BOXES}

{table([*head, "observation, 99 %", "observation"], rows)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares the suite with what Safety-Gymnasium did.")
    parser.add_argument("recording", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results/original.json"))
    parser.add_argument("--doc", type=pathlib.Path)
    parser.add_argument(
        "--models", type=pathlib.Path, help="only write the models with gremlins here, for old_mujoco.py"
    )
    parser.add_argument("--only", nargs="+", help="these tasks; the others of the file that is there are kept")
    options = parser.parse_args()
    configs = suite()
    if options.models:
        options.models.mkdir(parents=True, exist_ok=True)
        for name, config in configs.items():
            if config.gremlins:
                (options.models / f"{name}.xml").write_text(model_xml(config))
        return
    tasks: dict[str, Any] = {}
    for name, recorded in load(options.recording).items():
        if options.only and name not in options.only:
            continue
        sides = {"jax": by_jax(configs[name], recorded), "twin": by_twin(configs[name], recorded)}
        tasks[name] = {side: compare(configs[name], recorded, steps) for side, steps in sides.items()}
        print(name, {side: (cell["reward"], cell["equal_cost"]) for side, cell in tasks[name].items()}, flush=True)
    if options.only and options.out.exists():
        tasks = json.loads(options.out.read_text())["tasks"] | tasks
    with np.load(options.recording) as file:
        result = {
            "provenance": provenance(),
            "versions": file["versions"].tolist(),
            "tasks": dict(sorted(tasks.items())),
        }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.doc:
        options.doc.write_text(document(result))


if __name__ == "__main__":
    main()
