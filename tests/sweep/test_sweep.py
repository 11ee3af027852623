"""Sweeps: files into grids of jobs, folders that are found again, runs that are finished once."""

import fcntl
import sys
import threading
import time

import jobs
import pytest

from tqpo import cli, store, sweep
from tqpo.errors import ConfigError, Interrupted
from tqpo.sweep import plan, progress, work
from tqpo.sweep.cluster import TaskError
from tqpo.training import loop
from tqpo.training.job import Job
from tqpo.training.loop import Options

FILE = """
cpus = 2
episodes = 10

[defaults]
steps = 800
snapshots = 1
settings = { n_envs = 4, n_steps = 50, minibatches = 2, epochs = 2 }
task_settings = { max_steps = 50 }

[[runs]]
safety = [0.8, 0.9]
"""


@pytest.fixture
def write(tmp_path):
    def to_file(text: str):
        path = tmp_path / "sweep.toml"
        path.write_text(text)
        return path

    return to_file


def here(tasks, on_wait):
    """A runner in this process."""
    for name, function, arguments in tasks:
        on_wait()
        yield name, function(*arguments)


def test_lists_make_a_grid(write):
    found = plan.read(
        write("""
        seeds_per_job = 2
        [[runs]]
        algo = ["tqpo", "qcpo"]
        safety = [0.8, 0.9, 0.95]
        seeds = 3
        steps = 1e6
        settings = { learning_rate = [1e-3, 3e-4], hidden = [[64, 64]] }
        [[runs]]
        task = "DynamicEnv"
        seeds = [[0, 1], [5, 7]]
        """)
    )
    assert len(found.jobs) == 2 * 3 * 2 * 2 + 2
    first, *_, last = found.jobs.values()
    assert (first.algo, first.safety, first.seeds, first.steps) == ("tqpo", 0.8, (0, 1), 1_000_000)
    assert first.settings == {"learning_rate": 1e-3, "hidden": (64, 64)}
    assert (last.task, last.seeds) == ("DynamicEnv", (5, 7))
    differ = plan.varying(found.jobs.values())
    assert set(differ) == {"task", "algo", "safety", "seeds", "steps", "learning_rate", "hidden"}


def test_a_folder_is_named_by_its_job_alone(write):
    before = plan.read(write(FILE)).jobs
    after = plan.read(write(FILE.replace("[0.8, 0.9]", "[0.7, 0.8, 0.9]"))).jobs
    assert before.items() <= after.items()
    assert len(after) == 3
    assert all(name.startswith("SimpleEnv-tqpo-") for name in after)
    assert plan.name_of(jobs.small_job(task="SimpleEnv")) != plan.name_of(jobs.small_job(seeds=(0, 1, 2)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpus = [", "cannot be read as TOML"),
        ("", "has no runs: write at least one"),
        ("[[run]]", "nothing is called run; there are"),
        ("[[runs]]\nsafty = 0.9", "nothing is called safty; there are"),
        ("[[runs]]\nsafety = [0.9, 1.2]", "safety = 1.2: a probability strictly between 0 and 1"),
        ("[[runs]]\ntask = 'NoEnv'", "there is no task 'NoEnv'"),
        ("[[runs]]\nsettings = { n_env = 3 }", "no setting n_env"),
        ("[[runs]]\nsteps = 'many'", "many"),
        ("gpus = -1\n[[runs]]", "gpus = -1: a number, at least 0"),
        ("seeds_per_job = 0\n[[runs]]", "seeds_per_job = 0: at least 1"),
        ("report = 1\n[[runs]]", "report = 1: true or false"),
    ],
)
def test_a_wrong_file_is_an_error_before_anything_starts(text, message, write):
    with pytest.raises((ConfigError, KeyError), match=message):
        plan.read(write(text))


@pytest.mark.slow
def test_a_sweep_is_finished_once(write, tmp_path):
    found = plan.read(write("report = true" + FILE))
    out = tmp_path / "out"
    assert sweep.run(found, out, here) == {}
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    asked = []

    def idle(tasks, on_wait):
        asked.extend(tasks)
        return iter(())

    assert sweep.run(found, out, idle) == {}
    assert asked == []
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    for name, job in found.jobs.items():
        run = store.open_run(out / name)
        assert run.finished
        assert Job.from_description(run.config) == job
        assert (out / name / "report.html").exists()
        assert progress.last_row(out / name / "metrics.csv")[0] == job.prepare().iterations == 4


@pytest.mark.slow
def test_a_job_goes_on_from_its_checkpoint_once_the_lock_is_free(write, tmp_path, monkeypatch):
    """Stopped after iteration 2; then someone else, on a machine that was lost, still holds the lock for a while."""
    (name, job), *_ = plan.read(write(FILE)).jobs.items()
    path, options = tmp_path / name, Options(quiet=True, checkpoint_every=1)
    update = loop.RunProgress.update

    def stop_at_two(self, iteration, *rest):
        if iteration == 2:
            raise Interrupted(15, "as asked")
        update(self, iteration, *rest)

    monkeypatch.setattr(loop.RunProgress, "update", stop_at_two)
    with pytest.raises(Interrupted):
        work.run_job(job, path, options, 10, False)
    monkeypatch.undo()
    monkeypatch.setattr(work, "ASK_EVERY", 0.05)
    held = open(path / "lock", "rb+")  # noqa: SIM115
    fcntl.flock(held, fcntl.LOCK_EX)
    asked = []
    monkeypatch.setattr(work.time, "sleep", lambda seconds: (asked.append(seconds), threading.Event().wait(seconds)))
    threading.Timer(0.5, held.close).start()
    work.run_job(job, path, options, 10, False)
    assert len(asked) > 1
    run = store.open_run(path)
    assert (run.finished, len(run.manifest["sessions"])) == (True, 2)
    assert list(run.metrics()["iteration"]) == [1, 2, 3, 4]


def test_a_lock_that_is_never_given_back_is_an_error(write, tmp_path, monkeypatch):
    (name, job), *_ = plan.read(write(FILE)).jobs.items()
    folder = store.create(tmp_path / name, job.prepare().describe())
    monkeypatch.setattr(work, "PATIENCE", -1.0)
    with folder, pytest.raises(store.LockedError, match="is being written to by process"):
        work.run_job(job, tmp_path / name, Options(quiet=True), 10, False)


def test_what_fails_is_named_and_the_rest_goes_on(write, tmp_path, monkeypatch, capsys):
    path = write(FILE)
    names = list(plan.read(path).jobs)

    def half(tasks, on_wait, **_):
        (first, *_), second = tasks
        yield first, TaskError("ValueError: no luck")
        yield from here([second], on_wait)

    monkeypatch.setattr("tqpo.sweep.cluster.run_local", half)
    monkeypatch.setattr(sys, "argv", ["tqpo", "sweep", str(path), "--local", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert f"{names[0]}: ValueError: no luck" in err
    assert "failed" in err
    assert "Pr[C ≤ d]" in out
    assert names[1][:20] in out


def test_progress_is_read_from_a_file_that_grows(tmp_path):
    path = tmp_path / "metrics.csv"
    assert progress.last_row(path)[0] == 0
    path.write_text("run,seed,iteration,step,return_mean,safety_prob.0\n0,0,1,9,1.5,0.5\n1,1,1,9,2.5,1.0\n0,0,2")
    assert progress.last_row(path) == (1, ("2.00", "75.0%"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.toml", "--local"], "nowhere.toml does not exist: give the TOML file of a sweep"),
        (["x.toml", "--local", "--address", "auto"], "--local and --address: a sweep runs here or on a cluster"),
        (["x.toml", "--jobs", "2"], "jobs = 2: at least 1, with --local"),
        (["x.toml"], 'Ray is not installed: pip install ".[ray]" in the clone, or stay on this machine with --local'),
    ],
)
def test_wrong_input_is_one_line(words, message, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(sys, "argv", ["tqpo", "sweep", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"tqpo: {message}\n"


def test_a_signal_ends_a_sweep_with_its_exit_status(write, tmp_path):
    import os
    import signal

    def deaf(tasks, on_wait):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        on_wait()
        yield from ()

    with pytest.raises(Interrupted, match="the same command goes on") as stop:
        sweep.run(plan.read(write(FILE)), tmp_path / "out", deaf)
    assert stop.value.code == 143
