"""The model card: what a policy is, how safe it was found to be, where it comes from, and what it is not good for."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tqpo import provenance, store
from tqpo.algorithms.presets import DESCRIPTIONS
from tqpo.envs import make
from tqpo.envs.budget import Budget
from tqpo.envs.observation import Slice, slice_table
from tqpo.evaluation.episodes import ActorPolicy, Dial
from tqpo.host.reference import is_reference
from tqpo.maths.distribution import Choices
from tqpo.maths.statistics import cost_text
from tqpo.training.certificates import certificates_of, circumstances
from tqpo.training.evaluations import evaluations_of, judged_by_mean
from tqpo.training.job import Job

LIMITS = (
    "The safety above is a share of whole episodes of this task, as it is simulated, from its own random starts. It "
    "says nothing about other tasks, dynamics, sensors or starts, and guarantees nothing for a single episode or step.",
    "Each row was measured with the actions that it names, sampled or deterministic (the mean), and holds for those alone.",
    "Observations must come in the task's own order and units. Values far outside those of training are clipped, not "
    "refused.",
    "Memory, where there is any, must be zero at the start of every episode and be fed back at every step.",
)


def facts_of(folder: store.Run, seed: int, policy: ActorPolicy | Dial) -> dict[str, Any]:
    """All that is known of a seed's policy, as plain JSON values: the card, and the metadata of an ONNX file.

    It is read from the folder alone: the environment need not be there.
    """
    job = Job.from_description(folder.config)
    algorithm = folder.config["derived"]["algorithm"]
    _, description = folder.load_policy()
    chosen = {entry["seed"]: entry.get("iteration") for entry in description.get("chosen", [])}
    iterations = math.ceil(job.steps / (algorithm["learner"]["n_envs"] * algorithm["learner"]["n_steps"]))
    last, evaluations = folder.manifest["sessions"][-1], evaluations_of(folder)
    return {
        "task": job.name,
        "task_settings": dict(job.task_settings),
        "algorithm": job.algo,
        "enforces": DESCRIPTIONS.get(job.algo, ("", ""))[0],
        "constraints": constraints_of(algorithm, evaluations),
        "certificates": [certified(entry) for entry in certificates_of(folder) if entry["policy"]["seed"] == seed],
        "evaluations": [summary(evaluation, seed) for evaluation in evaluations],
        "acts_with": "mean" if judged_by_mean(folder) else "sampled",
        "training": {
            "steps": job.steps,
            "iterations": iterations,
            "iteration_of_this_policy": chosen.get(seed),
            "seed": seed,
            "seeds": list(job.seeds),
            "preset": job.preset,
            "settings": dict(job.settings),
            "commit": last["commit"],
            "device": last["hardware"]["device"],
            "run": folder.id,
        },
        "versions": last["versions"],
        "exported_by": {name: provenance.version(name) for name in ("tqpo", "jax", "onnx") if provenance.version(name)},
        "observation": observation_of(job),
        "action": description.get("action"),
        "budget": budget_of(description.get("budget")),
        "positions": description.get("positions"),
        **signature(policy, description.get("action"), description.get("budget")),
        "limits": list(LIMITS),
    }


def budget_of(budget: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a policy is told of its budget, with the name of each number."""
    if budget is None:
        return None
    return {**budget, "features": list(Budget.of(budget).names(tuple(budget["cost_names"])))}


def observation_of(job: Job) -> list[dict[str, Any]]:
    """What each slice of `obs` is, in a task of ours; of other environments nothing is known."""
    if is_reference(job.task):
        return []
    return [part._asdict() for part in make(job.task, **job.task_settings).observation_table()]


def constraints_of(algorithm: Mapping[str, Any], evaluations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the policy was judged; before that, as it was trained."""
    if evaluations:
        return evaluations[0]["constraints"]
    return [
        {"channel": c["channel"], "name": f"cost {c['channel']}" if c["channel"] else "cost", "kind": c["kind"]}
        | {"cost_limit": float(c["limit"]), "safety": float(c["safety"])}
        for c in algorithm["constraints"]
    ]


def signature(
    policy: ActorPolicy | Dial, action: Mapping[str, Any] | None = None, budget: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Names, types and shapes of what goes in and comes out; the package's docstring says what they mean."""
    one = policy.policies if isinstance(policy, Dial) else policy
    actor = one.actor
    obs, actions = (["batch", int(x.shape[-1])] for x in (one.moments.mean, actor.mean.bias))
    inputs, outputs = [port("obs", obs)], [port("action", actions)]
    if budget is not None:
        size = Budget.of(budget).size
        inputs = [port("obs", ["batch", obs[1] - size]), port("budget", ["batch", size])]
    if isinstance(policy, Dial):
        inputs += [port("position", [], "int32")]
    several = [len(actor.log_std.sizes)] if isinstance(actor.log_std, Choices) else []
    choice = actor.log_std is None or bool(several)
    if choice:
        outputs += [port("index", ["batch", *several], "int32"), port("logits", actions)]
    else:
        outputs += [port("log_std", actions[1:])]
    if action is not None:
        shape = several or np.shape(action.get("low", 0))
        outputs += [port("env_action", ["batch", *shape], "int32" if choice else "float32")]
    if actor.lstm is not None:
        memory = ["batch", int(actor.lstm.weight_rec.shape[-2])]
        inputs += [port("h", memory), port("c", memory), port("prev_action", actions), port("prev_reward", ["batch"])]
        outputs += [port("h_next", memory), port("c_next", memory)]
    return {"inputs": inputs, "outputs": outputs}


def port(name: str, shape: list[Any], dtype: str = "float32") -> dict[str, Any]:
    return {"name": name, "shape": shape, "dtype": dtype}


def summary(evaluation: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """What an evaluation says of one seed, without its episodes."""
    mine = next(entry for entry in evaluation["seeds"] if entry["seed"] == seed)
    kept = {name: mine[name] for name in ("episodes", "return", "constraints")}
    return {name: evaluation[name] for name in ("label", "deterministic", "confidence")} | kept


def markdown(facts: Mapping[str, Any], to: str) -> str:
    """The card as a page."""
    training = facts["training"]
    asked = [f"- {sentence(c)}" for c in facts["constraints"]]
    chosen = training["iteration_of_this_policy"]
    moment = "" if chosen is None else f"; the policy of iteration {chosen}"
    enforced = {
        "none": "Reported, but not enforced by this algorithm.",
        "mean": "Training bounded the mean episode cost.",
    }
    lines = [
        f"# {facts['algorithm']} on {facts['task']}",
        f"A policy as {'an ONNX' if to == 'onnx' else 'a StableHLO'} file, its normaliser and action clip inside.",
        "## Constraint",
        "\n".join(asked) + "".join(f"\n\n{enforced[k]}" for k in enforced if k == facts["enforces"]),
        *certificate_lines(facts["certificates"]),
        "## Safety that was achieved",
        safety_table(facts) or "Not evaluated: nothing is known of its safety. `tqpo evaluate RUN` finds out.",
        "## Training",
        f"{training['steps']:,} steps in {training['iterations']} iterations, seed {training['seed']} (of "
        f"{', '.join(map(str, training['seeds']))}){moment}. "
        f"Preset {training['preset']}{changes(training['settings'])}; "
        f"task{changes(facts['task_settings']) or ' as it is'}. "
        f"Commit `{training['commit']}`, on {training['device']}; run `{training['run']}`.",
        "Trained with " + ", ".join(f"{name} {v}" for name, v in facts["versions"].items()) + ". Exported with "
        + ", ".join(f"{name} {v}" for name, v in facts["exported_by"].items()) + ".",
        "## Inputs",
        port_table(facts["inputs"]),
        *(["`obs` holds", slice_table(Slice(**part) for part in facts["observation"])] if facts["observation"] else []),
        *budget_lines(facts["budget"]),
        *dial_lines(facts.get("positions")),
        "## Outputs",
        port_table(facts["outputs"]),
        "`action` is the likeliest action, in [-1, 1]. " + SAMPLING["index" in {p["name"] for p in facts["outputs"]}]
        + (" `env_action` is it as the environment takes it." if facts["action"] else ""),
        f"**Act with {ACTS[facts['acts_with']]}**: the verdict is about these. The other kind is another policy"
        + (", with its own row above." if len({e["deterministic"] for e in facts["evaluations"]}) > 1 else "."),
        "## Limits of use",
        "\n".join(f"- {text}" for text in facts["limits"]),
    ]  # fmt: skip
    return "\n\n".join(lines) + "\n"


def certified(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A certificate without its episodes."""
    kept = {name: entry[name] for name in ("verdict", "confidence", "environment", "policy")}
    rows = [{name: x for name, x in row.items() if name != "unsafe_episodes"} for row in entry["claims"]]
    return kept | {"claims": rows}


def certificate_lines(certificates: list[dict[str, Any]]) -> list[str]:
    """Every claim that was put to the test, with the policy it is about."""
    if not certificates:
        return []
    rows = [
        f"- {row['sentence']} ({circumstances(c)}"
        + (f", `position` {c['policy']['position']})" if "position" in c["policy"] else ")")
        for c in certificates
        for row in c["claims"]
    ]
    digest = certificates[0]["policy"]["sha256"]["policy.safetensors"]
    about = f"Of the policy whose `policy.safetensors` has the SHA-256 `{digest}`."
    return ["## Certificate", "\n".join(rows), about]


def budget_lines(budget: Mapping[str, Any] | None) -> list[str]:
    """How to compute the input `budget`."""
    if budget is None:
        return []
    shown = Budget.of(budget)
    names = [f"`{name}`" for name in shown.names(tuple(budget["cost_names"]))]
    limits = ", ".join(
        f"{budget['cost_names'][k]}: d = {limit:g}" for k, limit in zip(shown.channels, shown.limits, strict=True)
    )
    time = f" `time_left` is 1 − t/{shown.horizon} after t steps." if shown.horizon is not None else ""
    return [
        f"`budget` holds {', '.join(names)}, for the limits {limits}. With C the episode's cost so far (0 at its start, "
        f"the cost of every step added): `remaining` is (d − C)/d clipped to [-1, 1], `lost` is 1 where C > d, "
        f"`nearness` is 1 − 4·(d − C)/d clipped to [0, 1].{time} A policy that is not told its cost acts as if its "
        "budget were full: its safety above does not hold then."
    ]


def dial_lines(positions: int | None) -> list[str]:
    """What the input `position` is."""
    if positions is None:
        return []
    return [f"`position` is where the dial stands, from 0, bold, to {positions - 1}, careful: see the certificates."]


ACTS = {"sampled": "sampled actions", "mean": "`action` itself"}
SAMPLING = {
    True: "It is one-hot, and `index` is its number; to sample, draw from softmax(`logits`). Of several choices at once the "
    "vectors lie one after another, and each is drawn by itself.",
    False: "To sample, draw `action` + exp(`log_std`)·z with standard normal z, and clip to [-1, 1].",
}


def sentence(c: Mapping[str, Any]) -> str:
    cost = "episode cost" if c["name"] == "cost" else f"episode cost {c['name']}"
    if c["kind"] == "mean":
        return f"E[{cost}] ≤ {c['cost_limit']:g}"
    return f"Pr[{cost} ≤ {c['cost_limit']:g}] ≥ {c['safety']:.4g}"


def safety_table(facts: Mapping[str, Any]) -> str:
    rows = []
    for e in facts["evaluations"]:
        for asked, c in zip(facts["constraints"], e["constraints"], strict=False):
            cost = functools.partial(cost_text, limit=asked["cost_limit"])
            tail = (
                [cost(c["episode_cost_99"]["value"]), cost(c["episode_cost_max"])] if "episode_cost_max" in c else "––"
            )
            cells = (
                e["label"],
                f"{e['episodes']:,}",
                interval(e["return"], "{:.2f}".format),
                sentence(asked),
                interval(c["safety_prob"], "{:.1%}".format),
                interval(c["episode_cost_quantile"], cost),
                interval(c["episode_cost_mean"], cost),
                *tail,
                c["verdict"]["word"],
            )
            rows.append(f"| {' | '.join(cells)} |")
    heads = ("fresh episodes with", "number", "return", "constraint", "Pr[C ≤ d]", "cost quantile", "mean cost")
    heads = (*heads, "99 % quantile", "worst episode", "verdict")
    confidence = next((f"{e['confidence']:.0%}" for e in facts["evaluations"]), "")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *rows, "", f"In brackets: {confidence} intervals."]
    return "\n".join(lines) if rows else ""


def interval(estimate: Mapping[str, float | None], show: Callable[[float], str]) -> str:
    value, low, high = ("…" if x is None else show(x) for x in map(estimate.get, ("value", "low", "high")))
    return f"{value} [{low}, {high}]"


def changes(settings: Mapping[str, Any]) -> str:
    return " with " + ", ".join(f"{name} = {value}" for name, value in settings.items()) if settings else ""


def port_table(ports: list[dict[str, Any]]) -> str:
    rows = [f"| `{p['name']}` | [{', '.join(map(str, p['shape']))}] | {p['dtype']} |" for p in ports]
    return "\n".join(["| name | shape | type |", "|---|---|---|", *rows])
