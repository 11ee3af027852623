"""StableHLO by `jax.export`: a function of a dict of inputs that gives a dict of outputs, for CPUs, GPUs and TPUs.

    exported = jax.export.deserialize(bytearray(path.read_bytes()))
    outputs = exported.call({"obs": obs})

`exported.mlir_module()` is its text, `exported.mlir_module_serialized` the portable bytecode for programs without JAX.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from tqpo import networks
from tqpo.evaluation.episodes import ActorPolicy, Dial
from tqpo.host.actions import to_env
from tqpo.maths import distribution, normalize
from tqpo.types import Array

PLATFORMS = ("cpu", "cuda", "tpu")


def encode(policy: ActorPolicy | Dial, facts: Mapping[str, Any]) -> bytes:
    """The file's content."""
    (batch,) = jax.export.symbolic_shape("batch")
    shapes = {
        port["name"]: jax.ShapeDtypeStruct(tuple(batch if n == "batch" else n for n in port["shape"]), port["dtype"])
        for port in facts["inputs"]
    }

    def at(inputs: dict[str, Array]) -> ActorPolicy:
        return policy.at(inputs["position"]) if isinstance(policy, Dial) else policy

    program = jax.jit(lambda inputs: give_action(facts["action"], step(at(inputs), inputs)))
    return bytes(jax.export.export(program, platforms=PLATFORMS)(shapes).serialize())


def step(policy: ActorPolicy, inputs: dict[str, Array]) -> dict[str, Array]:
    """`ActorPolicy.act` without noise; its memory is an input and an output."""
    obs = jnp.concatenate([inputs["obs"], inputs["budget"]], -1) if "budget" in inputs else inputs["obs"]
    actor, x = policy.actor, normalize.normalize(policy.moments, obs)
    recurrent = actor.lstm is not None
    memory = networks.Memory(inputs["h"], inputs["c"]) if recurrent else None
    before = (
        (inputs["prev_action"], inputs["prev_reward"]) if recurrent else (x[..., :0], x[..., 0])
    )  # an MLP does not read them
    mean, log_std, memory, _ = networks.act(actor, x, memory, *before)
    action = distribution.sample(mean, log_std, jnp.zeros_like(mean))
    outputs = {"action": jnp.clip(action, -1.0, 1.0)}
    if isinstance(log_std, jax.Array):
        outputs["log_std"] = log_std
    else:
        index = to_env(action, sizes=log_std.sizes if log_std else None)
        outputs |= {"index": index.astype("int32"), "logits": mean}
    return outputs if memory is None else outputs | {"h_next": memory.h, "c_next": memory.c}


def give_action(form: Mapping[str, Any] | None, outputs: dict[str, Array]) -> dict[str, Array]:
    """Adds the action as the environment takes it: start + index, or low + (action + 1)/2·(high − low)."""
    if form is None:
        return outputs
    if "start" in form:
        return outputs | {"env_action": jnp.asarray(form["start"], "int32") + outputs["index"]}
    low, high = jnp.array(form["low"], "float32"), jnp.array(form["high"], "float32")
    return outputs | {"env_action": to_env(outputs["action"], low, high)}
