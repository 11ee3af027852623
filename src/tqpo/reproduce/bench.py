"""Speed, as ratios within one run: environment steps per second of the JAX tasks and the MuJoCo twin."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tqpo.envs import Task, make
from tqpo.physics.dispatch import path
from tqpo.provenance import provenance


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
    start = time.perf_counter()
    run = random_steps(env, count).lower(reset(keys), jax.random.key(1)).compile()
    compile_s = time.perf_counter() - start
    jax.block_until_ready(run(reset(keys), jax.random.key(1)))
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        key = jax.random.key(len(times))
        state = jax.block_until_ready(reset(jax.random.split(key, batch)))
        start = time.perf_counter()
        jax.block_until_ready(run(state, key))
        times.append(time.perf_counter() - start)
    return {"batch": batch, "steps_per_s": batch * count / float(np.median(times)), "compile_s": compile_s}


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


def bench_envs(tasks: Sequence[str], batches: Sequence[int], seconds: float, twin: bool) -> dict[str, Any]:
    """Steps per second of tasks at these batch sizes, in JAX and with `twin` in MuJoCo; prints as it goes."""
    result: dict[str, Any] = {"what": "environment steps per second", "physics": path(), "tasks": {}}
    for name in tasks:
        env, rows = make(name), []
        for batch in batches:
            rows.append(time_jax(env, batch, seconds))
            print(f"{name:17} {batch:>8} environments  {rows[-1]['steps_per_s']:>14,.0f} steps/s")
        best = max(rows, key=lambda row: row["steps_per_s"])
        entry: dict[str, Any] = {"jax": rows, "best": best}
        if twin:
            entry["mujoco_twin"] = time_twin(env, seconds)
            entry["jax_over_twin"] = best["steps_per_s"] / entry["mujoco_twin"]
            print(f"{name:17} {'MuJoCo twin':>21}  {entry['mujoco_twin']:>14,.0f} steps/s")
        result["tasks"][name] = entry
    return result | {"provenance": provenance()}
