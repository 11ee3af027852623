"""Guarded environments on Ray actors: for environments so slow that one machine's cores are too few.

Each environment is an actor, placed wherever the cluster has a core. One that dies or does not answer is replaced; the others go
on. Steps and resets are those of a `SAME_STEP` vector.
"""

import logging
import os
import signal
import sys
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tqpo.errors import ConfigError
from tqpo.host.guard import SEED_STEP, Guard, Plan, limit

START = 120.0  # s in which actors must be up


class Answer(NamedTuple):
    """What an actor gives; a step that ends an episode has the end in `final_obs` and `final_info`, and a new beginning."""

    obs: np.ndarray
    info: dict[str, Any]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final_obs: np.ndarray | None = None
    final_info: dict[str, Any] | None = None


class Worker:
    """One environment, in an actor."""

    def __init__(self, plan: Plan, index: int, faults: int):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.env = Guard(plan, index, faults)

    def reset(self, seed: int | None) -> Answer:
        return Answer(*self.env.reset(seed=seed))

    def step(self, action: np.ndarray) -> Answer:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):
            return Answer(obs, info, reward)
        fresh, began = self.env.reset()
        return Answer(fresh, began, reward, terminated, truncated, obs, info)


class RayVector(VectorEnv):
    """`count` environments on actors of the cluster that Ray is connected to, or of a Ray of this machine's."""

    def __init__(self, plan: Plan, count: int, faults: np.ndarray, wait: float):
        try:
            import ray
        except ImportError:
            raise ConfigError('--vector ray needs Ray: pip install "tqpo[ray]"') from None
        self.ray, self.plan, self.num_envs, self.wait = ray, plan, count, wait
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = Box(-np.inf, np.inf, (plan.border.obs_size,), np.float32)
        self.single_action_space = Box(-1.0, 1.0, (plan.border.action_size,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)
        self.own = not ray.is_initialized()
        if self.own:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, logging_level=logging.ERROR)
        cores = ray.cluster_resources().get("CPU", 1.0)
        self.cpus = min(1.0, 0.99 * cores / count)  # where cores are too few, actors share them
        self.faults = faults.copy()
        self.seeds: list[int | None] = [None] * count
        self.actors = [self._actor(i) for i in range(count)]

    def _actor(self, i: int) -> Any:
        paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "JAX_PLATFORMS": "cpu"}
        options = {"num_cpus": self.cpus, "runtime_env": {"env_vars": paths}}
        return self.ray.remote(Worker).options(**options).remote(self.plan, i, int(self.faults[i]))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None):
        if seed is not None:
            self.seeds = list(seed)
        given = list(seed) if seed is not None else [None] * self.num_envs
        references = [actor.reset.remote(s) for actor, s in zip(self.actors, given, strict=True)]
        answers = self._ask(references, START + self.wait)
        return self._join(answers)[0], self._infos([a.info for a in answers])

    def step(self, actions: np.ndarray):
        answers = self._ask([actor.step.remote(a) for actor, a in zip(self.actors, actions, strict=True)], self.wait)
        obs, reward, terminated, truncated = self._join(answers)
        infos = self._infos([a.info for a in answers])
        ended = terminated | truncated
        if ended.any():
            final = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(ended):
                final[i] = answers[i].final_obs
            infos |= {"final_obs": final, "_final_obs": ended}
            infos["final_info"] = self._infos([a.final_info or {} for a in answers])
        return obs, reward, terminated, truncated, infos

    def _ask(self, references: list[Any], wait: float) -> list[Answer]:
        """Every actor's answer; that of a new actor's first reset in place of one that was lost."""
        self.ray.wait(references, num_returns=len(references), timeout=wait)
        answers = []
        for i, reference in enumerate(references):
            try:
                answers.append(self.ray.get(reference, timeout=0.1))
            except self.ray.exceptions.GetTimeoutError:
                answers.append(self._replace(i, f"gave no answer within {wait:g} s"))
            except self.ray.exceptions.RayError as error:
                answers.append(self._replace(i, f"was lost: {type(error).__name__}"))
        return answers

    def _replace(self, i: int, what: str) -> Answer:
        reports = []
        while True:
            self.faults[i] += 1
            reports.append(f"environment {i}: its actor {what}; it begins a new episode in another")
            self.ray.kill(self.actors[i])
            if self.faults[i] > self.plan.restarts:
                text = "\n".join([*reports, f"It failed {self.faults[i]} times; {limit(self.plan.restarts)}"])
                return Answer(np.zeros(self.plan.border.obs_size, np.float32), {"tqpo_fatal": text})
            self.actors[i] = self._actor(i)
            first = self.seeds[i]
            seed = None if first is None else (first + SEED_STEP * int(self.faults[i])) % 2**31
            try:
                answer = self.ray.get(self.actors[i].reset.remote(seed), timeout=START + self.wait)
            except (self.ray.exceptions.GetTimeoutError, self.ray.exceptions.RayError) as error:
                what = f"was lost in its first reset: {type(error).__name__}"
                continue
            lost = {"tqpo_lost": "\n".join(reports), "tqpo_faults": int(self.faults[i])}
            return answer._replace(info=lost | answer.info)

    def _join(self, answers: list[Answer]) -> tuple[np.ndarray, ...]:
        flags = np.array([(a.terminated, a.truncated) for a in answers], bool)
        return np.stack([a.obs for a in answers]), np.array([a.reward for a in answers]), flags[:, 0], flags[:, 1]

    def _infos(self, infos: list[dict[str, Any]]) -> dict[str, Any]:
        """Infos of single environments as a vector's, with a mask beside each."""
        out: dict[str, Any] = {}
        for key in dict.fromkeys(key for info in infos for key in info):
            values = np.full(self.num_envs, None, object)
            for i, info in enumerate(infos):
                values[i] = info.get(key)
            out |= {key: values, f"_{key}": np.array([key in info for info in infos])}
        if "tqpo_faults" in out:
            for i in np.flatnonzero(out["_tqpo_faults"]):
                self.faults[i] = out["tqpo_faults"][i]
        return out

    def close_extras(self, **_: Any) -> None:
        for actor in self.actors:
            self.ray.kill(actor)
        if self.own:
            self.ray.shutdown()
