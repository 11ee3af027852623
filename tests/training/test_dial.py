"""One run, every level: the policies that training passed are the positions of a dial, chosen, certified and exported."""

import shutil

import jax
import jobs
import numpy as np
import pytest

import tqpo
from tqpo import store
from tqpo.errors import ConfigError
from tqpo.output.export import encode
from tqpo.output.export.card import facts_of, markdown
from tqpo.training import certificates, choose, loop
from tqpo.training.certificates import Asked
from tqpo.training.policies import load_dial, load_policies

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("dial") / "run"
    job = jobs.small_job(algo="budget-dial", cost_limit=1000.0, seeds=(0, 1))
    with loop.train(job, out, loop.Options(quiet=True)) as folder:
        folder.finish()
    return out


def equal(a, b) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), a, b))


def test_the_dial_is_the_path_and_the_policy_the_chosen_position_of_it(run):
    with store.open_run(run) as folder:
        policies, entries = load_policies(folder), certificates.certificates_of(folder)
        dials = {seed: load_dial(folder, seed) for seed in policies}
        snapshots = folder.snapshots()
    assert [entry["verdict"] for entry in entries] == ["certified"] * 2
    for entry in entries:
        seed, position = entry["policy"]["seed"], entry["policy"]["position"]
        assert dials[seed].size == len(entry["choice"]["candidates"]) >= len(snapshots)
        assert entry["choice"]["candidates"][position]["label"] == entry["choice"]["kept"]
        assert equal(policies[seed], dials[seed].at(position))
        assert not equal(dials[seed].at(0), dials[seed].at(dials[seed].size - 1))
    assert list(certificates.check(run / "certificate.json", rerun=True)) == entries


def test_another_level_is_asked_of_the_same_run(run, tmp_path):
    path = shutil.copytree(run, tmp_path / "run")
    with store.open_run(path, write=True) as folder:
        (entry,) = choose.certify(folder, Asked(safety=0.97, max_episodes=3000), seed=1)
        certificates.add_certificates(folder, [entry])
        assert len(certificates.certificates_of(folder)) == 3
        dial = load_dial(folder, 1)
    assert entry["claims"][0]["safety"] == 0.97
    policy = tqpo.load(path, seed=1)
    assert equal(policy.at(0.95)._policy, dial.at(entry["policy"]["position"]))
    assert policy.at(0.9).act(np.zeros(policy.obs_size)).shape == (2,)
    with pytest.raises(ConfigError, match=r"no position of a dial is certified .*certify RUN --safety 0.99"):
        policy.at(safety=0.99)
    assert len(list(certificates.check(path / "certificate.json", rerun=True))) == 3


@pytest.mark.parametrize("to", ["onnx", "stablehlo"])
def test_an_exported_dial_acts_as_the_policy_of_each_position(run, to):
    with store.open_run(run) as folder:
        dial = load_dial(folder, 0)
        facts = facts_of(folder, 0, dial)
    data = encode(dial, to, facts)
    assert f"from 0, bold, to {dial.size - 1}, careful" in markdown(facts, to)
    rng = np.random.default_rng(0)
    inputs = {
        port["name"]: rng.uniform(0, 1, [3 if n == "batch" else n for n in port["shape"]]).astype(np.float32)
        for port in facts["inputs"]
    }
    for position in (0, dial.size - 1):
        inputs["position"] = np.array(position, np.int32)
        if to == "onnx":
            import onnxruntime

            session = onnxruntime.InferenceSession(data)
            found = dict(zip([x.name for x in session.get_outputs()], session.run(None, inputs), strict=True))
        else:
            found = jax.export.deserialize(bytearray(data)).call(inputs)
        policy = dial.at(position)
        obs = np.concatenate([inputs["obs"], inputs["budget"]], 1)
        expected = [np.clip(policy.act(x, policy.init(), jax.random.key(0), True)[0], -1, 1) for x in obs]
        np.testing.assert_allclose(found["action"], expected, atol=1e-5)
        np.testing.assert_allclose(found["log_std"], np.asarray(policy.actor.log_std), atol=1e-6)
