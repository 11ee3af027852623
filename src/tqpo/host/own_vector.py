"""A vector that the user's factory made, `factory(num_envs=N)`, in any of Gymnasium's autoreset modes.

Its environments cannot be restarted one by one, so a fault in any of them builds the whole vector anew.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate

from tqpo.host import costs
from tqpo.host.reference import allowance
from tqpo.host.spaces import ContractError, finite
from tqpo.host.spec import HostSpec
from tqpo.host.transition import Transition, beginning


def info_of(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """The info of environment i, out of the infos of all."""
    mine = {}
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        said = infos.get(f"_{key}")
        if said is None or said[i]:
            mine[key] = info_of(value, i) if isinstance(value, dict) else value[i]
    return mine


def mode_of(vector: Any) -> AutoresetMode:
    mode = vector.metadata.get("autoreset_mode")
    if mode is None:
        raise ContractError('the vector\'s metadata has no "autoreset_mode": a gymnasium.vector.AutoresetMode')
    return AutoresetMode(mode)


class OwnVector:
    """The user's vector of `count` environments, watched as a `Guard` watches one."""

    def __init__(self, spec: HostSpec, count: int):
        self.spec, self.count = spec, count
        self.timeout = allowance(spec.task, spec.options.timeout, count)
        self.mode = AutoresetMode(spec.autoreset)
        self.env: Any = None
        self.obs: list[Any] = []  # as `cost_fn` sees them
        self.costs: dict[str, Any] = {}  # by name, of the last step of one of them
        self.resetting = np.zeros(count, bool)  # in NEXT_STEP mode: the next step only resets
        self.steps = 0

    def where(self) -> str:
        return f"the vector, step {self.steps}"

    def reset(self, seeds: Sequence[int | None] | None, options: Any = None) -> list[Transition]:
        if self.env is None:
            self.env = self.spec.make(num_envs=self.count)
        if self.env.num_envs != self.count:
            raise ContractError(f"the factory was asked for num_envs = {self.count} and made {self.env.num_envs}")
        self.resetting[:] = False
        obs = self._read(self.env.reset(seed=seeds, options=options)[0])
        return [beginning(x, len(self.spec.cost_names)) for x in obs]

    def step(self, actions: np.ndarray) -> list[Transition]:
        self.steps += 1
        before, taken = self.obs, self.spec.border.action(actions)
        obs, reward, terminated, truncated, infos = self.env.step(taken)
        flat = self._read(obs)
        finite("a reward", reward)
        rows = []
        for i in range(self.count):
            if self.resetting[i]:
                rows.append(beginning(flat[i], len(self.spec.cost_names)))
                continue
            info, now, next_obs = info_of(infos, i), self.obs[i], flat[i]
            ends = bool(terminated[i]), bool(truncated[i])
            if any(ends) and self.mode == AutoresetMode.SAME_STEP:
                now, info = info["final_obs"], info.get("final_info", info)
                next_obs = self.spec.border.flat(now)
            self.costs = costs.read(self.spec.cost_function, before[i], taken[i], now, info)
            cost = costs.channels(self.costs, self.spec.cost_names)
            rows.append(Transition(flat[i], next_obs, float(reward[i]), cost, *ends))
        self.resetting = np.array([row.ended for row in rows]) & (self.mode == AutoresetMode.NEXT_STEP)
        return rows

    def renew(self, rows: list[Transition]) -> list[Transition]:
        if self.mode != AutoresetMode.DISABLED:
            return rows
        fresh = self.reset(None, {"reset_mask": np.array([row.ended for row in rows])})
        return [row._replace(obs=new.obs) for row, new in zip(rows, fresh, strict=True)]

    def _read(self, obs: Any) -> list[np.ndarray]:
        self.obs = [self.spec.keep(x) for x in iterate(self.env.observation_space, obs)]
        return [self.spec.border.flat(x) for x in self.obs]
