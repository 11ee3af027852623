"""The policies of a run: out of a training state, to disk and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from tqpo import networks, store
from tqpo.errors import ConfigError, StoreError
from tqpo.evaluation.episodes import ActorPolicy, Dial
from tqpo.maths.normalize import Moments
from tqpo.training.job import Prepared, has_dial
from tqpo.training.program import Group
from tqpo.types import Env, PyTree, Spec, choices, obs_shape


def policies_of(state: PyTree, group: Group) -> ActorPolicy:
    """The actors of all runs with their normalisers, [runs, …], as they act once they are kept: with `acting_noise`, and with
    `acting_average` those that were averaged."""
    actor = state.learner.network.actor if state.learner.average is None else state.learner.average
    if isinstance(actor.log_std, jax.Array):
        share = jnp.array([config.learner.acting_noise for config in group.configs])
        actor = eqx.tree_at(lambda a: a.log_std, actor, actor.log_std + jnp.log(share)[:, None])
    return ActorPolicy(actor, state.learner.moments)


def save_policies(folder: store.Run, prepared: Prepared, policies: ActorPolicy, chosen: list) -> None:
    """The policies of all seeds with their frozen normalisers, [runs, …] or of dials [runs, positions, …], in one file."""
    description = {name: getattr(prepared.env, name) for name in ("obs_size", "action_size", "discrete")} | {
        "network": dataclasses.asdict(prepared.config.learner.network),
        "obs_shape": list(obs_shape(prepared.env)),
        "choices": list(choices(prepared.env)),
        "action": action_form(prepared.env),
        "budget": budget_form(prepared.env),
        "seeds": list(prepared.job.seeds),
        "chosen": chosen,
    }
    if has_dial(prepared.config):
        description["positions"] = int(policies.moments.mean.shape[1])
    folder.save_policy(policies, description)


def action_form(env: Spec) -> dict[str, Any] | None:
    """How an action becomes what an environment on the host takes; None: as it is."""
    if isinstance(env, Env):
        return None
    host: Any = env
    return host.border.describe_action()


def budget_form(env: Spec) -> dict[str, Any] | None:
    """What a policy must be told of its budget, as `envs.budget.Budget` takes it; None: it does not look at one."""
    budget = getattr(env, "budget", None)
    return None if budget is None else dataclasses.asdict(budget) | {"cost_names": list(env.cost_names)}


def template(description: Mapping[str, Any]) -> ActorPolicy:
    """The shape of the policies that a description speaks of, [runs, …] or of dials [runs, positions, …]."""
    try:
        network = dict(description["network"])
        spec = networks.NetworkSpec(**{**network, "hidden": tuple(network["hidden"])})
        obs, action = description["obs_size"], description["action_size"]
        shape = (len(description["seeds"]), *([description["positions"]] if "positions" in description else []))
    except (KeyError, TypeError) as error:
        raise StoreError(f"policy.json does not describe a policy: {error}") from None

    def build(key):
        spaces = {name: tuple(description.get(name) or ()) for name in ("obs_shape", "choices")}
        discrete = bool(description.get("discrete", False))
        actor = networks.make_network(key, spec, obs, action, {}, discrete=discrete, **spaces).actor
        return ActorPolicy(actor, Moments(*(jax.numpy.zeros(s) for s in ((obs,), (obs,), ()))))

    for _ in shape:
        build = jax.vmap(build)
    return eqx.filter_eval_shape(build, jax.random.split(jax.random.key(0), shape))


def load_policies(folder: store.Run) -> dict[int, ActorPolicy]:
    """The policy of each seed; of one with a dial, at the position that training chose."""
    description, stacked = load_stacked(folder)
    own = {seed: jax.tree.map(lambda x, i=i: x[i], stacked) for i, seed in enumerate(description["seeds"])}
    if "positions" not in description:
        return own
    return {entry["seed"]: Dial(own[entry["seed"]]).at(entry["position"]) for entry in description["chosen"]}


def load_dial(folder: store.Run, seed: int) -> Dial | None:
    """The dial of a seed; None in a run without."""
    description, stacked = load_stacked(folder)
    if "positions" not in description:
        return None
    place = description["seeds"].index(seed)
    return Dial(jax.tree.map(lambda x: x[place], stacked))


def load_stacked(folder: store.Run) -> tuple[dict[str, Any], ActorPolicy]:
    """What `policy.json` says, and all policies of a run in one."""
    _, description = folder.load_policy()
    stacked, description = folder.load_policy(template(description))
    return description, stacked


def load_policy(folder: store.Run, seed: int | None = None) -> tuple[int, ActorPolicy]:
    """The policy of one seed, by default the first, and which seed that is."""
    policies = load_policies(folder)
    seed = next(iter(policies)) if seed is None else seed
    if seed not in policies:
        raise ConfigError(f"seed = {seed}: this run has {', '.join(map(str, policies))}")
    return seed, policies[seed]
