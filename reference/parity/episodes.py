"""Episodes of the JAX task under a fixed policy, and the same in the twin."""

from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from reference.parity.policies import POLICIES
from tqpo.envs import Task, TaskConfig
from tqpo.envs.mujoco import MujocoTask


@dataclass(frozen=True)
class Plan:
    """Episodes `first` to `first + count`; each draws layout and noise from its own number, in JAX as in the twin."""

    config: TaskConfig
    policy: str
    count: int
    first: int = 0
    seed: int = 0

    @property
    def task(self) -> Task:
        return Task(self.config)

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.count)

    def key(self, number: int):
        return jax.random.fold_in(jax.random.key(self.seed), number)

    def noise(self, number: int) -> np.ndarray:
        """[T, 2] uniform in [-1, 1]."""
        rng = np.random.default_rng([self.seed, number])
        return rng.uniform(-1.0, 1.0, (self.config.max_steps, 2)).astype(np.float32)


@lru_cache(maxsize=64)
def recorder(task: Task, policy: str):
    """Compiled: keys [B], noise [T, B, 2] → states before each step, actions, steps, all [T, B, …]."""
    act = POLICIES[policy]

    def one(carry, noise):
        state, obs = carry
        action = jax.vmap(lambda o, n: act(o, n, task.config, jnp))(obs, noise.astype(obs.dtype))
        after, step = jax.vmap(task.step)(state, action)
        return (after, step.obs), (state, action, step)

    def run(keys, noise):
        return lax.scan(one, jax.vmap(task.reset)(keys), noise)[1]

    return jax.jit(run)


@lru_cache(maxsize=64)
def summer(task: Task, policy: str):
    """Compiled: keys [B], noise [T, B, 2] → episode returns [B] and episode costs [B]."""
    act = POLICIES[policy]

    def one(carry, noise):
        state, obs, over, sums = carry
        action = jax.vmap(lambda o, n: act(o, n, task.config, jnp))(obs, noise.astype(obs.dtype))
        state, step = jax.vmap(task.step)(state, action)
        gained = jnp.stack([step.reward, step.cost[:, 0]])
        sums = sums + jnp.where(over, 0.0, gained)
        return (state, step.obs, over | step.terminated | step.truncated, sums), None

    def run(keys, noise):
        count = keys.shape[0]
        start = (*jax.vmap(task.reset)(keys), jnp.zeros(count, bool), jnp.zeros((2, count)))
        return lax.scan(one, start, noise)[0][3]

    return jax.jit(run)


@lru_cache(maxsize=64)
def stepper(task: Task):
    """Compiled: states [N, …] with keys as words, actions [N, 2] → states after, steps."""

    def run(states, actions):
        return jax.vmap(task.step)(states._replace(key=jax.random.wrap_key_data(states.key)), actions)

    return jax.jit(run)


def arguments(plan: Plan):
    keys = jnp.stack([plan.key(i) for i in plan.numbers])
    return keys, jnp.asarray(np.stack([plan.noise(i) for i in plan.numbers], axis=1))


def record(plan: Plan):
    """States before each step, actions and steps, [T, B, …], as NumPy; keys as their words [T, B, 2]."""
    states, actions, steps = recorder(plan.task, plan.policy)(*arguments(plan))
    states = states._replace(key=jax.random.key_data(states.key))
    return jax.device_get((states, actions, steps))


def totals(plan: Plan) -> np.ndarray:
    """[2, B] returns and costs of the JAX task."""
    return np.asarray(summer(plan.task, plan.policy)(*arguments(plan)), float)


def twin_totals(plan: Plan) -> np.ndarray:
    """[2, B] returns and costs of the twin, on its own state, with MuJoCo's default solver."""
    twin, act = MujocoTask(plan.config), POLICIES[plan.policy]
    out = np.zeros((2, plan.count))
    for k, number in enumerate(plan.numbers):
        obs = twin.reset(plan.key(number))
        for noise in plan.noise(number):
            obs, reward, cost, terminated, truncated = twin.step(act(obs, noise, plan.config, np))
            out[:, k] += reward, cost[0]
            if terminated or truncated:
                break
    return out
