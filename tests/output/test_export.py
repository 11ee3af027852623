"""Exported policies act as the policy does: in onnxruntime and through `jax.export`, with memory and without."""

import json
import sys

import jax
import jax.export
import jax.numpy as jnp
import jobs
import numpy as np
import onnx
import onnxruntime
import pytest
from jobs import call

from tqpo import networks, store
from tqpo.envs import make
from tqpo.envs.budget import Budget
from tqpo.envs.observation import slice_table
from tqpo.errors import ConfigError
from tqpo.evaluation.episodes import ActorPolicy
from tqpo.evaluation.loaded import LoadedPolicy
from tqpo.maths.normalize import Moments
from tqpo.output import export
from tqpo.output.export import card
from tqpo.training import loop
from tqpo.training.evaluations import add_evaluation, evaluations_of
from tqpo.training.policies import load_policies

OBS, ACTIONS, TOLERANCE = 7, 3, 1e-5
KINDS = [("mlp", False), ("mlp", True), ("lstm", False), ("lstm", True)]


def make_policy(kind: str, discrete: bool, choices=(), **spec) -> ActorPolicy:
    """Weights large enough that actions saturate and choices differ; one observation is nearly constant."""
    spec = networks.NetworkSpec(kind=kind, hidden=(32, 24), init="torch", **spec)
    sizes = OBS, sum(choices) or ACTIONS
    actor = networks.make_network(jax.random.key(3), spec, *sizes, {}, discrete, choices=choices).actor
    actor = jax.tree.map(lambda x: 3 * x, actor)
    variance = jnp.linspace(0.5, 9.0, OBS).at[2].set(1e-9)
    return ActorPolicy(actor, Moments(jnp.linspace(-2, 2, OBS), variance, jnp.asarray(1e6)))


def onnx_step(policy: ActorPolicy, form=None, budget=None):
    runtime = onnxruntime.InferenceSession(export.encode(policy, "onnx", facts_of(policy, form, budget)))
    names = [port.name for port in runtime.get_outputs()]
    return lambda inputs: dict(zip(names, runtime.run(None, inputs), strict=True))


def stablehlo_step(policy: ActorPolicy, form=None, budget=None):
    return jax.export.deserialize(bytearray(export.encode(policy, "stablehlo", facts_of(policy, form, budget)))).call


def facts_of(policy: ActorPolicy, form=None, budget=None) -> dict:
    training = dict.fromkeys(("steps", "iterations", "seed", "iteration_of_this_policy"), 0)
    training |= {"seeds": [0], "preset": "fast", "settings": {}, "commit": "", "device": "", "run": ""}
    empty = {
        "constraints": [],
        "certificates": [],
        "evaluations": [],
        "enforces": "",
        "task_settings": {},
        "versions": {},
        "limits": [],
    }
    empty |= {"acts_with": "sampled"}
    return (
        empty
        | {"task": "", "algorithm": "", "training": training, "exported_by": {}}
        | {"action": form, "observation": [], "budget": budget}
        | card.signature(policy, form, budget)
    )


STEPS = {"onnx": onnx_step, "stablehlo": stablehlo_step}


@pytest.mark.parametrize("to", STEPS)
@pytest.mark.parametrize(("kind", "discrete"), KINDS)
def test_actions_are_those_of_the_policy(kind, discrete, to):
    """1,000 observations: 20 episodes of 50 steps, with rewards; an MLP sees the same ones."""
    policy = make_policy(kind, discrete)
    step, steps, batch = STEPS[to](policy), 50, 20
    rng = np.random.default_rng(0)
    observations = rng.normal(0, 3, (steps, batch, OBS)).astype(np.float32)
    observations[0, 0] = 1e6  # clipped by the normaliser
    rewards = rng.normal(size=(steps, batch)).astype(np.float32)
    act = jax.jit(jax.vmap(lambda obs, carry: policy.act(obs, carry, jax.random.key(0), True)))
    carry = jax.vmap(lambda _: policy.init())(jnp.arange(batch))
    inputs = {p["name"]: np.zeros((batch, *p["shape"][1:]), np.float32) for p in card.signature(policy)["inputs"]}
    seen = []
    for obs, reward in zip(observations, rewards, strict=True):
        expected, carry = act(obs, carry)
        carry = jax.vmap(policy.feedback)(carry, reward)
        found = {name: np.asarray(x) for name, x in step(inputs | {"obs": obs}).items()}
        assert np.max(np.abs(found["action"] - np.clip(expected, -1, 1))) <= TOLERANCE
        if kind == "lstm":
            inputs |= {
                "h": found["h_next"],
                "c": found["c_next"],
                "prev_action": found["action"],
                "prev_reward": reward,
            }
        seen.append(found["action"])
    assert len({tuple(np.round(row, 2)) for row in np.concatenate(seen)}) >= 3  # not the same action all the time


@pytest.mark.parametrize("to", STEPS)
@pytest.mark.parametrize(("kind", "discrete"), KINDS)
def test_any_batch_size_and_what_is_needed_to_sample(kind, discrete, to):
    policy = make_policy(kind, discrete)
    step = STEPS[to](policy)
    for batch in (1, 5):
        inputs = {p["name"]: np.ones((batch, *p["shape"][1:]), np.float32) for p in card.signature(policy)["inputs"]}
        found = {name: np.asarray(x) for name, x in step(inputs).items()}
        for port in card.signature(policy)["outputs"]:
            assert found[port["name"]].shape == tuple(batch if n == "batch" else n for n in port["shape"])
            assert found[port["name"]].dtype == port["dtype"]
        if discrete:
            assert found["action"].argmax(-1).tolist() == found["index"].tolist() == found["logits"].argmax(-1).tolist()
        else:
            np.testing.assert_array_equal(found["log_std"], policy.actor.log_std)


BUDGET = {"channels": [0], "limits": [15.0], "horizon": 100, "cost_names": ["cost"]}


@pytest.mark.parametrize("to", STEPS)
def test_a_policy_that_sees_its_budget_takes_it_as_an_input(to):
    """The last four of its observations; what it does is what a loaded policy does that is told the same costs."""
    policy = make_policy("mlp", False)
    step = STEPS[to](policy, None, BUDGET)
    loaded, shown = LoadedPolicy(policy, description={"budget": BUDGET}), Budget.of(BUDGET)
    spent, rng = 0.0, np.random.default_rng(2)
    for t in range(5):
        obs = rng.normal(0, 3, OBS - shown.size).astype(np.float32)
        features = shown.features(np.array([spent], np.float32), np.array(t))
        found = step({"obs": obs[None], "budget": features[None].astype(np.float32)})
        np.testing.assert_allclose(found["action"][0], loaded.act(obs, deterministic=True), atol=TOLERANCE)
        loaded.tell(6.0)
        spent += 6.0
    page = card.markdown(facts_of(policy, None, BUDGET), to)
    assert "`remaining` is (d − C)/d" in page
    assert "`time_left` is 1 − t/100" in page


@pytest.mark.parametrize("to", STEPS)
def test_several_choices_and_other_activations(to):
    form, activations = {"start": [0, 5], "sizes": [2, 3]}, ("relu", "elu", "silu")
    obs = np.random.default_rng(1).normal(0, 3, (10, OBS)).astype(np.float32)
    for policy in (make_policy("mlp", True, (2, 3), activation=name) for name in activations):
        found = STEPS[to](policy, form)({"obs": obs})
        loaded = LoadedPolicy(policy, description={"action": form})
        expected, _ = loaded.predict(obs, deterministic=True)
        assert expected.shape == (10, 2)
        np.testing.assert_array_equal(found["env_action"], expected)
        np.testing.assert_array_equal(found["index"] + np.array([0, 5]), expected)
        np.testing.assert_array_equal(found["action"].sum(-1), 2.0)
        ports = {p["name"]: p["shape"] for p in card.signature(policy, form)["outputs"]}
        assert ports["env_action"] == ports["index"] == ["batch", 2]


def test_a_trunk_of_ones_own_is_exported_as_stablehlo():
    policy = make_policy("mlp", False, trunk="trunks:Features")
    obs = np.random.default_rng(1).normal(0, 3, (10, OBS)).astype(np.float32)
    expected, _ = LoadedPolicy(policy).predict(obs, deterministic=True)
    np.testing.assert_allclose(stablehlo_step(policy)({"obs": obs})["action"], expected, atol=TOLERANCE)
    with pytest.raises(ConfigError, match="--to stablehlo exports it"):
        onnx_step(policy)


@pytest.mark.parametrize("to", STEPS)
@pytest.mark.parametrize(
    "form",
    [{"start": 5}, {"low": [-2.0, 0.0, 1.0], "high": [2.0, 10.0, 3.0]}, {"low": [[0.0] * 3], "high": [[1.0] * 3]}],
)
def test_actions_as_ones_own_environment_takes_them(form, to):
    policy = make_policy("mlp", "start" in form)
    obs = np.random.default_rng(1).normal(0, 3, (10, OBS)).astype(np.float32)
    found = STEPS[to](policy, form)({"obs": obs})["env_action"]
    loaded = LoadedPolicy(policy, description={"action": form})
    np.testing.assert_allclose(found, [loaded.act(x, deterministic=True) for x in obs], atol=10 * TOLERANCE)
    port = next(p for p in card.signature(policy, form)["outputs"] if p["name"] == "env_action")
    assert (tuple(port["shape"][1:]), port["dtype"]) == (found.shape[1:], found.dtype)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished, evaluated run."""
    job = jobs.small_job(steps=400)
    with loop.train(job, tmp_path_factory.mktemp("runs") / "run", loop.Options(quiet=True)) as folder:
        add_evaluation(folder, 20, "jax", False)
        add_evaluation(folder, 20, "jax", True)
        folder.finish()
    return folder.folder


@pytest.mark.slow
def test_a_run_is_exported_with_its_card(run, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, "export", run, "--seed", 1)
    assert (code, err) == (0, "")
    assert [line.rsplit("/", 1)[1] for line in out.split()] == ["seed-1.onnx", "seed-1.onnx.md"]
    folder = store.open_run(run)
    assert folder.finished
    folder.verify()
    model = onnx.load(run / "export/seed-1.onnx")
    text = (run / "export/seed-1.onnx.md").read_text()
    assert model.doc_string == text
    facts = {p.key: p.value for p in model.metadata_props}
    assert (facts["task"], facts["algorithm"]) == ("SimpleEnv", "tqpo")
    assert json.loads(facts["training"])["seed"] == 1
    own = next(s for s in evaluations_of(folder)[0]["seeds"] if s["seed"] == 1)["constraints"][0]["safety_prob"]
    assert json.loads(facts["evaluations"])[0]["constraints"][0]["safety_prob"] == own
    for part in ("Pr[episode cost ≤ 15] ≥ 0.9", f"{own['value']:.1%} [{own['low']:.1%}", "deterministic actions"):
        assert part in text
    for part in (folder.manifest["sessions"][-1]["commit"] or "", "| `obs` | [batch, 61] | float32 |", "Limits of use"):
        assert part in text


@pytest.mark.parametrize("to", STEPS)
@pytest.mark.slow
def test_the_file_of_a_run_acts_as_the_loaded_policy(run, tmp_path, to):
    path, _ = export.export(run, to, out=tmp_path / "new" / f"policy.{to}")
    _, obs = jobs.small_job().env().reset(jax.random.key(0))
    inputs = {"obs": np.asarray(obs, np.float32)[None]}
    if to == "onnx":
        (action,) = onnxruntime.InferenceSession(path.read_bytes()).run(["action"], inputs)
    else:
        action = jax.export.deserialize(bytearray(path.read_bytes())).call(inputs)["action"]
    policy = load_policies(store.open_run(run))[0]
    expected, _ = policy.act(obs, policy.init(), jax.random.key(0), True)
    np.testing.assert_allclose(action[0], expected, atol=TOLERANCE)


@pytest.mark.slow
def test_a_policy_that_came_with_the_package_goes_to_where_one_is(run, tmp_path, monkeypatch):
    monkeypatch.setattr(store.run, "SHIPPED", run.parent)
    monkeypatch.chdir(tmp_path)
    export.export(run.name, "onnx")
    assert {path.name for path in tmp_path.iterdir()} == {"run.onnx", "run.onnx.md"}


@pytest.mark.parametrize("to", STEPS)
def test_what_the_observation_holds_is_in_the_card_and_the_metadata(tmp_path, to):
    path, page = export.export("GremlinEnv-90", to, out=tmp_path / f"policy.{to}")
    table = make("GremlinEnv").observation_table()
    assert slice_table(table) in page.read_text()
    if to == "onnx":
        facts = {p.key: json.loads(p.value) for p in onnx.load(path).metadata_props if p.key == "observation"}
        assert facts["observation"] == json.loads(json.dumps([part._asdict() for part in table]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "torch"], "to = 'torch': onnx or stablehlo"),
        (["--seed", "7"], "seed = 7: this run has 0, 1"),
    ],
)
@pytest.mark.slow
def test_wrong_input_is_one_line(run, words, message, monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "export", run, *words)
    assert (code, err) == (2, f"tqpo: {message}\n")


@pytest.mark.slow
def test_a_missing_package_is_named(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "tqpo.output.export.onnx", raising=False)
    code, _, err = call(monkeypatch, capsys, "export", run)
    assert code == 2
    assert err.count("\n") == 1
    assert 'pip install ".[export]" in the clone' in err


def test_a_policy_without_evaluation_says_so():
    assert "nothing is known of its safety" in card.markdown(facts_of(make_policy("mlp", False)), "onnx")


def test_an_unknown_format_is_refused():
    with pytest.raises(ConfigError, match="onnx or stablehlo"):
        export.encode(make_policy("mlp", False), "tflite", {})
