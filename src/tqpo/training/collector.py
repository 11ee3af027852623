"""Learning from environments on the host: a `Collector` feeds a group of runs.

One batch of R·B environments serves R runs. A step may give nothing for some environment (its vector only reset it, or
its worker was restarted), so transitions wait in line: a batch is the next T of each environment, and what is left over
goes into the one after it. An episode that was lost to a fault is left out.
"""

import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from tqpo import algorithms, networks
from tqpo.algorithms import learner, rollout
from tqpo.algorithms.rollout import Runner
from tqpo.host.batch import EnvBatch
from tqpo.host.spec import HostSpec
from tqpo.types import Array, Batch, Key, PyTree

SEED_OF_RUN = 100_003  # between the seeds of two runs' environments


class Lines:
    """Transitions waiting in line, one line per environment.

    A step is a `Rollout` with leaves [N, …], its memory before it.
    """

    def __init__(self, count: int):
        self.steps: list[rollout.Rollout] = []
        self.waiting: list[list[int]] = [[] for _ in range(count)]  # places in `steps`

    def add(self, step: rollout.Rollout, valid: np.ndarray, lost: np.ndarray) -> None:
        """Lines up the valid ones; of a lost episode, whatever still waits is thrown away."""
        for i in np.flatnonzero(lost).tolist():
            line = self.waiting[i]
            while line and not self._ends(line[-1], i):
                line.pop()
        for i in np.flatnonzero(valid):
            self.waiting[i].append(len(self.steps))
        self.steps.append(step)

    def _ends(self, place: int, i: int) -> bool:
        batch = self.steps[place].batch
        return bool(batch.terminated[i] or batch.truncated[i])

    def ready(self, steps: int) -> bool:
        return min(map(len, self.waiting)) >= steps

    def take(self, steps: int) -> rollout.Rollout:
        """The next `steps` of every environment, leaves [T, N, …]."""
        places = np.array([line[:steps] for line in self.waiting]).T  # [T, N]
        columns = np.arange(len(self.waiting))
        taken = jax.tree.map(lambda *x: np.stack(x)[places, columns], *self.steps)
        rest = [line[steps:] for line in self.waiting]
        keep = min((line[0] for line in rest if line), default=len(self.steps))
        self.steps = self.steps[keep:]
        self.waiting = [[place - keep for place in line] for line in rest]
        return taken


def running(obs: Any, memory: PyTree, prev_action: Any, prev_reward: Any, first: Any) -> Runner:
    """Where acting stands, [R, B, …]; the environments keep their own state."""
    return Runner(None, obs, memory, prev_action, prev_reward, first)


@jax.jit
def decide(networks_: PyTree, moments: PyTree, now: Runner, keys: Key, t: Array) -> tuple[Runner, rollout.Decision]:
    """What R policies do in their B environments at step t; also what they acted on, as a policy sees it."""

    def one(network, moments, now, key):
        clean = rollout.select(now.first, jax.tree.map(jnp.zeros_like, now), now)._replace(obs=now.obs, first=now.first)
        noise = jax.random.normal(jax.random.fold_in(key, t), clean.prev_action.shape)
        policy = learner.make_policy(network, moments, record=network.actor.lstm is not None)
        return clean, policy(clean.obs, clean.memory, clean.prev_action, clean.prev_reward, noise)

    return jax.vmap(one)(networks_, moments, now, keys)


@jax.jit
def look_ahead(networks_: PyTree, moments: PyTree, decision: rollout.Decision, next_obs: Array, reward: Array):
    """The heads' values after the step, before any reset."""

    def one(network, moments, decision, next_obs, reward):
        policy = learner.make_policy(network, moments, record=True)
        zero = jnp.zeros_like(decision.action)
        return policy(next_obs, decision.memory, decision.action, reward, zero).outputs

    return jax.vmap(one)(networks_, moments, decision, next_obs, reward)


class Collector:
    """The environments of a group of runs, and what they gave. A context manager: leaving it ends them."""

    def __init__(
        self, env: HostSpec, algorithm: str, config: learner.LearnerConfig, seeds: tuple[int, ...], start: int
    ):
        self.env, self.algorithm, self.config = env, algorithm, config
        self.shape = (len(seeds), config.n_envs)  # R, B
        count = len(seeds) * config.n_envs
        self.envs = EnvBatch(env, count, seed=(SEED_OF_RUN * (seeds[0] + 1) + start) % 2**31)
        self.lines = Lines(count)
        self.now: Runner | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: Any) -> None:
        self.envs.__exit__(*problem)

    def __call__(self, state: PyTree, configs: PyTree) -> tuple[PyTree, dict[str, Array]]:
        """One iteration of all runs: (state, configs [R]) → (state, metrics [1, R, …])."""
        seen = self.collect(state.learner)
        return make_learn(self.env, self.algorithm)(state, seen, configs)

    def collect(self, state: learner.LearnerState) -> rollout.Rollout:
        """T steps of B environments of R runs, leaves [R, T, B, …]."""
        keys = jax.vmap(lambda key, i: jax.random.fold_in(key, 2 * i))(state.key, state.iteration)
        now = self.now or self._begin(state)
        t = 0
        while not self.lines.ready(self.config.n_steps):
            now = self._step(state, now, keys, t)
            t += 1
        self.now = now
        return self._arrange(self.lines.take(self.config.n_steps))

    def _begin(self, state: learner.LearnerState) -> Runner:
        memory = jax.vmap(lambda network: networks.initial_memory(network.actor, self.shape[1:]))(state.network)
        action, reward = np.zeros((*self.shape, self.env.action_size), np.float32), np.zeros(self.shape, np.float32)
        return running(self._split(self.envs.reset()), memory, action, reward, np.ones(self.shape, bool))

    def _step(self, state: learner.LearnerState, now: Runner, keys: Key, t: int) -> Runner:
        now, decision = decide(state.network, state.moments, now, keys, t)
        action = np.asarray(decision.action)
        given = self.envs.step(np.clip(self._join(action), -1.0, 1.0))
        step: Any = jax.tree.map(self._split, given)  # [R, B, …]
        reward, ahead = step.reward.astype(np.float32), None
        if decision.outputs is not None:
            ahead = look_ahead(state.network, state.moments, decision, step.next_obs, reward)
        batch = Batch(
            obs=now.obs,
            action=decision.action,
            log_prob=decision.log_prob,
            reward=reward,
            cost=step.cost,
            terminated=step.terminated,
            truncated=step.truncated,
            next_obs=step.next_obs,
        )
        before = {"first": now.first, "prev_action": now.prev_action, "prev_reward": now.prev_reward}
        seen = rollout.Rollout(batch, **before, memory=now.memory, outputs=decision.outputs, next_outputs=ahead)
        self.lines.add(jax.tree.map(self._join, seen), given.valid, given.lost)
        return running(step.obs, decision.memory, action, reward, step.ended | ~step.valid)

    def _arrange(self, taken: rollout.Rollout) -> rollout.Rollout:
        def by_run(x) -> Any:  # [T, R·B, …] → [R, T, B, …]
            return np.moveaxis(x.reshape(len(x), *self.shape, *x.shape[2:]), 1, 0)

        seen = jax.tree.map(by_run, taken)
        return seen._replace(memory=jax.tree.map(lambda x: x[:, :: self.config.segment], seen.memory))  # [R, S, B, …]

    def _split(self, x: Any) -> Any:
        return np.asarray(x).reshape(*self.shape, *np.shape(x)[1:])

    def _join(self, x: Any) -> Any:
        x = np.asarray(x)
        return x.reshape(-1, *x.shape[2:])


@functools.lru_cache(maxsize=64)
def make_learn(env: HostSpec, algorithm: str):
    """The compiled (states, rollouts [R, T, B], configs) → (states, metrics [1, R, …])."""

    def one(state, seen, config):
        core = state.learner
        begun = jnp.where(seen.first[0][:, None], 0.0, core.episodes.running)  # sums of episodes that were lost
        core = core._replace(episodes=core.episodes._replace(running=begun))
        shape = config.learner.n_envs, config.learner.n_steps
        most = rollout.pool_size(*shape, env.min_steps)
        core, experience = learner.examine(core, seen, config.learner, most, rollout.no_cuts(*shape))
        return algorithms.learn(algorithm, state._replace(learner=core), experience, config)

    def learn(states, seen, configs):
        with jax.default_matmul_precision(configs.learner.matmul_precision):
            states, metrics = jax.vmap(one)(states, seen, configs)
        return states, jax.tree.map(lambda x: x[None], metrics)

    return jax.jit(learn)
