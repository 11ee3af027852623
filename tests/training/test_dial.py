"""One run, every level: a policy whose λ is an input, chosen, certified and kept at a position of its dial."""

import shutil

import jobs
import numpy as np
import pytest

import tqpo
from tqpo import store
from tqpo.errors import ConfigError
from tqpo.training import certificates, choose, loop
from tqpo.training.certificates import Asked
from tqpo.training.policies import load_policies

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("dial") / "run"
    job = jobs.small_job(algo="budget-dial", cost_limit=1000.0, seeds=(0,))
    with loop.train(job, out, loop.Options(quiet=True)) as folder:
        folder.finish()
    return out


def test_a_position_is_kept_with_the_policy_and_named_by_its_certificate(run):
    with store.open_run(run) as folder:
        policy, (entry,) = load_policies(folder)[0], certificates.certificates_of(folder)
    assert entry["verdict"] == "certified"
    assert float(policy.position) == pytest.approx(entry["policy"]["position"])
    assert entry["choice"]["candidates"][0].keys() >= {"label", "return_mean"}
    assert {c["label"] for c in entry["choice"]["candidates"]} == set(choose.POSITIONS)
    assert list(certificates.check(run / "certificate.json", rerun=True)) == [entry]


def test_another_level_is_asked_of_the_same_run(run, tmp_path):
    path = shutil.copytree(run, tmp_path / "run")
    with store.open_run(path, write=True) as folder:
        (entry,) = choose.certify(folder, Asked(safety=0.97, max_episodes=3000))
        certificates.add_certificates(folder, [entry])
        assert len(certificates.certificates_of(folder)) == 2
    assert entry["claims"][0]["safety"] == 0.97
    policy = tqpo.load(path)
    assert float(policy.at(0.95)._policy.position) == pytest.approx(entry["policy"]["position"])
    assert policy.at(0.9).act(np.zeros(policy.obs_size)).shape == (2,)
    with pytest.raises(ConfigError, match=r"no position of a dial is certified .*certify RUN --safety 0.99"):
        policy.at(safety=0.99)
    assert entry["policy"]["position"] in choose.POSITIONS
    assert len(list(certificates.check(path / "certificate.json"))) == 2
