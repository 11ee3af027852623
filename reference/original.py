"""Safety-Gymnasium itself, as a file: how its layouts are distributed, and steps with the states that they start from.

    .venv-safety-gymnasium/bin/python reference/original.py --out tests/data/safety-gymnasium.npz --every 40
    .venv-safety-gymnasium/bin/python reference/original.py --out runs/original.npz --layouts 0

The file of the tests has 750 layouts of Button1 and 550 of Button2 (`--tasks`, `--layouts`): each takes a second to place.
Runs in the Python 3.10 that `make safety-gymnasium` makes; `statistics` and `TASKS` need NumPy alone and serve the tests.

| entry | holds |
|---|---|
| `TASK/layout/NAME` | [layouts] samples of a statistic of the start, sorted, as differences of 0.1 mm or 0.1 mrad (`unpack`) |
| `TASK/steps/NAME` | [steps, …] before each step: `pose`, `velocity`, …; the `action`; after it: `obs`, `reward`, … |
| `TASK/steps/touching` | [steps] whether the robot touches a gremlin, or reaches or moves a free box, before or after the step |
| `TASK/cost_names` | names of the columns of `costs` |
| `versions` | of Safety-Gymnasium and MuJoCo |
"""

import argparse
import math
import pathlib

import numpy as np

TASKS = ("Goal0", "Goal1", "Goal2", "Button0", "Button1", "Button2", "Circle0", "Circle1", "Circle2", "Run0")
TASKS += ("Push0", "Push1", "Push2")
SEED = 0
HOLD = 60  # steps for which the driver keeps its target


def statistics(places):
    """Samples [N] by name, from the places [N, K, 2] of each kind of object and headings [N, K].

    Positions of the first and last of a kind, and the least distance between two kinds: enough to see a wrong range,
    keepout or order.
    """
    out = {}
    for kind, xy in places.items():
        for i in (0, -1)[: xy.shape[1]]:
            axes = {"": xy[:, i]} if xy.ndim == 2 else {"/x": xy[:, i, 0], "/y": xy[:, i, 1]}
            out |= {f"{kind}/{i}{axis}": samples for axis, samples in axes.items()}
    kinds = [kind for kind in places if places[kind].ndim == 3]
    for i, one in enumerate(kinds):
        for other in kinds[i:]:
            gaps = np.linalg.norm(places[one][:, :, None] - places[other][:, None], axis=-1)
            if one == other:
                gaps = gaps + 100.0 * np.eye(gaps.shape[1])
            if gaps.shape[1] > 1 or one != other:
                out[f"{one}–{other}"] = gaps.reshape(len(gaps), -1).min(axis=1)
    return out


UNIT = 1e-4  # m or rad


def pack(samples):
    """Sorted samples as differences of whole units: small numbers, which compress well."""
    return np.diff(np.round(np.sort(samples) / UNIT).astype(np.int32), prepend=0)


def unpack(differences):
    return UNIT * np.cumsum(differences)


def start_of(task):
    """Where things are after a reset: [K, 2] and headings [K] by kind."""
    layout, world = task.world_info.layout, task.world_info.world_config_dict

    def several(kind):
        return np.array([layout[f"{kind}{i}"][:2] for i in range(sum(k.startswith(kind) for k in layout))])

    out = {"robot": layout["agent"][None, :2], "robot heading": np.array([world["agent_rot"]])}
    if hasattr(task, "goal"):
        out["goal"] = layout["goal"][None, :2]
    for kind in ("hazard", "button", "pillar", "vase", "gremlin"):
        if f"{kind}0" in layout:
            out[f"{kind}s"] = several(kind)
    if "push_box" in layout:
        out["push_box"] = layout["push_box"][None, :2]
    if kind := free_kind(task):
        rots = [world["free_geoms"][name]["rot"] for name in free_names(task)]
        out[f"{kind.removesuffix('s')} headings"] = np.array(rots)
    return out


def free_kind(task):
    return next((kind for kind in ("gremlins", "vases", "push_box") if hasattr(task, kind)), None)


def free_names(task):
    """Names of the free bodies."""
    kind = free_kind(task)
    if kind is None or kind == "push_box":
        return ["push_box"] * (kind is not None)
    ending = "obj" if kind == "gremlins" else ""
    return [f"{kind[:-1]}{i}{ending}" for i in range(getattr(task, kind).num)]


def contact(task):
    """Whether the robot is at a free box, or one moves: what depends on MuJoCo's version begins there."""
    names, data, model = free_names(task), task.data, task.model
    bodies = {model.body(name).id for name in names}
    robot = model.body("agent").id
    pairs = [{model.geom_bodyid[c.geom1], model.geom_bodyid[c.geom2]} for c in data.contact[: data.ncon]]
    fixed = {model.body(f"pillar{i}").id for i in range(task.pillars.num)} if hasattr(task, "pillars") else set()
    touched = any(pair & bodies and pair & ({robot} | fixed) for pair in pairs)
    gremlins = free_kind(task) == "gremlins"
    return touched or (not gremlins and any(np.linalg.norm(data.joint(n).qvel[:2]) > 1e-4 for n in names))


def state_of(env):
    """Everything that the next step depends on, in the world's frame."""
    task = env.unwrapped.task
    data, body = task.data, task.data.body("agent")
    seen = start_of(task)
    none = np.zeros((0, 2))
    names, count = free_names(task), task.gremlins.num if hasattr(task, "gremlins") else 0
    joints = [data.joint(name) for name in names]
    fixed = np.array([0.0, -1000.0 if env.spec.id.endswith("Run0-v0") else 0.0])
    goal = task.goal.pos[:2] if hasattr(task, "goal") else fixed
    yaws = seen.get("gremlin headings", np.zeros(0))
    return {
        "pose": np.array([*body.xpos[:2], math.atan2(body.xmat[3], body.xmat[0])]),
        "velocity": np.array([*task.agent.vel[:2], data.qvel[2]]),
        "hazards": seen.get("hazards", none),
        "buttons": seen.get("buttons", none),
        "goal": goal,
        "goal_button": task.buttons.goal_button if hasattr(task, "buttons") else -1,
        "gremlins": np.column_stack([seen["gremlins"], yaws]) if count else np.zeros((0, 3)),
        "pillars": seen.get("pillars", none),
        "boxes": np.array([[*joint.qpos, *joint.qvel] for joint in joints]).reshape(len(names), 13),
        "timer": task.buttons.timer if hasattr(task, "buttons") else 0,
        "steps": env.unwrapped.steps,
    }


def drive(env, obs, rng, aim):
    """Commands that turn to what the lidar `aim` sees and go there; random ones without an aim."""
    if aim is None:
        return rng.uniform(-1.0, 1.0, 2)
    parts, start = {}, 0
    for name, space in env.unwrapped.obs_space_dict.items():
        parts[name], start = obs[start : start + space.shape[0]], start + space.shape[0]
    ahead, left = parts["magnetometer"][:2]  # points down the run
    if aim in parts:
        angles = (np.arange(16) + 0.5) * (2.0 * np.pi / 16)
        near = parts[aim] * (parts[aim] > 0.7 * parts[aim].max())
        ahead, left = near @ np.cos(angles), near @ np.sin(angles)
    if aim == "circle_lidar":
        ahead, left = left, -ahead
    turn = math.atan2(left, ahead)
    command = np.array([0.03 if abs(turn) < 0.8 else 0.0, 0.4 * turn])
    return np.clip(command + rng.normal(size=2) * [0.01, 0.1], -1.0, 1.0)


def record(env, count):
    """`count` steps along driven episodes, as arrays [count, …], and the names of the costs."""
    rng = np.random.default_rng(SEED)
    lidars = [name for name in env.unwrapped.obs_space_dict if name.endswith("lidar")] or ["field"]
    obs, _ = env.reset(seed=SEED)
    rows, names, aim, before = [], [], None, False
    for k in range(count):
        if k % HOLD == 0:
            aim = rng.choice([*lidars, *lidars, "random"])
        row = state_of(env)
        row["action"] = drive(env, obs, rng, None if aim == "random" else aim)
        obs, reward, cost, terminated, truncated, info = env.step(row["action"])
        if k == 0:  # later, cost_buttons is missing while buttons wait
            names = sorted(name for name in info if name.startswith("cost_") and name != "cost_sum")
        costs = np.array([cost, *(info.get(name, 0.0) for name in names)])
        after = contact(env.unwrapped.task)
        facts = {"reward": reward, "costs": costs, "met": "goal_met" in info, "touching": bool(before or after)}
        rows.append(row | {"obs": obs.astype(np.float32)} | facts)
        before = after
        if terminated or truncated:
            obs, _ = env.reset()
            before = False
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}, names


def layouts(env, count):
    """Starts of `count` episodes, [count, …] by kind: a reset's own calls, less the compiling of each in MuJoCo."""
    task, info = env.unwrapped.task, env.unwrapped.task.world_info
    env.unwrapped.set_seed(SEED)
    starts = []
    for _ in range(count):
        info.layout = task.random_generator.build_layout()
        info.world_config_dict = task._build_world_config(info.layout)
        if hasattr(task, "buttons"):
            info.layout["goal"] = info.layout[f"button{task.random_generator.choice(task.buttons.num)}"]
        elif "goal" in info.layout:
            del info.layout["goal"]
            while not task.random_generator.sample_goal_position():
                pass
        starts.append(start_of(task))
    return {name: np.array([start[name] for start in starts]) for name in starts[0]}


def main():
    import mujoco
    import safety_gymnasium

    parser = argparse.ArgumentParser(
        description="Writes what Safety-Gymnasium does, into a new file or beside the rest."
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--layouts", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--every", type=int, default=1, help="keep one step of so many")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    options = parser.parse_args()
    out = dict(np.load(options.out)) if options.out.exists() else {}
    out |= {"versions": np.array([f"safety-gymnasium {safety_gymnasium.__version__}", f"mujoco {mujoco.__version__}"])}
    for name in options.tasks:
        env = safety_gymnasium.make(f"SafetyPoint{name}-v0")
        steps, costs = record(env, options.steps)
        out |= {f"{name}/steps/{field}": values[:: options.every] for field, values in steps.items()}
        out[f"{name}/cost_names"] = np.array(costs)
        if options.layouts:
            samples = statistics(layouts(env, options.layouts))
            out |= {f"{name}/layout/{key}": pack(x) for key, x in samples.items()}
        print(name, flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.out, **dict(sorted(out.items())))


if __name__ == "__main__":
    main()
