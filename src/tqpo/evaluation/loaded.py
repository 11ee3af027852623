"""A trained policy outside of training: observations in, actions out, as NumPy arrays."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tqpo.algorithms.rollout import select
from tqpo.envs.budget import Budget
from tqpo.errors import ActionError, ConfigError
from tqpo.evaluation.episodes import ActorPolicy
from tqpo.host.actions import to_env
from tqpo.types import PyTree

UNTOLD = "this policy sees its budget: call tell(cost) after every step, reset() after an episode"


class Remembered(NamedTuple):
    """What `predict` carries from step to step, of N environments."""

    carry: PyTree  # [N, …] of the network
    spent: np.ndarray  # [N, K] of the limits that it sees
    t: np.ndarray  # [N] steps


class LoadedPolicy:
    """A trained policy. It acts with the kind of action that its verdict is about, `deterministic` (the mean) or sampled.

    Actions are in [-1, 1]; of your own Gymnasium environment they are what its `step` takes. Observations are what it
    gives, flat where it has a dict of them (`gymnasium.spaces.flatten`).
    A recurrent policy remembers: call `reset` when an episode starts, and pass it the reward of the last step.
    A policy that sees its budget (`--algo budget`) must hear what each step cost: `reset()`, then `act(obs)`, `tell(cost)`
    in turn.
    """

    def __init__(
        self,
        policy: ActorPolicy,
        seed: int = 0,
        description: Mapping[str, Any] | None = None,
        deterministic: bool = False,
        certified: Mapping[float, ActorPolicy] | None = None,  # positions of its dial, by their safety; None: no dial
    ):
        self._policy, self.deterministic, self._certified = policy, deterministic, certified
        about = description or {}
        action, budget = about.get("action"), about.get("budget")
        self._budget = None if budget is None else Budget.of(budget)
        self._cost_names = tuple(budget["cost_names"]) if budget else ()
        self._form = {
            name: np.array(x, np.float32 if name in ("low", "high") else int) for name, x in (action or {}).items()
        }
        self._key = jax.random.key(seed)
        self._step = jax.jit(jax.vmap(ActorPolicy.act, (None, 0, 0, 0, None)), static_argnums=4)
        self.obs_size = int(policy.moments.mean.shape[-1]) - (self._budget.size if self._budget else 0)
        self.obs_shape = tuple(about.get("obs_shape") or (self.obs_size,))
        self.reset()

    def __repr__(self) -> str:
        kind = "mean" if self.deterministic else "sampled"
        sees = " and its budget" if self._budget else ""
        return f"<a policy that sees {self.obs_size} numbers{sees}; it acts with {kind} actions, as it was judged>"

    def at(self, safety: float) -> "LoadedPolicy":
        """The policy with its dial at the position that is certified at this level, or at the next higher one."""
        if self._certified is None:
            raise ConfigError("this run has no dial: --algo budget-dial trains one, whose policy stands at any level")
        enough = [level for level in self._certified if level >= safety]
        if not enough:
            known = ", ".join(f"{level:.4g}" for level in sorted(self._certified)) or "none"
            advice = f"tqpo certify RUN --safety {safety:g} finds one"
            raise ConfigError(
                f"safety = {safety}: no position of a dial is certified at it (there are {known}); {advice}"
            )
        other = copy.copy(self)
        other._policy = self._certified[min(enough)]
        other.reset()
        return other

    def reset(self) -> None:
        """Forgets what it saw: a new episode begins."""
        self._state: Remembered | None = None
        self._told: np.ndarray | None = None  # [..., K] costs since the last action
        self._awaited: tuple[int, ...] | None = None  # the shape of the costs of the last action

    def tell(self, cost: Any) -> None:
        """What the last action cost: a number, or the costs by name, as the environment gives them; of a batch, arrays."""
        if self._budget is None:
            return
        by_name = cost if isinstance(cost, Mapping) else {"cost": cost}
        names = [self._cost_names[channel] for channel in self._budget.channels]
        if missing := [name for name in names if name not in by_name]:
            raise ActionError(f"tell(cost): this policy's budget is of {', '.join(names)}; {missing[0]} is missing")
        if self._awaited is None:
            raise ActionError("tell(cost): there is no action yet that it could be the cost of: call act(obs) first")
        costs = np.stack([np.asarray(by_name[name], np.float32) for name in names], -1)
        if costs.shape[:-1] != self._awaited:
            wanted = f"{self._awaited[0]} costs" if self._awaited else "one cost"
            raise ActionError(f"tell(cost): {wanted}, as there were observations; not an array {costs.shape[:-1]}")
        if not np.all(np.isfinite(costs)) or np.any(costs < 0):
            raise ActionError(f"tell(cost): {costs.tolist()}: finite costs that are not negative")
        self._told = costs if self._told is None else self._told + costs

    def act(self, obs: Any, *, deterministic: bool | None = None, reward: float = 0.0) -> Any:
        """The action for an observation: the kind that was judged, or the mean (True) or a sample (False)."""
        action, self._state = self._predict(obs, self._state, None, deterministic, reward)
        return action

    def predict(
        self,
        observation: Any,
        state: Remembered | None = None,
        episode_start: Any = None,
        deterministic: bool | None = None,
        *,
        reward: Any = 0.0,
    ) -> tuple[Any, Remembered | None]:
        """Action and state of one observation, or of a batch of them, as in Stable-Baselines3.

        Give the state back with the next observation, and `episode_start` (bool, [N]) where episodes began. Without a state
        all of them begin. It is None where nothing is remembered. A recurrent policy also reads the last `reward`; one that
        sees its budget must hear `tell(cost)` between two calls.
        """
        action, state = self._predict(observation, state, episode_start, deterministic, reward)
        remembers = self._budget is not None or self._policy.actor.lstm is not None
        return action, state if remembers else None

    def _predict(self, observation: Any, state: Remembered | None, start: Any, deterministic: bool | None, reward: Any):
        obs, single = self._flat(observation)
        n, told, self._told = len(obs), self._told, None
        self._awaited = () if single else (n,)
        fresh = Remembered(jax.tree.map(lambda x: jnp.stack([x] * n), self._policy.init()), *self._unspent(n))
        first = np.ones(n, bool) if state is None else np.zeros(n, bool) if start is None else np.broadcast_to(start, n)
        if state is None:
            state = fresh
        elif len(state.t) != n:
            raise ActionError(f"{n} observations with the state of {len(state.t)}: leave the state out to begin anew")
        elif self._budget is not None and not first.all():
            if told is None:
                raise ActionError(UNTOLD)
            state = state._replace(spent=state.spent + told, t=state.t + 1)
        now: Any = select(jnp.asarray(first), fresh, state)
        if self._budget is not None:
            spent, t = np.asarray(now.spent, np.float32), np.asarray(now.t)
            obs = np.concatenate([obs, self._budget.features(spent, t)], 1)
        rewards = jnp.where(first, 0.0, jnp.broadcast_to(jnp.asarray(reward, float), n))
        self._key, key = jax.random.split(self._key)
        keys = key[None] if single else jax.random.split(key, n)
        mean = self.deterministic if deterministic is None else bool(deterministic)
        action, carry = self._step(self._policy, obs, self._policy.feedback(now.carry, rewards), keys, mean)
        action = self._given(np.clip(np.asarray(action), -1.0, 1.0))
        given = int(action[0]) if single and action.ndim == 1 else action[0] if single else action
        return given, Remembered(carry, np.asarray(now.spent), np.asarray(now.t))

    def _flat(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Observations [N, O], and whether it was a single one."""
        obs = np.asarray(observation, np.float32)
        for single, shape in ((True, obs.shape), (False, obs.shape[1:])):
            if shape in {self.obs_shape, (self.obs_size,)} and np.all(np.isfinite(obs)):
                return obs.reshape(1 if single else len(obs), -1), single
        raise ActionError(f"obs of shape {obs.shape}: this policy takes {self.obs_size} finite numbers")

    def _unspent(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((n, len(self._budget.limits) if self._budget else 0), np.float32), np.zeros(n, int)

    def _given(self, action: np.ndarray) -> Any:
        """Actions [N, A] as the environment takes them."""
        return to_env(action, **self._form) if self._form else action
