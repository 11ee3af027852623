"""A vector that the user's factory made, `factory(num_envs=N)`, read and watched as one.

Its environments cannot be restarted one by one, so a fault in any of them builds the whole vector anew.
"""

import contextlib
import copy
import traceback
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from tqpo.errors import EnvError
from tqpo.host import costs
from tqpo.host.guard import FAILURES, SEED_STEP, Plan, Reading, alarm, finite, limit
from tqpo.host.reference import allowance
from tqpo.host.spaces import ContractError


def info_of(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """What environment i said, out of the infos of all."""
    mine = {}
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        said = infos.get(f"_{key}")
        if said is not None and not said[i]:
            continue
        mine[key] = info_of(value, i) if isinstance(value, dict) else value[i]
    return mine


def mode_of(vector: Any) -> AutoresetMode:
    mode = vector.metadata.get("autoreset_mode")
    if mode is None:
        raise EnvError('the vector\'s metadata has no "autoreset_mode": a gymnasium.vector.AutoresetMode')
    return AutoresetMode(mode)


def actions_of(vector: Any, reading: Reading, actions: np.ndarray) -> np.ndarray:
    """The vector's batch of actions from vectors [N, A]."""
    space = vector.single_action_space
    return np.stack([reading.border.action(a) for a in actions]).astype(space.dtype)


def read_costs(reading: Reading, info: dict[str, Any], last: Any, action: Any, obs: Any) -> dict[str, Any]:
    value = None if reading.cost_fn is None else reading.cost_fn(last, action, obs, info)
    return costs.named(value, info, reading.cost_fn is not None)


def first_costs(vector: Any, reading: Reading) -> dict[str, Any]:
    """The costs by name in a vector's first step."""
    mode_of(vector)
    obs, _ = vector.reset(seed=0)
    last = next(iter(iterate(vector.observation_space, obs)))
    actions = vector.action_space.sample()
    obs, _, terminated, truncated, infos = vector.step(actions)
    info = info_of(infos, 0)
    now = info.get("final_obs", next(iter(iterate(vector.observation_space, obs))))
    info = info.get("final_info", info) if terminated[0] or truncated[0] else info
    return read_costs(reading, info, last, actions[0], now)


class OwnVector(VectorEnv):
    """The user's vector with flat observations, actions in [-1, 1], and `info` as guarded environments give it."""

    def __init__(self, spec: Any, plan: Plan, count: int, faults: np.ndarray):
        self.plan, self.num_envs, self.faults = plan, count, int(faults.max(initial=0))
        self.timeout = allowance(spec.task, plan.timeout, count)
        self.reading = Reading(plan.border, plan.cost_fn)
        self.vector: Any = None
        self.steps = 0
        self.first_seed: int | None = None
        self._make()
        self.metadata = {**self.vector.metadata, "autoreset_mode": mode_of(self.vector)}
        self.single_observation_space = Box(-np.inf, np.inf, (spec.obs_size,), np.float32)
        self.single_action_space = Box(-1.0, 1.0, (spec.action_size,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)

    def _make(self) -> None:
        self.vector = self.plan.make(num_envs=self.num_envs)  # type: ignore[call-arg]
        if self.vector.num_envs != self.num_envs:
            raise EnvError(f"the factory was asked for num_envs = {self.num_envs} and made {self.vector.num_envs}")
        self.resetting = np.zeros(self.num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None):
        if seed is not None:
            self.first_seed = seed[0]
        try:
            with alarm(self.timeout):
                obs, _ = self.vector.reset(seed=seed, options=options)
            return self._flat(obs), {}
        except ContractError as error:
            return self._empty(), self._fatal(f"after reset: {error}")
        except FAILURES as error:
            return self._restart(error)

    def step(self, actions: np.ndarray):
        self.steps += 1
        try:
            with alarm(self.timeout):
                return self._step(actions)
        except ContractError as error:
            no = np.zeros(self.num_envs, bool)
            return self._empty(), no.astype(float), no, no, self._fatal(str(error))
        except FAILURES as error:
            obs, infos = self._restart(error)
            no = np.zeros(self.num_envs, bool)
            return obs, no.astype(float), no, no, infos

    def _step(self, actions: np.ndarray):
        before, taken = self.raw, actions_of(self.vector, self.reading, actions)
        obs, reward, terminated, truncated, infos = self.vector.step(taken)
        flat = self._flat(obs)
        finite("a reward", reward)
        ended = np.asarray(terminated) | np.asarray(truncated)
        same_step = self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
        cost = np.zeros((self.num_envs, len(self.plan.cost_names)), np.float32)
        final = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(~self.resetting).tolist():
            info, now = info_of(infos, i), self.raw[i]
            if same_step and ended[i]:
                now, info = info["final_obs"], info.get("final_info", info)
                final[i] = self.plan.border.flat(now)
                finite("an observation", final[i])
            cost[i] = costs.channels(read_costs(self.reading, info, before[i], taken[i], now), self.plan.cost_names)
        self.resetting = ended & (self.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP)
        known = np.ones(self.num_envs, bool)
        infos = {"tqpo_cost": cost, "_tqpo_cost": known}
        if same_step and ended.any():
            infos |= {"final_obs": final, "_final_obs": ended, "final_info": {}}
        return flat, np.asarray(reward, float), np.array(terminated, bool), np.array(truncated, bool), infos

    def _flat(self, obs: Any) -> np.ndarray:
        raw = list(iterate(self.vector.observation_space, obs))
        flat = np.stack([self.plan.border.flat(x) for x in raw])
        finite("an observation", flat)
        self.raw = copy.deepcopy(raw) if self.plan.cost_fn else raw
        return flat

    def _restart(self, error: BaseException) -> tuple[np.ndarray, dict[str, Any]]:
        self.faults += 1
        trace = "".join(traceback.format_exception(error)).rstrip()
        report = f"the vector, step {self.steps}: {type(error).__name__}: {error}\n{trace}"
        if self.faults > self.plan.restarts:
            return self._empty(), self._fatal(f"{report}\n{limit(self.plan.restarts)}")
        with contextlib.suppress(*FAILURES), alarm(min(self.plan.timeout, 5.0)):
            self.vector.close()
        try:
            with alarm(self.timeout):
                self._make()
                seed = None if self.first_seed is None else (self.first_seed + SEED_STEP * self.faults) % 2**31
                obs = self._flat(self.vector.reset(seed=seed)[0])
        except FAILURES as again:
            return self._restart(again)
        every = np.ones(self.num_envs, bool)
        reports = np.full(self.num_envs, None, object)
        reports[0] = report
        counts = np.full(self.num_envs, self.faults)
        return obs, {"tqpo_lost": reports, "_tqpo_lost": every, "tqpo_faults": counts, "_tqpo_faults": every}

    def _fatal(self, text: str) -> dict[str, Any]:
        first = np.arange(self.num_envs) == 0
        report = text if text.startswith("the vector") else f"the vector, step {self.steps}: {text}"
        return {"tqpo_fatal": np.full(self.num_envs, report, object), "_tqpo_fatal": first}

    def _empty(self) -> np.ndarray:
        return np.zeros((self.num_envs, self.plan.border.obs_size), np.float32)

    def close_extras(self, **_: Any) -> None:
        if self.vector is not None:
            self.vector.close()


__all__ = ["OwnVector", "first_costs", "info_of", "mode_of"]
