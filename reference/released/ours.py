"""This package on the fixed batch, beside what the released code said of it (`theirs`).

`python -m reference.released.ours [--out results/released-code] [--page docs/reproduction.md]` writes the table of every quantity.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from reference.released import batch as given
from tqpo import algorithms
from tqpo.algorithms import dual, episodes, learner, qcpo, tqpo
from tqpo.algorithms.presets import preset
from tqpo.algorithms.rollout import Rollout, no_cuts
from tqpo.maths import distribution, normalize, quantile, weibull
from tqpo.networks import LSTM, MLP, Actor, Linear, Memory, Network, NetworkSpec
from tqpo.provenance import provenance
from tqpo.reproduce import document
from tqpo.reproduce.tables import Content, markdown
from tqpo.types import Array, Batch

EQUAL = 1e-5
SMALL = {"network": NetworkSpec("lstm", (given.WIDTH, given.WIDTH), "torch"), "segment": given.SEGMENT}
SIZES = {"n_envs": given.EPISODES, "n_steps": given.LENGTH, "safety": 1 - given.OUTAGE, "cost_limit": given.COST_LIMIT}
Outputs = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """All that a learner asks of an environment."""

    obs_size: int = given.OBS
    action_size: int = given.ACTIONS
    discrete: bool = False
    cost_names: tuple[str, ...] = ("cost",)
    max_steps: int = given.LENGTH
    min_steps: int = given.LENGTH


def in_time(x: np.ndarray) -> Array:
    """[120, …] steps of one episode after another → [40, 3, …]."""
    return jnp.swapaxes(jnp.asarray(x).reshape(given.EPISODES, given.LENGTH, *x.shape[1:]), 0, 1)


def flat(x: Array) -> np.ndarray:
    """[40, 3, …] → [120, …]."""
    return np.asarray(jnp.swapaxes(x, 0, 1).reshape(given.STEPS, *x.shape[2:]))


def network_of(weights: dict[str, np.ndarray], heads: Any) -> Network:
    """PyTorch's weights in our network."""
    w = {name: jnp.asarray(x) for name, x in weights.items()}

    def linear(name: str) -> Linear:
        return Linear(w[f"{name}.weight"].T, w[f"{name}.bias"])

    bias = jnp.stack([w["lstm.bias_ih_l0"], w["lstm.bias_hh_l0"]])
    lstm = LSTM(w["lstm.weight_ih_l0"].T, w["lstm.weight_hh_l0"].T, bias)
    actor = Actor(MLP((linear("body.model.0"), linear("body.model.2"))), lstm, linear("mu.0"), w["log_std"])
    read = [linear(name) for name in readouts(weights)]
    readout = Linear(jnp.concatenate([r.weight for r in read], 1), jnp.concatenate([r.bias for r in read]))
    return Network(actor, {}, {"critic": readout}, heads)


def readouts(weights: dict[str, np.ndarray]) -> list[str]:
    """The heads' names in PyTorch, in the order of ours."""
    return [name for name in ("value", "constraint", "w_alpha.0", "w_beta") if f"{name}.weight" in weights]


def named(network: Network, weights: dict[str, np.ndarray]) -> Outputs:
    """Our network's numbers (or their gradients) under PyTorch's names."""
    actor: Any = network.actor
    found = {"log_std": actor.log_std, "mu.0": actor.mean, "body.model.0": actor.body.layers[0]}
    found |= {"body.model.2": actor.body.layers[1]}
    start = 0
    for name in readouts(weights):
        stop = start + len(weights[f"{name}.bias"])
        all_ = network.readouts["critic"]
        found[name], start = Linear(all_.weight[:, start:stop], all_.bias[start:stop]), stop
    out = {f"{k}.{part}": getattr(x, part).T for k, x in found.items() if k != "log_std" for part in ("weight", "bias")}
    out |= {"lstm.weight_ih_l0": actor.lstm.weight_in.T, "lstm.weight_hh_l0": actor.lstm.weight_rec.T}
    out |= {"lstm.bias_ih_l0": actor.lstm.bias[0], "lstm.bias_hh_l0": actor.lstm.bias[1], "log_std": actor.log_std}
    return {name: np.asarray(x) for name, x in out.items()}


def rollout_of(data: dict[str, np.ndarray], algorithm: str) -> Rollout:
    """The batch as our rollout gives it."""
    x = {name: in_time(data[name]) for name in ("observation", "action", "mean", "log_std", "reward", "done")}
    heads = {"tqpo": ("value", "cost_value"), "qcpo": ("value", "quantiles", "shape", "scale")}[algorithm]

    def values(part: slice) -> dict[str, Array]:
        # one constraint: [..., K] with K = 1, and [..., K, 25] for the quantiles
        return {name: in_time(data[name][part] if name == "value" else data[name][part][:, None]) for name in heads}

    log_prob = distribution.log_prob(x["mean"], x["log_std"], x["action"])
    never = jnp.zeros_like(x["done"])
    batch = Batch(
        x["observation"],
        x["action"],
        log_prob,
        x["reward"],
        in_time(data["cost"][:, None]),
        never,
        x["done"],
        x["observation"],
    )
    first = jnp.broadcast_to((jnp.arange(given.LENGTH) == 0)[:, None], never.shape)
    memory = Memory(*(in_time(data[name])[:: given.SEGMENT] for name in ("h", "c")))
    action, reward = (in_time(data[name]) for name in ("prev_action", "prev_reward"))
    return Rollout(batch, first, action, reward, memory, values(slice(0, -1)), values(slice(1, None)))


def start(algorithm: str, config: Any, data: dict[str, np.ndarray]) -> tuple[Any, learner.Experience]:
    """The state with the given weights, normaliser and history, and the batch with what the network said of it."""
    module: Any = algorithms.get(algorithm)
    state = module.init(jax.random.key(0), Sizes(), config)
    weights = {k.split(":")[1]: v for k, v in data.items() if k.startswith(f"{algorithm}:")}
    network = network_of(weights, state.learner.network.heads)
    past = jnp.stack([jnp.zeros(given.PAST_EPISODES), jnp.asarray(given.past_episode_costs())])  # returns, costs
    push = jax.vmap(quantile.window_push, in_axes=(0, 0, None))
    recent = push(state.learner.episodes.recent, past, jnp.ones(given.PAST_EPISODES, bool))
    core = state.learner._replace(
        iteration=jnp.ones((), jnp.int32),
        network=network,
        opt_state=learner._adam(config.learner).init(network),  # pyright: ignore[reportPrivateUsage, reportArgumentType]
        moments=normalize.merge(normalize.init(given.OBS), jnp.asarray(data["observation_before"])),
        episodes=state.learner.episodes._replace(recent=recent),
    )
    seen, whole = rollout_of(data, algorithm), no_cuts(config.learner.n_envs, config.learner.n_steps)
    core, experience = learner.examine(core, seen, config.learner, given.EPISODES, whole)
    state = state._replace(learner=core)
    if algorithm == "tqpo":
        steps = tqpo.push_steps(state.steps, jnp.asarray(given.past_cost_returns())[:, None, None], 1)
        state = state._replace(steps=steps)
    return state, experience


def returns(algorithm: str, config: Any, experience: learner.Experience, core: learner.LearnerState) -> Outputs:
    """Advantages, returns, and what QCPO makes of its quantiles."""
    advantage, value = learner.reward_targets(experience, config.learner)
    cost = experience.rollout.batch.cost / config.dual.cost_scale
    name = {"tqpo": "cost_value", "qcpo": "quantiles"}[algorithm]
    said, after = (v[name] for v in (experience.values, experience.next_values))
    if algorithm == "qcpo":
        said, after = said.mean(-1), after.mean(-1)
    _, cost_return = learner.cost_targets(experience, cost, said, after, config.learner)
    found = {
        "reward_return": flat(value),
        "reward_advantage": flat(advantage),
        "cost_return": flat(cost_return[..., 0]),
    }
    found["episode_quantile"] = np.asarray(episodes.estimate(core.episodes, config.constraints).bounded[0])
    if algorithm == "qcpo":
        found["quantile_advantage"] = flat(qcpo.quantile_advantage(experience, cost, config)[..., 0])
        found["quantile_target"] = flat(qcpo.quantile_targets(experience, cost, config)[..., 0, :])
    return found


def multiplier_steps(config: Any) -> Outputs:
    """λ and its rates over made-up quantiles."""

    def one(state: dual.DualState, q: Array):
        known = episodes.Estimates(q[None], q[None], q[None], q[None], jnp.array(100))
        state, metrics = dual.step(state, known, config.constraints, config.dual, jnp.array(1), tqpo.tilt)
        return state, (metrics["multiplier"][0], jnp.stack([metrics["tilt_up"][0], metrics["tilt_down"][0]]))

    _, (multiplier, rates) = jax.lax.scan(one, dual.init(config.dual, 1), jnp.asarray(given.made_up_quantiles()))
    return {"steps:multiplier": np.asarray(multiplier), "steps:tilt": np.asarray(rates)}


def update(algorithm: str, config: Any, data: dict[str, np.ndarray]) -> Outputs:
    """One iteration: losses, gradients, weights, λ, q, the normaliser."""
    module: Any = algorithms.get(algorithm)
    weights = {k.split(":")[1]: v for k, v in data.items() if k.startswith(f"{algorithm}:")}
    state, experience = start(algorithm, config, data)
    learn = jax.jit(functools.partial(module.learn))  # a new object each time: what is known is not traced again
    after, metrics = learn(state, experience, config)
    found = {"multiplier": after.dual.multiplier[0]}
    found |= {f"weight:{name}": x for name, x in named(after.learner.network, weights).items()}
    if config.learner.epochs == 1:
        losses = ("value_loss", "cost_value_loss", "loss", "policy_loss", "quantile_loss", "tail_loss")
        found |= {name: metrics[name] for name in losses if name in metrics}
        found |= {"constraint_loss": metrics["constraint_loss"][0]}
        found |= {"normaliser_mean": after.learner.moments.mean, "normaliser_var": after.learner.moments.var}
        first_moment = after.learner.opt_state.mu  # (1 − 0.9)·gradient after one step
        found |= {f"gradient:{name}": x / 0.1 for name, x in named(first_moment, weights).items()}
        if algorithm == "tqpo":
            found |= {"q_step": after.q[0], "tilt": jnp.stack([metrics["tilt_up"][0], metrics["tilt_down"][0]])}
            cost_return = returns(algorithm, config, experience, state.learner)["cost_return"]
            found |= {"indicator": tqpo.exceedance(jnp.asarray(cost_return), after.q[0])}
    return {name: np.asarray(x) for name, x in found.items()}


def outputs(algorithm: str, preset_name: str = "released", epochs: tuple[int, ...] = (1, 8), **changes: Any) -> Outputs:
    """All quantities, in double precision, with the small sizes of the batch; `changes` are settings by name."""
    data = given.inputs()
    config = functools.partial(preset, preset_name, algorithm, **(SMALL | SIZES | changes))
    with jax.enable_x64(True):
        one = config(epochs=1)
        state, experience = start(algorithm, one, data)
        found = returns(algorithm, one, experience, state.learner) | multiplier_steps(one)
        for n, prefix in {1: "", 8: "eight_epochs:"}.items():
            if n in epochs:
                found |= {f"{prefix}{name}": x for name, x in update(algorithm, config(epochs=n), data).items()}
        return found


@contextlib.contextmanager
def unbiased():
    """The one difference without a switch: PyTorch's standard deviation divides by N − 1 (`weibull.density_ratio_weight`)."""
    usual, spread = weibull.density_ratio_weight, 5.0 * math.sqrt(given.STEPS / (given.STEPS - 1))
    weibull.density_ratio_weight = functools.partial(usual, spread=spread)
    try:
        yield
    finally:
        weibull.density_ratio_weight = usual


class Fixture(NamedTuple):
    provenance: dict[str, Any]
    outputs: dict[str, Outputs]  # by algorithm


def read_fixture(path: pathlib.Path = pathlib.Path(given.FIXTURE)) -> Fixture:
    """What the released code said."""
    with np.load(path) as file:
        found: dict[str, Outputs] = {"tqpo": {}, "qcpo": {}}
        for name in (n for n in file.files if ">" in n):
            algorithm, quantity = name.split(">")
            found[algorithm][quantity] = file[name]
        return Fixture(json.loads(str(file["provenance"])), found)


def step_of(found: Outputs, algorithm: str) -> Outputs:
    """Weights as the way that Adam went, in learning rates a step: a weight hides an error of its step."""
    data = given.inputs()
    return {
        name: (x - data[f"{algorithm}:{name.split('weight:')[1]}"]) / (8e-4 if name.startswith("eight") else 1e-4)
        if "weight:" in name
        else x
        for name, x in found.items()
    }


def differences(algorithm: str, ours: Outputs, theirs: Outputs) -> dict[str, float]:
    """The largest |ours − theirs| of every quantity that both give."""
    mine, other = step_of(ours, algorithm), step_of(theirs, algorithm)
    return {name: float(np.max(np.abs(mine[name] - x))) for name, x in other.items() if name in mine}


class Row(NamedTuple):
    """Quantities that one line of the table stands for, and why they differ where they do."""

    title: str
    names: str  # their common beginning
    why: str = ""


SEGMENTS = "GAE's sum stops at the end of each segment there, at the end of the episode here (`gae_segments`)"
FOLLOWS = "follows from the rows above"
ROUNDED = f"{FOLLOWS}; QCPO's τ are in single precision there, and Adam enlarges what is near 0"
ROWS = (
    Row("normaliser: mean and variance", "normaliser"),
    Row("advantage of the reward", "reward_advantage", SEGMENTS),
    Row("return of the reward", "reward_return", SEGMENTS),
    Row("cost to go", "cost_return", SEGMENTS),
    Row("quantile targets", "quantile_target"),
    Row("quantile advantage with the Weibull densities", "quantile_advantage", SEGMENTS),
    Row("quantile of the episode costs", "episode_quantile", "the 91st of 100 there, the 90th here (`upper`)"),
    Row("quantile of the costs to go", "q_step", FOLLOWS),
    Row("indicator", "indicator", FOLLOWS),
    Row("loss of the policy, reward", "policy_loss", SEGMENTS),
    Row("loss of the policy, constraint", "constraint_loss", FOLLOWS),
    Row("loss of the value", "value_loss", SEGMENTS),
    Row("loss of the cost value", "cost_value_loss", SEGMENTS),
    Row("loss of the quantiles (Huber)", "quantile_loss"),
    Row("loss of the Weibull fit", "tail_loss"),
    Row("loss in all, (… + λ·…)/(1 + λ)", "loss", FOLLOWS),
    Row("gradient of every parameter", "gradient:", FOLLOWS),
    Row("Adam's step, in learning rates", "weight:", FOLLOWS),
    Row("the same after eight epochs", "eight_epochs:weight:", ROUNDED),
    Row("λ after this batch", "multiplier", "the quantile above, and F_q(d) below"),
    Row("λ over 120 made-up quantiles", "steps:multiplier", "F_q(d) below"),
    Row(
        "tilt over 120 made-up quantiles",
        "steps:tilt",
        "F_q(d) is 0 for ever there: 101 of 100 are waited for (`count_from`)",
    ),
)


def table(theirs: Fixture) -> tuple[Content, dict[str, dict[str, float]]]:
    """Every quantity under the presets `released` and `paper`, and the differences that it is made of."""
    columns = [(algorithm, name) for algorithm in ("tqpo", "qcpo") for name in ("released", "paper")]
    found = {}
    with unbiased():
        for algorithm, name in columns:
            ours = outputs(algorithm, name)
            found[f"{algorithm} {name}"] = differences(algorithm, ours, theirs.outputs[algorithm])

    def entry(row: Row, all_: dict[str, float]) -> str:
        part = row.names.endswith(":") or row.names == "normaliser"
        values = [x for name, x in all_.items() if (name.startswith(row.names) if part else name == row.names)]
        return "–" if not values else "equal" if max(values) <= EQUAL else f"{max(values):.2g}"

    rows = []
    for row in ROWS:
        entries = [entry(row, found[f"{algorithm} {name}"]) for algorithm, name in columns]
        rows.append((row.title, *entries, row.why if any(x not in ("–", "equal") for x in entries) else ""))
    heads = ("quantity", "TQPO, `released`", "TQPO, `paper`", "QCPO, `released`", "QCPO, `paper`", "why")
    return Content("Largest difference from the authors' code on one batch; equal: within 1e-5", heads, rows), found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reference.released.ours", description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results/released-code"))
    parser.add_argument("--page", type=pathlib.Path, help="also put the table into this page, between its marks")
    asked = parser.parse_args()
    theirs = read_fixture()
    content, found = table(theirs)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "table.md").write_text(markdown(content))
    facts = {"differences": found, "released": theirs.provenance, "provenance": provenance()}
    (asked.out / "differences.json").write_text(json.dumps(facts, indent=1) + "\n")
    if asked.page:
        document.write_page(asked.page, asked.out, [content])
    print(markdown(content))


if __name__ == "__main__":
    main()
