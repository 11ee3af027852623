"""Environments on Ray actors do what the others do, and one that is lost is replaced alone."""

import numpy as np
import pytest
from test_guard import spec_of, transitions, walk

from tqpo.errors import EnvError
from tqpo.host.batch import EnvBatch
from tqpo.host.spec import HostOptions

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'tqpo[ray]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


def test_the_same_transitions():
    here = walk(spec_of("Counter"), count=2)
    there = walk(spec_of("Counter", options=HostOptions(vector="ray")), count=2)
    for env in range(2):
        np.testing.assert_array_equal(transitions(*here[:2], env), transitions(*there[:2], env))
    assert not there[2]


def test_a_fault_of_python_is_told_by_its_actor():
    spec = spec_of("faulty", fault="raises", options=HostOptions(vector="ray", restarts=1))
    with pytest.raises(EnvError, match="a broken spring"):
        walk(spec, count=2)


def test_an_actor_that_dies_is_replaced_alone(tmp_path):
    spec = spec_of("stubborn", path=str(tmp_path / "died"), options=HostOptions(vector="ray"))
    with EnvBatch(spec, 2, 0) as envs:
        envs.reset()
        steps = [envs.step(np.zeros((2, spec.action_size), np.float32)) for _ in range(12)]
        reports = envs.take_reports()
    lost = np.array([step.lost for step in steps])
    assert lost.sum() == 1
    assert lost.any(0).sum() == 1
    assert len(reports) == 1
    assert "its actor was lost" in reports[0]


def test_an_actor_that_always_dies_ends_training():
    spec = spec_of("faulty", fault="dies", options=HostOptions(vector="ray", restarts=1))
    with pytest.raises(EnvError, match="its actor was lost"):
        walk(spec, count=2)


def test_an_actor_that_hangs_is_replaced(tmp_path):
    spec = spec_of("sleepy", path=str(tmp_path / "slept"), options=HostOptions(vector="ray", timeout=1.0))
    _, steps, reports = walk(spec, count=2, steps=8)
    assert sum(int(step.lost.sum()) for step in steps) >= 1
    assert "no answer within" in reports[0]
