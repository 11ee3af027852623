"""Tasks in processes of this machine and on a Ray cluster: what is lost is started again and goes on."""

import json
import os
import pathlib
import shutil

import chores
import jobs
import pytest

from tqpo import store, sweep
from tqpo.errors import ConfigError
from tqpo.sweep import cluster
from tqpo.sweep.cluster import TaskError
from tqpo.sweep.plan import Sweep, name_of
from tqpo.sweep.progress import last_row


def tasks(folder: pathlib.Path) -> list[cluster.Task]:
    for name in ("unlucky", "doomed"):
        (folder / name).mkdir()
    return [
        ("four", chores.double, (2,)),
        ("broken", chores.fail, ("no such luck",)),
        ("unlucky", chores.die, (folder / "unlucky", 1)),
        ("doomed", chores.die, (folder / "doomed", 99)),
    ]


def check(found: dict) -> None:
    assert found["four"] == 4
    assert isinstance(found["broken"], TaskError)
    assert str(found["broken"]) == "ValueError: no such luck"
    assert "in fail" in "".join(found["broken"].__notes__)  # the traceback
    assert found["unlucky"] == 2
    assert isinstance(found["doomed"], TaskError)
    assert "lost 2 times" in str(found["doomed"])


def test_processes_that_are_lost_start_again(tmp_path):
    looks = []
    found = dict(cluster.run_local(tasks(tmp_path), at_once=2, retries=1, on_wait=lambda: looks.append(1)))
    check(found)
    assert looks


def test_what_is_called_off_may_save_itself(tmp_path):
    path = tmp_path / "state"

    def stop():
        if path.exists() and path.read_text() == "begun":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(cluster.run_local([("sleeper", chores.wait_for_signal, (path,))], on_wait=stop))
    assert path.read_text() == "saved"


def test_devices_and_variables_of_tasks(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("TQPO_PHYSICS", "xla")
    assert cluster.environment(0)["TQPO_PHYSICS"] == "xla"
    assert cluster.environment(0.5)["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    monkeypatch.delenv("JAX_PLATFORMS")
    assert cluster.environment(0)["JAX_PLATFORMS"] == "cpu"
    assert "JAX_PLATFORMS" not in cluster.environment(1)


@pytest.fixture
def ray(monkeypatch):
    found = pytest.importorskip("ray", reason="needs Ray: pip install 'tqpo[ray]'")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    path = [str(pathlib.Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))  # for `chores`
    yield found
    found.shutdown()


@pytest.mark.slow
def test_ray_starts_lost_tasks_again(ray, tmp_path):
    check(dict(cluster.run_tasks(tasks(tmp_path), retries=1)))
    assert not ray.is_initialized()


@pytest.mark.slow
def test_ray_on_this_machine_refuses_needs_that_it_can_never_meet(ray):
    with pytest.raises(ConfigError, match="gpus = 99: no node has as many; there are"):
        list(cluster.run_tasks([("four", chores.double, (2,))], gpus=99))


ITERATIONS = 40


def six_jobs() -> dict:
    """Three levels under two limits, with a checkpoint after every iteration."""
    steps = ITERATIONS * jobs.SETTINGS["n_envs"] * jobs.SETTINGS["n_steps"]
    grid = [(safety, limit) for safety in (0.8, 0.9, 0.95) for limit in (5.0, 15.0)]
    found = [jobs.small_job(safety=p, cost_limit=d, seeds=(0,), steps=steps, snapshots=1) for p, d in grid]
    return {name_of(job): job for job in found}


def writer_of(folder: pathlib.Path) -> int:
    """The process that writes to a run."""
    return int(json.loads((folder / "lock").read_bytes() or b'{"pid": 0}')["pid"])


def parent(pid: int) -> int:
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(status.split("PPid:")[1].split()[0])


def results(folder: pathlib.Path) -> dict[str, bytes]:
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    files = (
        folder / "metrics.csv",
        folder / "policy.safetensors",
        folder / "evaluation.json",
        last / "state.safetensors",
    )
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.slow
def test_a_sweep_outlives_a_node(ray, tmp_path, monkeypatch):
    """Three nodes, six runs, one node killed while it trains: the results are those of a sweep that nothing happened to."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(jobs.CACHE))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    plan = Sweep(six_jobs(), episodes=20, checkpoint_every=1)
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    victim, _ = [nodes.add_node(num_cpus=1) for _ in range(2)]
    raylet = victim.all_processes["raylet"][0].process.pid
    hit = []

    def kill_in_training() -> None:
        for folder in (tmp_path / "killed").glob("*"):
            iteration, _ = last_row(folder / "metrics.csv")
            if not hit and 1 < iteration < ITERATIONS - 5 and parent(writer_of(folder)) == raylet:
                hit.append(folder)
                nodes.remove_node(victim, allow_graceful=False)

    def on_cluster(tasks, on_wait):
        def look():
            on_wait()
            kill_in_training()

        return cluster.run_tasks(tasks, address=nodes.address, on_wait=look)

    try:
        assert sweep.run(plan, tmp_path / "killed", on_cluster) == {}
    finally:
        ray.shutdown()
        nodes.shutdown()
    (folder,) = hit
    assert len(store.open_run(folder).manifest["sessions"]) == 2  # it was resumed, on another node
    assert (
        sweep.run(plan, tmp_path / "whole", lambda tasks, on_wait: cluster.run_local(tasks, 2, on_wait=on_wait)) == {}
    )
    for name in plan.jobs:
        assert results(tmp_path / "killed" / name) == results(tmp_path / "whole" / name)
    shutil.rmtree(tmp_path)
