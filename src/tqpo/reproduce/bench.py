"""Speed, as ratios within one run: environment steps per second of the JAX tasks, the MuJoCo twin and MJX."""

import json
import pathlib
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tqpo.envs import TASKS, Task, make
from tqpo.physics.dispatch import path
from tqpo.provenance import provenance


@dataclass
class EnvBench:
    """What `tqpo bench envs` measures."""

    tasks: tuple[str, ...] = tuple(TASKS)
    batches: tuple[int, ...] = (64, 256, 1024, 4096, 16384)
    """Numbers of environments stepped at once."""
    seconds: float = 2.0
    """Time spent on each measurement, at least."""
    twin: bool = True
    """Also measure the MuJoCo twin in one process (and MJX, if installed)."""
    out: pathlib.Path | None = None
    """Write the numbers as JSON here."""


def random_steps(env: Task, count: int):
    """A compiled function: `count` steps of a batch of environments under uniformly random actions."""

    def run(state, key):
        batch = state.steps.shape[0]

        def one(carry, key):
            state, used = carry
            action = jax.random.uniform(key, (batch, env.action_size), minval=-1.0, maxval=1.0)
            state, step = jax.vmap(env.step)(state, action)
            # Everything a step gives is used, so that nothing of it can be left out.
            used += step.reward + jnp.sum(step.obs, axis=-1) + jnp.sum(step.cost, axis=-1)
            return (state, used), None

        return lax.scan(one, (state, jnp.zeros(batch)), jax.random.split(key, count))[0]

    return jax.jit(run, donate_argnums=0)


def time_jax(env: Task, batch: int, seconds: float) -> dict[str, float]:
    """Steps per second at this batch size, and the time to compile. Episodes start anew before each timed call."""
    count = 200
    reset = jax.jit(jax.vmap(lambda key: env.reset(key)[0]))
    keys = jax.random.split(jax.random.key(0), batch)
    run = random_steps(env, count)
    start = time.perf_counter()
    run = run.lower(reset(keys), jax.random.key(1)).compile()
    compile_s = time.perf_counter() - start
    jax.block_until_ready(run(reset(keys), jax.random.key(1)))
    rates, spent, round_ = [], 0.0, 0
    while spent < seconds or len(rates) < 3:
        state = jax.block_until_ready(reset(jax.random.split(jax.random.key(round_), batch)))
        start = time.perf_counter()
        jax.block_until_ready(run(state, jax.random.key(round_)))
        took = time.perf_counter() - start
        rates.append(batch * count / took)
        spent, round_ = spent + took, round_ + 1
    return {"batch": batch, "steps_per_s": float(np.median(rates)), "compile_s": compile_s}


def time_twin(env: Task, seconds: float) -> float:
    """Steps per second of the MuJoCo twin under random actions, one process."""
    from tqpo.envs.mujoco import MujocoTask

    twin = MujocoTask(env.config)
    twin.reset(jax.random.key(0))
    rng = np.random.default_rng(0)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        *_, truncated = twin.step(rng.uniform(-1.0, 1.0, env.action_size))
        if truncated:
            twin.reset(jax.random.key(steps))
        steps += 1
    return steps / (time.perf_counter() - start)


def time_mjx(env: Task, batch: int, seconds: float) -> float | None:
    """Steps per second of MJX on the twin's model, physics alone; None where MJX is not installed."""
    try:
        from mujoco import mjx  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        return None
    from tqpo.envs.mujoco import MujocoTask

    twin = MujocoTask(env.config)
    twin.reset(jax.random.key(0))
    model = mjx.put_model(twin.model)
    data = mjx.put_data(twin.model, twin.data)
    batched = jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *x.shape)), data)

    def run(data, key):
        def one(data, key):
            data = data.replace(ctrl=jax.random.uniform(key, data.ctrl.shape, minval=-1.0, maxval=1.0))
            substep = jax.vmap(mjx.step, in_axes=(None, 0))
            return lax.fori_loop(0, env.config.robot.substeps, lambda _, d: substep(model, d), data), None

        return lax.scan(one, data, jax.random.split(key, 10))[0]

    run = jax.jit(run)
    jax.block_until_ready(run(batched, jax.random.key(0)))
    rounds, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        jax.block_until_ready(run(batched, jax.random.key(rounds)))
        rounds += 1
    return rounds * 10 * batch / (time.perf_counter() - start)


def bench_envs(options: EnvBench, report=print) -> dict[str, Any]:
    """Measures, prints a table and returns (and writes) the numbers."""
    result: dict[str, Any] = {"what": "environment steps per second", "physics": path(), "tasks": {}}
    for name in options.tasks:
        env = make(name)
        rows = []
        for batch in options.batches:
            rows.append(time_jax(env, batch, options.seconds))
            report(f"{name:17} {batch:>8} environments  {rows[-1]['steps_per_s']:>14,.0f} steps/s")
        best = max(rows, key=lambda row: row["steps_per_s"])
        entry: dict[str, Any] = {"jax": rows, "best": best}
        if options.twin:
            entry["mujoco_twin"] = time_twin(env, options.seconds)
            entry["jax_over_twin"] = best["steps_per_s"] / entry["mujoco_twin"]
            report(f"{name:17} {'MuJoCo twin':>21}  {entry['mujoco_twin']:>14,.0f} steps/s")
            mjx = time_mjx(env, options.batches[0], options.seconds)
            if mjx is not None:
                entry["mjx"] = {"batch": options.batches[0], "steps_per_s": mjx}
                entry["jax_over_mjx"] = rows[0]["steps_per_s"] / mjx
        result["tasks"][name] = entry
    result["provenance"] = provenance()
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return result


def table(result: dict[str, Any]):
    """The result as a rich table."""
    from rich.table import Table

    out = Table(title=f"Environment steps per second ({result['provenance']['hardware']['device']})")
    for column in ("task", "environments", "JAX", "compile [s]", "MuJoCo twin", "JAX / twin"):
        out.add_column(column, justify="left" if column == "task" else "right")
    for name, entry in result["tasks"].items():
        for row in entry["jax"]:
            best = row is entry["best"] or row == entry["best"]
            twin = f"{entry['mujoco_twin']:,.0f}" if best and "mujoco_twin" in entry else ""
            ratio = f"{entry['jax_over_twin']:,.0f}×" if best and "jax_over_twin" in entry else ""
            rate, compiled = f"{row['steps_per_s']:,.0f}", f"{row['compile_s']:.1f}"
            out.add_row(name, f"{row['batch']:,}", rate, compiled, twin, ratio, style="bold" if best else None)
    return out
