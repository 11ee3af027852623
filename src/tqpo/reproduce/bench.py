"""Speed, as ratios within one run: environment steps per second of the JAX tasks, the MuJoCo twin and Safety-Gymnasium.

A task without JAX physics has its twin alone.
"""

import subprocess
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tqpo.envs import Task, make
from tqpo.errors import ConfigError
from tqpo.physics.dispatch import path
from tqpo.provenance import provenance

LABELS = {"mujoco_twin": "MuJoCo twin", "original": "Safety-Gymnasium"}


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


ORIGINAL = """
import sys, time, numpy, safety_gymnasium
env = safety_gymnasium.make(sys.argv[1])
env.reset(seed=0)
rng, steps, start = numpy.random.default_rng(0), 0, time.perf_counter()
while time.perf_counter() - start < float(sys.argv[2]):
    *_, terminated, truncated, _ = env.step(rng.uniform(-1.0, 1.0, 2))
    if terminated or truncated:
        env.reset()
    steps += 1
print(steps / (time.perf_counter() - start))
"""  # runs in another Python


def time_original(task: str, python: str, seconds: float) -> float:
    """Steps per second of Safety-Gymnasium's task of that name under random actions, one process of that Python."""
    try:
        done = subprocess.run(
            [python, "-c", ORIGINAL, f"{task}-v0", str(seconds)], check=False, capture_output=True, text=True
        )
    except OSError as error:
        raise ConfigError(f"{python} cannot be started: {error}") from None
    if done.returncode:
        raise ConfigError(f"{python} has no {task}: {done.stderr.strip().splitlines()[-1:]}; make safety-gymnasium")
    return float(done.stdout.split()[-1])


def bench_envs(
    tasks: Sequence[str], batches: Sequence[int], seconds: float, twin: bool, original: str | None = None
) -> dict[str, Any]:
    """Steps per second of tasks at these batch sizes, in JAX and with `twin` in MuJoCo; prints as it goes.

    `original` is the Python that has Safety-Gymnasium, for its tasks.
    """
    result: dict[str, Any] = {"what": "environment steps per second", "physics": path(), "tasks": {}}
    for name in tasks:
        env = make(name)
        entry: dict[str, Any] = {}
        for batch in batches:
            entry.setdefault("jax", []).append(time_jax(env, batch, seconds))
            print(f"{name:18} {batch:>8} environments  {entry['jax'][-1]['steps_per_s']:>14,.0f} steps/s")
        others: dict[str, Any] = {"mujoco_twin": partial(time_twin, env, seconds)} if twin else {}
        if original and name.startswith("SafetyPoint"):
            others["original"] = partial(time_original, name, original, seconds)
        for other, measure in others.items():
            entry[other] = measure()
            print(f"{name:18} {LABELS[other]:>21}  {entry[other]:>14,.0f} steps/s")
        entry["best"] = max(entry["jax"], key=lambda row: row["steps_per_s"])
        for other, ratio in (("mujoco_twin", "jax_over_twin"), ("original", "jax_over_original")):
            if other in entry:
                entry[ratio] = entry["best"]["steps_per_s"] / entry[other]
        result["tasks"][name] = entry
    return result | {"provenance": provenance()}
