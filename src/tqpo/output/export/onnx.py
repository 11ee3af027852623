"""ONNX: the graph is built by hand from the weights, in operators that every runtime has."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tqpo import networks
from tqpo.errors import ConfigError
from tqpo.evaluation.episodes import ActorPolicy, Dial
from tqpo.maths.distribution import Choices
from tqpo.maths.normalize import CLIP, scale
from tqpo.output.export import card

OPSET, IR = 17, 8  # of 2022: read by onnxruntime from 1.12 on
DTYPES = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32}


class Graph:
    """Nodes and constants, in order. An operator takes and gives names. Weights of a dial are those of its position."""

    def __init__(self, dial: bool) -> None:
        self.dial = dial
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def __call__(self, kind: str, *inputs: str, gives: str = "", **attributes: Any) -> str:
        """Adds an operator with one output, named `gives` if that is given."""
        name = gives or f"x_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def weight(self, value: Any) -> str:
        name = self.constant(value)
        return self("Gather", name, "position", axis=0) if self.dial else name

    def linear(self, x: str, weight: Any, bias: Any) -> str:
        return self("Gemm", x, self.weight(weight), self.weight(bias))


def encode(policy: ActorPolicy | Dial, facts: Mapping[str, Any]) -> bytes:
    """The file's content; `facts` become its metadata, as text or JSON, and the card its description."""
    graph = Graph(isinstance(policy, Dial))
    policy = policy.policies if isinstance(policy, Dial) else policy
    actor, moments = policy.actor, policy.moments
    obs = graph("Concat", "obs", "budget", axis=1) if facts["budget"] else "obs"
    centred = graph("Sub", obs, graph.weight(moments.mean))
    x = clip(graph, graph("Div", centred, graph.weight(scale(moments))), CLIP)
    if not isinstance(actor.body, networks.MLP):
        raise ConfigError("a policy with a trunk of its own: --to stablehlo exports it")
    for layer in actor.body.layers:
        x = activate(graph, actor.body.activation, graph.linear(x, layer.weight, layer.bias))
    if actor.lstm is not None:
        x = graph("Add", x, cell(graph, actor.lstm, x))
    read_action(graph, actor, x)
    if facts["action"] is not None:
        give_action(graph, facts["action"])
    inputs, outputs = ports(facts["inputs"]), ports(facts["outputs"])
    model = helper.make_model(
        helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="tqpo",
        doc_string=card.markdown(facts, "onnx"),
    )
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()}
    helper.set_model_props(model, texts)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def activate(graph: Graph, name: str, x: str) -> str:
    if name == "silu":
        return graph("Mul", x, graph("Sigmoid", x))
    return graph({"tanh": "Tanh", "relu": "Relu", "elu": "Elu"}[name], x)


def clip(graph: Graph, x: str, limit: float, gives: str = "") -> str:
    return graph("Clip", x, graph.constant(-limit), graph.constant(limit), gives=gives)


def cell(graph: Graph, lstm: networks.LSTM, features: str) -> str:
    """One step of the LSTM, `networks._cell`: gives h_next, and c_next beside it."""
    reward = graph("Unsqueeze", "prev_reward", graph.constant([1], np.int64))
    x = graph("Concat", features, "prev_action", reward, axis=1)
    inputs = graph.linear(x, lstm.weight_in, np.asarray(lstm.bias).sum(-2))
    gates = graph("Add", inputs, graph("MatMul", "h", graph.weight(lstm.weight_rec)))
    pieces = [f"gate_{name}" for name in "ifgo"]
    graph.nodes.append(helper.make_node("Split", [gates], pieces, axis=1))
    kinds = ("Sigmoid", "Sigmoid", "Tanh", "Sigmoid")
    i, f, g, o = (graph(kind, piece) for kind, piece in zip(kinds, pieces, strict=True))
    graph("Add", graph("Mul", f, "c"), graph("Mul", i, g), gives="c_next")
    return graph("Mul", o, graph("Tanh", "c_next"), gives="h_next")


def read_action(graph: Graph, actor: networks.Actor, features: str) -> None:
    out = graph.linear(features, actor.mean.weight, actor.mean.bias)
    if actor.log_std is not None and not isinstance(actor.log_std, Choices):
        clip(graph, graph("Tanh", out), 1.0, gives="action")
        graph("Identity", graph.weight(actor.log_std), gives="log_std")
        return
    graph("Identity", out, gives="logits")
    several = isinstance(actor.log_std, Choices)
    sizes = actor.log_std.sizes if isinstance(actor.log_std, Choices) else (actor.mean.bias.shape[-1],)
    pieces = [f"logits_{k}" for k in range(len(sizes))] if several else [out]
    if several:
        graph.nodes.append(helper.make_node("Split", [out, graph.constant(sizes, np.int64)], pieces, axis=1))
    chosen = [graph("ArgMax", piece, axis=1, keepdims=int(several)) for piece in pieces]
    index = graph("Concat", *chosen, axis=1) if several else chosen[0]
    graph("Cast", index, gives="index", to=TensorProto.INT32)
    flat = [graph("Squeeze", c, graph.constant([1], np.int64)) for c in chosen] if several else chosen
    pairs = zip(flat, sizes, strict=True)
    hot = [graph("OneHot", c, graph.constant(n, np.int64), graph.constant([0.0, 1.0]), axis=1) for c, n in pairs]
    graph("Concat", *hot, axis=1, gives="action")


def give_action(graph: Graph, form: Mapping[str, Any]) -> None:
    """The action as the environment takes it: start + index, or low + (action + 1)/2·(high − low)."""
    if "start" in form:
        graph("Add", "index", graph.constant(form["start"], np.int32), gives="env_action")
        return
    low, high = np.array(form["low"], np.float32), np.array(form["high"], np.float32)
    shaped = graph("Reshape", "action", graph.constant([-1, *low.shape], np.int64))
    share = graph("Div", graph("Add", shaped, graph.constant(1.0)), graph.constant(2.0))
    graph("Add", graph.constant(low), graph("Mul", share, graph.constant(high - low)), gives="env_action")


def ports(described: list[dict[str, Any]]) -> list[Any]:
    return [helper.make_tensor_value_info(p["name"], DTYPES[p["dtype"]], p["shape"]) for p in described]
