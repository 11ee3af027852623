"""Measurements → `docs/parity.md`."""

from collections import Counter
from typing import Any

import numpy as np

from reference.parity.closed_loop import differences

SPANS = {"physics": "2 ms", "environment": "20 ms"}
CASES = {"float64": "float64", "float64_default_solver": "float64, MuJoCo's default solver", "float32": "float32"}
BARS = {"float64": "median ≤ 1e-12, worst ≤ 1e-6", "float32": "median ≤ 1e-6, worst ≤ 1e-3"}


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines)


def number(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def select(cells: dict[str, Any], section: str) -> dict[str, Any]:
    """Cells of a section, without its name."""
    return {key.removeprefix(f"{section}/"): cell for key, cell in cells.items() if key.startswith(f"{section}/")}


def one_step(cells: dict[str, Any]) -> str:
    rows = []
    for task, cell in cells.items():
        for span, duration in SPANS.items():
            for precision in BARS:
                entry = cell[f"{span}_{precision}"]
                every, contact = entry["all"], entry["contact"]
                rows.append(
                    [
                        task,
                        duration,
                        precision,
                        f"{entry['in_contact']:.0%}",
                        *(number(every[k]) for k in ("median", "p99", "worst")),
                        *(number(contact[k]) if contact else "–" for k in ("median", "worst")),
                        number(entry["default_solver"]["worst"]),
                    ]
                )
    head = [
        "task",
        "step",
        "precision",
        "in contact",
        "median",
        "99 %",
        "worst",
        "median in contact",
        "worst in contact",
    ]
    return table([*head, "worst, MuJoCo's default solver"], rows)


def copied(cells: dict[str, Any]) -> str:
    rows = []
    for task, cell in cells.items():
        for case, label in CASES.items():
            entry = cell[case]
            parts = entry["obs_by_part"]
            calm = max(v for k, v in parts.items() if k not in {"accelerometer", "gyro"})
            rows.append(
                [
                    task,
                    label,
                    f"{entry['steps']:,}",
                    number(entry["obs"]),
                    number(calm),
                    number(entry["reward"]),
                    f"{entry['equal_cost']:.4%}",
                    f"{entry['differing_steps']}",
                ]
            )
    return table(
        ["task", "case", "steps", "obs", "obs less accelerometer, gyro", "reward", "equal cost", "listed steps"], rows
    )


def differing(cells: dict[str, Any]) -> str:
    lines = []
    for task, cell in cells.items():
        for case, label in CASES.items():
            listed = cell[case]["differing"]
            why = Counter(d["why"].split(",")[0] for d in listed)
            for reason, count in why.most_common():
                of_these = [d for d in listed if d["why"].split(",")[0] == reason]
                lines.append(f"- {task}, {label}: {count} × {reason}.")
                lines += [f"  - {describe(d)}" for d in of_these[:3]]
    return "\n".join(lines) or "None: no step differs beyond the tolerances."


def describe(entry: dict[str, Any]) -> str:
    part, size = entry["obs"]
    ours, theirs = ([int(x) for x in side] for side in entry["cost"])
    where = ", ".join(f"{k} {v:.1e} m" for k, v in entry["margins"].items())
    return (
        f"{entry['policy']} {entry['episode']}:{entry['step']} cost {ours} / {theirs}, {part} {size:.1e} (from {where})"
    )


def closed_loop(cells: dict[str, Any]) -> str:
    rows = []
    names = {"mean_return": "mean return", "mean_cost": "mean cost", "cost_q90": "90 % cost quantile"}
    for key, cell in cells.items():
        task, policy = key.split("/")
        for statistic, entry in cell["statistics"].items():
            low, high = entry["interval"]
            rows.append(
                [
                    task,
                    policy,
                    names[statistic],
                    f"{entry['twin']:.3f}",
                    f"{entry['jax']:.3f}",
                    f"{entry['difference']:+.3f}",
                    f"[{low:.3f}, {high:.3f}]",
                    "yes" if entry["agrees"] else "no" + repeated(cell, statistic),
                ]
            )
    return table(["task", "policy", "", "MuJoCo", "JAX", "difference", "95 % interval", "holds 0"], rows)


def repeated(cell: dict[str, Any], statistic: str) -> str:
    """The second run of a cell, and both runs together."""
    again = cell["repeat"]
    ours, theirs = (np.concatenate([cell[side], again[side]], axis=1) for side in ("jax", "twin"))
    parts = []
    for label, entry in (
        (f"{again['episodes']} others", again["statistics"][statistic]),
        (f"all {ours.shape[1]}", differences(ours, theirs)[statistic]),
    ):
        low, high = entry["interval"]
        verdict = "yes" if entry["agrees"] else "**no**"
        parts.append(f"{label}: {entry['difference']:+.3f} [{low:.3f}, {high:.3f}] {verdict}")
    return "; " + "; ".join(parts)


def document(result: dict[str, Any]) -> str:
    cells, origin = result["cells"], result["provenance"]
    loop = select(cells, "closed_loop")
    verdicts = [e["agrees"] for cell in loop.values() for e in cell["statistics"].values()]
    versions = ", ".join(f"{k} {v}" for k, v in origin["versions"].items() if k in {"python", "jax", "mujoco", "numpy"})
    step, copy = select(cells, "one_step"), select(cells, "copied")
    states = max((cell["states"] for cell in step.values()), default=0)
    episodes = max((cell["episodes"] for cell in loop.values()), default=0)
    single = max((cell["float32"]["obs_by_part"]["accelerometer"] for cell in copy.values()), default=0.0)
    return f"""# Agreement with MuJoCo

Written by `python -m reference.parity --out results/parity.json --doc docs/parity.md`.
Commit {origin["commit"]}; {origin["made"]};
{versions}.

The judge is the MuJoCo twin of each task (`tqpo/envs/mujoco.py`). It has the same state; physics, contacts and sensors
come from the `mujoco` package, and everything else is written a second time in NumPy.

## For which versions

The tables below are measured against MuJoCo {origin["versions"]["mujoco"]}. "Exact" means: in float64, from the same
state, velocities after a step agree with those of MuJoCo's converged solver within 1e-6, at the median within 1e-12.
`tests/envs/test_mujoco_twin.py` holds the tasks to that. It was run with MuJoCo 3.3.0, 3.11.0, 3.12.0, 3.17.0 and 4.0.0
and passes with all of them. GremlinEnv is tested from 3.12 on: before, MuJoCo has another box–box collider and a
slightly different weld.

**Training runs in float32.** Over one step from a copied state the accelerometer then differs by up to
{single:.1f} m/s²; the second table below has it all.

**Measured against Safety-Gymnasium 1.0.0** (MuJoCo 2.3.3; not part of the command above): over a step SimpleEnv and
DynamicEnv agree to 8e-6, with every cost equal. Contacts between the robot's arrow and a gremlin differ, by 0.07 m/s or
rad/s at the median, and the cost differs on 61 of 6,000 steps. That MuJoCo's solver is different, not the model.

## One step from random states

The size of the difference in velocity [m/s, rad/s], the largest component over robot and gremlins, over {states:,}
states per task. MuJoCo's solver is iterated to the end (tolerance 1e-30, 200 iterations); the last column has it at its
default tolerance of 1e-8.
Wanted of the 2 ms step: {"; ".join(f"{k}: {v}" for k, v in BARS.items())}.

Over 20 ms, ten such steps, rounding errors grow. The hinge's speed servo has a gain of 0.09/I ≈ 3,200 /s, so each 2 ms
multiply an error in its linear range by about −4.

{one_step(step)}

## Along episodes, the state copied over each step

The largest difference over 1000-step episodes of four policies. Wanted: observation within 1e-5, reward within 1e-6,
cost equal on 99.9 % of steps. In float32 the accelerometer and the gyro carry the growth described above; the rest of
the observation has a column of its own.

{copied(copy)}

Steps that differ in a cost, or in float64 by more than the tolerances; at most three of a kind. Each has its policy,
episode and step, the costs as JAX / MuJoCo, the largest difference, and the distance of that state to the boundaries:

{differing(copy)}

## Closed loop

{episodes} episodes per cell, each side on its own state, with the same layouts and noise on both sides; JAX in float32,
MuJoCo with its default solver. The interval is a paired bootstrap of the difference over episodes. It holds 0 in
{sum(verdicts)} of {len(verdicts)} cases; if the two agree exactly,
about {0.05 * len(verdicts):.0f} fall outside by chance.
A cell whose interval does not hold 0 is run once more, with four times as many other episodes. Its last column then has
those, and all together.

{closed_loop(loop)}
"""
