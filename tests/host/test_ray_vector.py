"""Environments on Ray actors do what the others do, and one that is lost is replaced alone."""

import numpy as np
import pytest
from test_guard import spec_of, transitions, walk

from tqpo.errors import EnvError
from tqpo.host.batch import Hosts
from tqpo.host.spec import Hosting

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'tqpo[ray]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


def test_the_same_transitions():
    here = walk(spec_of("Counter"), count=2)
    there = walk(spec_of("Counter", hosting=Hosting(vector="ray")), count=2)
    for env in range(2):
        np.testing.assert_array_equal(transitions(*here[:2], env), transitions(*there[:2], env))
    assert not there[2]


def test_a_fault_of_python_is_told_by_its_actor():
    spec = spec_of("faulty", fault="raises", hosting=Hosting(vector="ray", restarts=1))
    with pytest.raises(EnvError, match="a broken spring"):
        walk(spec, count=2)


def test_an_actor_that_dies_is_replaced_alone(tmp_path):
    spec = spec_of("stubborn", path=str(tmp_path / "died"), hosting=Hosting(vector="ray"))
    with Hosts(spec, 2, 0) as hosts:
        hosts.reset()
        ticks = [hosts.tick(np.zeros((2, spec.action_size), np.float32)) for _ in range(12)]
        reports = hosts.take_reports()
    lost = np.array([t.lost for t in ticks])
    assert lost.sum() == 1
    assert lost.any(0).sum() == 1
    assert len(reports) == 1
    assert "its actor was lost" in reports[0]


def test_an_actor_that_always_dies_ends_training():
    spec = spec_of("faulty", fault="dies", hosting=Hosting(vector="ray", restarts=1))
    with pytest.raises(EnvError, match="its actor was lost"):
        walk(spec, count=2)


def test_an_actor_that_hangs_is_replaced(tmp_path):
    spec = spec_of("sleepy", path=str(tmp_path / "slept"), hosting=Hosting(vector="ray", timeout=1.0))
    _, ticks, reports = walk(spec, count=2, steps=8)
    assert sum(int(t.lost.sum()) for t in ticks) >= 1
    assert "no answer within" in reports[0]
