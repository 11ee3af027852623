"""A job from start to verdict, stopped and resumed."""

import dataclasses
import os
import random
import shutil
import signal
import subprocess
import time

import jax
import jobs
import numpy as np
import pytest

from tqpo import store
from tqpo.errors import ConfigError, Interrupted, StoreError
from tqpo.output import conclude
from tqpo.training import loop, start
from tqpo.training.evaluations import add_evaluation, evaluations_of
from tqpo.training.job import Job
from tqpo.training.loop import Options
from tqpo.training.policies import load_policies

QUIET = Options(quiet=True, checkpoint_every=4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished small job."""
    folder = loop.train(jobs.small_job(), tmp_path_factory.mktemp("runs") / "small", QUIET)
    add_evaluation(folder, 40, "jax", False)
    folder.finish()
    folder.close()
    return folder.folder


def contents(folder) -> dict[str, bytes]:
    """What must be the same, bit for bit, however often a run was stopped."""
    last = sorted((folder / "checkpoints").glob("step-*"))[-1]
    files = [folder / "metrics.csv", folder / "policy.safetensors", last / "state.safetensors"]
    return {path.name: path.read_bytes() for path in files}


def test_a_run_folder_has_all_its_parts(trained):
    names = {p.name for p in trained.iterdir()}
    expected = {
        "config.json",
        "metrics.csv",
        "checkpoints",
        "policy.safetensors",
        "policy.json",
        "manifest.json",
        "events",
    }
    assert expected <= names
    run = store.open_run(trained)
    run.verify()
    rows = run.metrics()
    assert len(rows["iteration"]) == 2 * jobs.ITERATIONS
    assert set(rows["seed"]) == {0, 1}
    assert Job.from_description(run.config) == jobs.small_job()


def test_the_evaluation_counts_every_episode(trained):
    found = evaluations_of(store.open_run(trained))[0]
    assert found["pooled"]["episodes"] == 80
    safety = found["pooled"]["constraints"][0]
    assert safety["safety_prob"]["low"] <= safety["safe_episodes"] / 80 <= safety["safety_prob"]["high"]
    assert found["verdict"]["word"] in {"meets", "misses", "cannot tell yet"}


def test_figures_video_and_page_are_written(trained, tmp_path):
    run = store.open_run(trained)
    written = conclude.write_plots([run], tmp_path)
    assert {p.name for p in written} >= {"learning.png", "learning.svg", "multiplier.png", "cost.png"}
    video = conclude.write_episode(run, tmp_path / "episode.gif")
    assert video.read_bytes()[:6] == b"GIF89a"
    page = conclude.write_page(run, tmp_path / "report.html").read_text()
    assert "Pr[" in page
    with pytest.raises(ConfigError, match="seed = 7: this run has 0, 1"):
        conclude.write_episode(run, tmp_path / "x.gif", seed=7)


def test_saved_policies_act_as_the_trained_ones(trained):
    policies = load_policies(store.open_run(trained))
    env = jobs.small_job().env()
    _, obs = env.reset(jax.random.key(0))
    for policy in policies.values():
        action, _ = policy.act(obs, policy.init(), jax.random.key(1), True)
        assert action.shape == (2,)
        assert np.all(np.isfinite(action))
        assert np.all(np.abs(action) <= 1)


def test_a_resumed_run_ends_as_one_that_was_never_stopped(trained, tmp_path, monkeypatch):
    """Stopped after iteration 7 by SIGTERM's handler, with checkpoints every 4 iterations and at the signal."""
    update = loop.RunProgress.update

    def stop_at_seven(self, iteration, *rest):
        if iteration == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        update(self, iteration, *rest)

    monkeypatch.setattr(loop.RunProgress, "update", stop_at_seven)
    with pytest.raises(Interrupted, match="stopped after iteration 7; go on with") as stopped:
        loop.train(jobs.small_job(), tmp_path / "stopped", QUIET)
    assert stopped.value.code == 143
    monkeypatch.undo()
    loop.resume(tmp_path / "stopped", QUIET).close()
    assert contents(tmp_path / "stopped") == contents(trained)


def test_a_resumed_run_of_budget_ends_as_one_that_was_never_stopped(tmp_path):
    job = jobs.small_job(algo="budget", seeds=(0,))
    loop.train(job, tmp_path / "whole", QUIET).close()

    def stop(iteration, _metrics):
        if iteration == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        loop.train(job, tmp_path / "stopped", dataclasses.replace(QUIET, callback=stop))
    loop.resume(tmp_path / "stopped", QUIET).close()
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    video = conclude.write_episode(store.open_run(tmp_path / "whole"), tmp_path / "episode.gif", deterministic=True)
    assert video.read_bytes()[:6] == b"GIF89a"


def test_resuming_a_finished_run_changes_nothing(trained, tmp_path):
    before = contents(trained)
    loop.resume(trained, QUIET).close()
    assert contents(trained) == before


def test_an_extended_run_ends_as_one_that_was_longer_from_the_start(trained, tmp_path):
    """Learning does not know how long it will last; the run knows what was changed, and keeps what it was begun with."""
    half = jobs.STEPS // 2
    loop.train(jobs.small_job(steps=half), tmp_path / "run", QUIET).close()
    with store.open_run(tmp_path / "run", write=True) as folder:
        folder.finish()
    with loop.resume(tmp_path / "run", QUIET, steps=jobs.STEPS) as folder:
        folder.finish()
    expected = contents(trained)
    found = contents(tmp_path / "run")
    assert found["metrics.csv"] == expected["metrics.csv"]
    assert found["state.safetensors"] == expected["state.safetensors"]
    run = store.open_run(tmp_path / "run")
    run.verify()
    job = Job.from_description(run.config)
    assert (job.steps, job.first_steps) == (jobs.STEPS, half)
    assert [change["text"] for change in run.manifest["changes"]] == ["extended from 1,200 to 2,400 steps"]
    assert len(run.manifest["sessions"]) == 2
    assert run.read_json("history/config-1.json")["job"]["steps"] == half
    with pytest.raises(ConfigError, match="has 2,400; give more of them to extend it"):
        loop.resume(tmp_path / "run", QUIET, steps=half)


def test_a_run_that_cannot_go_on_is_left_as_it_is(trained, tmp_path):
    """Its certificate is of its `config.json`, so an extension that fails must not change it."""
    run = shutil.copytree(trained, tmp_path / "run")
    for path in (run / "checkpoints").glob("step-*/state.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    before = (run / "config.json").read_bytes()
    with pytest.warns(store.StoreWarning), pytest.raises(StoreError, match="no good checkpoint"):
        loop.resume(run, QUIET, steps=2 * jobs.STEPS)
    assert (run / "config.json").read_bytes() == before
    assert not (run / "history").exists()


def test_schedules_keep_their_length_in_an_extended_run():
    begun = jobs.small_job(algo="budget")
    longer = dataclasses.replace(begun, steps=4 * jobs.STEPS, first_steps=jobs.STEPS)
    assert begun.prepare().config == longer.prepare().config
    assert longer.prepare().iterations == 4 * jobs.ITERATIONS


def test_a_run_starts_with_what_another_has_learned(trained, tmp_path, monkeypatch):
    """Its policy, critics and λ; with another limit, seed and layout. Its network is that of the other."""
    first = jobs.small_job()
    job = jobs.small_job(
        init_from=str(trained), cost_limit=5.0, seeds=(1, 7), steps=200, settings=first.settings | {"hidden": (64, 64)}
    )
    job = dataclasses.replace(job, task_settings={**jobs.TASK, "hazards": 2, "hazard_locations": ((0, 0), (-1, 1))})
    state = start.state_of(start.inheriting(job).prepare())
    policies = load_policies(store.open_run(trained))
    for place, seed in enumerate((1, 0)):  # a seed that the other run did not have starts with its first
        expected = jax.tree.leaves(policies[seed])
        found = jax.tree.leaves(
            jax.tree.map(lambda x, i=place: x[i], (state.learner.network.actor, state.learner.moments))
        )
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
    last = store.open_run(trained).checkpoint_arrays()
    np.testing.assert_array_equal(state.dual.multiplier, last["dual.multiplier"][[1, 0]])
    np.testing.assert_array_equal(
        state.learner.network.readouts["critic"].weight, last["learner.network.readouts.critic.weight"][[1, 0]]
    )
    assert not np.any(state.learner.iteration)
    begun = []
    monkeypatch.setattr(loop, "train_job", lambda _, folder, position, __: begun.append(position.state) or folder)
    with loop.train(job, tmp_path / "run", QUIET) as folder:
        origin = folder.config["init_from"]
        source = store.open_run(trained)
        assert (origin["run"], origin["policy"]) == (source.id, source.policy_sha256())
        assert Job.from_description(folder.config).init_from == str(trained)
    assert store.pack(begun[0]) == store.pack(state)


def test_a_run_goes_on_learning_with_the_noise_that_another_learned_with(trained, monkeypatch):
    """A policy that was kept with half of its noise has all of it again where it learns on."""
    job = jobs.small_job(init_from=str(trained), settings=jobs.SETTINGS | {"hidden": (64, 64)})
    whole = start.state_of(start.inheriting(job).prepare()).learner.network.actor.log_std
    opened = store.open_run

    def halved(path, **options):
        run = opened(path, **options)
        run.config["derived"]["algorithm"]["learner"]["acting_noise"] = 0.5
        return run

    monkeypatch.setattr(start.store, "open_run", halved)
    log_std = start.state_of(start.inheriting(job).prepare()).learner.network.actor.log_std
    np.testing.assert_allclose(log_std, whole + np.log(2.0), rtol=1e-6)


def test_a_run_cannot_start_with_another_network(trained):
    job = jobs.small_job(init_from=str(trained), settings=jobs.SETTINGS | {"hidden": (16, 16)})
    with pytest.raises(
        ConfigError, match=r"init_from = .*network.actor.body.layers.0.weight is of shape \[61, 64\] there"
    ):
        start.state_of(start.inheriting(job).prepare())
    other = start.inheriting(jobs.small_job(init_from=str(trained), preset="paper"))
    assert other.settings["kind"] == "mlp"


def test_an_existing_folder_is_not_overwritten(trained):
    before = contents(trained)
    with pytest.raises(StoreError, match="already holds a run"):
        loop.train(jobs.small_job(), trained, QUIET)
    assert contents(trained) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"safety": 1.2}, "safety = 1.2: a probability strictly between 0 and 1"),
        ({"cost_limit": -1.0}, "cost_limit = -1.0: a number that is not negative"),
        ({"steps": 0}, "steps = 0: at least 1"),
        ({"seeds": ()}, "seeds = "),
        ({"snapshots": 0}, "snapshots = 0: at least 1"),
    ],
)
def test_a_wrong_job_is_an_error(changes, message):
    with pytest.raises(ConfigError, match=message):
        jobs.small_job(**changes)


def test_training_that_is_not_finite_stops_with_what_reproduces_it(tmp_path):
    job = jobs.small_job(settings={**jobs.SETTINGS, "learning_rate": 1e30}, seeds=(3,))
    with pytest.raises(Exception, match="what reproduces it is in"):
        loop.train(job, tmp_path / "broken", Options(quiet=True, max_skips=3))
    assert (tmp_path / "broken" / "failure" / "seed-3.json").exists()
    assert (tmp_path / "broken" / "failure" / "seed-3.safetensors").exists()


def kill_and_resume(tmp_path, algo: str, kills: int, seed: int) -> None:
    """`kill -9` at random moments until the run comes to its end."""
    reference = tmp_path / "whole"
    done = jobs.tqpo(*jobs.arguments(reference), "--algo", algo)
    assert done.returncode == 0, done.stderr
    rng, folder = random.Random(seed), tmp_path / "killed"
    words = [*jobs.arguments(folder), "--algo", algo]
    start = time.monotonic()
    warm = jobs.tqpo(*jobs.arguments(tmp_path / "warm"), "--algo", algo)
    assert warm.returncode == 0
    duration = time.monotonic() - start
    for _ in range(kills):
        process = subprocess.Popen(
            jobs.command(*words), env=jobs.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(timeout=rng.uniform(0.3, 1.0) * duration)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if (folder / "manifest.json").exists():
            words = ["train", "--resume", str(folder), "--checkpoint-every", "1", "--episodes", "0"]
    done = jobs.tqpo(*words)
    assert done.returncode == 0, done.stderr
    assert contents(folder) == contents(reference)


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "kills"), [("tqpo", 20), ("budget", 4), ("budget-dial", 4)])
def test_kills_at_random_moments(tmp_path, algo, kills):
    kill_and_resume(tmp_path, algo, kills, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_and_its_exit_status_within_ten_seconds(tmp_path, number, code):
    words = jobs.arguments(tmp_path / "run")
    words[words.index("--steps") + 1] = str(1000 * jobs.STEPS)
    process = subprocess.Popen(
        jobs.command(*words), env=jobs.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 200
    while not list((tmp_path / "run").glob("checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    sent = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - sent < 10
    assert process.returncode == code
    assert "go on with: tqpo train --resume" in err
    run = store.open_run(tmp_path / "run")
    assert run.steps()
