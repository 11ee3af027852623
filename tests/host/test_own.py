"""Someone's own environment, from the job to the verdict: the command line, Python, resuming, named constraints."""

import json
import os
import pathlib
import signal
import sys

import fakes
import jobs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import call

import tqpo
from tqpo import store
from tqpo.algorithms.presets import preset
from tqpo.errors import ConfigError, EnvError, Interrupted, RenderError
from tqpo.evaluation.episodes import Totals
from tqpo.evaluation.summary import summarise
from tqpo.output import conclude
from tqpo.training import loop
from tqpo.training.evaluations import add_evaluation, evaluate_run, evaluations_of
from tqpo.training.job import Job, parse_constraint, say_constraint
from tqpo.training.loop import Options

pytestmark = pytest.mark.slow  # processes, sockets and training: `make test-slow`

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SETTINGS = {"n_envs": 4, "n_steps": 32, "minibatches": 2, "epochs": 2}
QUIET = Options(quiet=True, checkpoint_every=2)
USUAL = preset().constraints[0]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    fakes.Faulty.made = 0
    monkeypatch.syspath_prepend(str(EXAMPLES))


def own_job(**changes) -> Job:
    fields = {
        "task": "fakes:long",
        "algo": "ppo",
        "steps": 6 * 128,
        "settings": SETTINGS,
        "seeds": (0, 1),
        "snapshots": 2,
    }
    return Job(**{**fields, **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run in an environment with a choice of actions and named costs."""
    job = own_job(
        task="fakes:choice", cost_fn="fakes:energy", constraints=("energy:limit=500,safety=0.8", "time:mean=9")
    )
    folder = loop.train(job, tmp_path_factory.mktemp("own") / "run", QUIET)
    add_evaluation(folder, 20, "jax", False)
    folder.finish()
    folder.close()
    return folder.folder


def test_a_run_keeps_its_job(trained):
    run = store.open_run(trained)
    run.verify()
    job = Job.from_description(run.config)
    assert (job.task, job.cost_fn) == ("fakes:choice", "fakes:energy")
    assert run.config["derived"]["task"]["cost_names"] == ["cost", "time", "energy"]
    assert len(run.metrics()["iteration"]) == 2 * 6


def test_every_constraint_is_judged(trained):
    evaluation = evaluations_of(store.open_run(trained))[0]
    assert [c["name"] for c in evaluation["constraints"]] == ["energy", "time"]
    assert [c["kind"] for c in evaluation["constraints"]] == ["quantile", "mean"]
    steps = np.concatenate([s["lengths"] for s in evaluation["seeds"]])
    costs = np.concatenate([s["episode_costs"] for s in evaluation["seeds"]])
    np.testing.assert_allclose(costs[:, 1], steps)  # a unit of time a step
    assert np.all(costs[:, 2] >= 100 * steps)  # actions 10 … 13, squared
    assert "The mean episode time of 40 episodes" in evaluation["verdict"]["sentence"]
    assert "stayed within the energy limit of 500" in evaluation["verdict"]["sentence"]


def test_figures_page_and_policy(trained, tmp_path):
    run = store.open_run(trained)
    names = {path.name for path in conclude.write_plots([run], tmp_path)}
    assert names >= {"learning.png", "learning-2.png"}  # a second constraint, its own curves
    assert "mean time" in conclude.write_page(run, tmp_path / "page.html").read_text()
    policy = tqpo.load(trained)
    actions = {policy.act(np.zeros(2), deterministic=False) for _ in range(40)}
    assert actions <= {10, 11, 12, 13}
    with pytest.raises(RenderError, match='no render_mode "rgb_array"'):
        conclude.write_episode(run, tmp_path / "x.gif")
    with pytest.raises(ConfigError, match="physics = 'mujoco': fakes:choice has its own"):
        evaluate_run(run, 5, "mujoco")


def test_a_stopped_run_goes_on(tmp_path, monkeypatch):
    update = loop.RunProgress.update

    def stop(self, iteration, *rest):
        if iteration == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        update(self, iteration, *rest)

    monkeypatch.setattr(loop.RunProgress, "update", stop)
    with pytest.raises(Interrupted, match="stopped after iteration 3"):
        loop.train(own_job(), tmp_path / "run", QUIET)
    monkeypatch.setattr(loop.RunProgress, "update", update)
    with loop.resume(tmp_path / "run", QUIET) as folder:
        rows = folder.metrics()
        np.testing.assert_array_equal(rows["iteration"][::2], np.arange(1, 7))
        assert np.all(rows["episode_cost_mean"][rows["window_episodes"] > 0] == 50)  # none cut short, none joined


def test_faults_are_reported_and_training_goes_on(tmp_path):
    job = own_job(task="fakes:faulty", task_settings={"fault": "nan obs", "times": 4}, seeds=(0,))
    with loop.train(job, tmp_path / "run", QUIET) as folder:
        text = folder.path(loop.FAULTS).read_text()
    assert text.count("FloatingPointError: an observation that is not finite") >= 2
    assert "environment 0, step 3 (step 3 of its episode)" in text


def test_an_environment_that_keeps_failing_ends_training_with_its_name(tmp_path, capsys):
    job = own_job(task="fakes:faulty", task_settings={"fault": "raises"}, env_restarts=1)
    with pytest.raises(EnvError, match="fakes:faulty: environment 0, step 6"):
        loop.train(job, tmp_path / "run", Options())
    assert "environment 0, step 3" in (tmp_path / "run" / loop.FAULTS).read_text()  # in its first iteration
    said = capsys.readouterr().out
    assert "restarted environment 0, step 3" in said
    assert "restarted 5 times more" in said  # of two runs with four environments


def test_python_takes_functions(tmp_path):
    seen = []

    def callback(iteration, metrics):
        seen.append((iteration, metrics["return_mean"].shape))
        return np.bool_(iteration == 2)

    small = {"steps": 6 * 128, "settings": SETTINGS, "algo": "ppo", "episodes": 8, "quiet": True}
    evaluation = tqpo.train(
        "gym:CartPole-v1",
        cost_fn=lambda obs, action, next_obs, info: 1.0,
        callback=callback,
        out=tmp_path / "run",
        **small,
    )
    assert seen == [(1, (1, 1)), (2, (1, 1))]
    assert evaluation["seeds"][0]["episode_costs"] == [[n] for n in evaluation["seeds"][0]["lengths"]]


class TestConstraints:
    NAMES = ("cost", "hazards", "energy")

    @given(st.sampled_from(NAMES), st.floats(0, 1e6), st.floats(0.01, 0.99), st.booleans())
    def test_text_and_back(self, name, limit, safety, mean):
        text = f"{name}:mean={limit!r}" if mean else f"{name}:limit={limit!r},safety={safety!r}"
        c = parse_constraint(text, self.NAMES, USUAL)
        assert (self.NAMES[c.channel], c.kind, c.limit) == (name, "mean" if mean else "quantile", limit)
        assert mean or c.safety == safety
        assert name in say_constraint(c, self.NAMES)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("noise:mean=3", "there is no cost 'noise'; there are cost, hazards, energy"),
            ("energy", "write NAME:limit=15,safety=0.9 or NAME:mean=200"),
            ("energy:mean=3,limit=4", "or mean alone"),
            ("energy:safety=0.9", "give limit"),
            ("energy:limit=x", "are numbers"),
            ("energy:limit=1;safety=2", "write NAME:limit=15"),
        ],
    )
    def test_wrong_text(self, text, message):
        with pytest.raises(ConfigError, match=message):
            parse_constraint(text, self.NAMES, USUAL)

    def test_they_replace_safety_and_limit(self):
        job = Job(constraints=("hazards:limit=5,safety=0.8", "buttons:mean=2"))
        prepared = job.prepare()
        first, second = prepared.config.constraints
        assert (first.channel, first.kind, first.limit, first.safety, first.margin) == (1, "quantile", 5, 0.8, 0.2)
        assert (second.kind, second.limit, prepared.env.cost_names[second.channel]) == ("mean", 2, "buttons")
        assert prepared.goal == "Pr[hazards ≤ 5] ≥ 80%, mean buttons ≤ 2"
        assert Job.from_description(json.loads(json.dumps(prepared.describe()))) == job
        with pytest.raises(ConfigError, match="take the place of safety and cost_limit"):
            Job(constraints=("cost:mean=1",), safety=0.8)

    def test_a_mean_is_judged_by_its_interval(self):
        c = parse_constraint("cost:mean=10", ("cost",), USUAL)
        costs = np.arange(200) % 10  # mean 4.5, and one in ten above any limit below 9
        for limit, word in [(10, "meets"), (4.5, "cannot tell yet"), (2, "misses")]:
            totals = Totals(np.zeros(200), costs[:, None].astype(float), np.ones(200, int))
            asked = parse_constraint(f"cost:mean={limit}", ("cost",), c)
            assert summarise({0: totals}, [asked], ["cost"], deterministic=False)["verdict"]["word"] == word


class TestCommands:
    @pytest.fixture(autouse=True)
    def _here(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)

    def test_from_an_empty_folder(self, monkeypatch, capsys, tmp_path):
        """A module in the current folder is found; train, evaluate, compare, resume."""
        (tmp_path / "newcomer.py").write_text("from fakes import Named, long\n\ndef make():\n    return Named()\n")
        monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
        settings = [f"{k}={v}" for k, v in SETTINGS.items()]
        limits = ["--constraint", "energy:limit=40,safety=0.8", "--constraint", "noise:mean=20"]
        words = ["--steps", "256", "--episodes", "10", "--snapshots", "1", "--algo", "ppo", "--quiet"]
        code, out, err = call(monkeypatch, capsys, "train", "newcomer:make", *limits, *words, "--set", *settings)
        assert (code, err) == (0, "")
        assert "stayed within the energy limit of 40" in out
        run = str(tmp_path / "runs" / "newcomer-make-ppo")
        code, out, _ = call(monkeypatch, capsys, "evaluate", run, "--episodes", "12", "--json")
        assert (code, json.loads(out)["pooled"]["episodes"]) == (0, 12)
        code, out, _ = call(monkeypatch, capsys, "compare", run)
        assert (code, "Pr[energy ≤" in out, "mean noise ≤" in out) == (0, True, True)  # cells are folded
        code, out, err = call(monkeypatch, capsys, "train", "--resume", run, "--episodes", "0")
        assert (code, "is finished and judged" in out) == (0, True)

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["fakes:costless"], "no cost in this step: give info"),
            (["gym:NoSuch-v0"], "gym:NoSuch-v0: Environment `NoSuch` doesn't exist"),
            (["nowhere:make"], "No module named 'nowhere'"),
            (["fakes:Counter", "--vector", "threads"], "vector = 'threads': sync or async"),
            (["fakes:Counter", "--constraint", "noise:mean=1"], "there is no cost 'noise'; there are cost"),
            (["SimpleEnv", "--cost-fn", "fakes:energy"], "SimpleEnv has its own cost"),
        ],
    )
    def test_wrong_input_is_one_line_and_no_folder(self, words, message, monkeypatch, capsys, tmp_path):
        code, _, err = call(monkeypatch, capsys, "train", *words)
        assert code == 2
        assert message in err
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("words", "code", "text"),
        [
            (["gym:CartPole-v1", "--cost-fn", "costs:cart_position"], 0, "fit for training"),
            (["fakes:Endless"], 2, "truncate them, as in --max-steps 1000"),
            (["fakes:Endless", "--max-steps", "7"], 0, "time-out after 7 steps"),
            (["fakes:Endless", "--max-steps", "7"], 0, "90% cost at most 7, 95% cost at most 7, the worst 7"),
            (["fakes:vector", "--max-steps", "7"], 2, "makes vectors, which end their own episodes"),
            (["fakes:vector"], 0, "NextStep, by its own vector"),
            (["fakes:costless"], 2, "no cost in this step"),
            (["fakes:faulty"], 2, "a broken spring"),
            (["fakes:faulty", "--task-set", "fault=negative cost"], 2, "must not be negative"),
            (["fakes:unbounded"], 2, "needs finite bounds"),
            (["courier:Courier"], 0, "a JAX environment"),
        ],
    )
    def test_check_env(self, words, code, text, monkeypatch, capsys):
        status, out, _ = call(monkeypatch, capsys, "check-env", *words, "--steps", "100")
        assert status == code
        assert text in " ".join(out.replace("│", " ").split())

    def test_check_env_sees_what_is_not_deterministic(self, monkeypatch, capsys):
        monkeypatch.setattr(fakes.Counter, "observe", lambda self: np.random.default_rng().random(2).astype(np.float32))
        _, out, _ = call(monkeypatch, capsys, "check-env", "fakes:Counter", "--steps", "50")
        assert "another observation with the same seed" in " ".join(out.split())


@pytest.mark.slow
def test_the_template_trains(tmp_path):
    """A pure JAX environment by reference, with two named constraints."""
    job = Job(
        task="courier:Courier",
        constraints=("damage:limit=1,safety=0.9", "energy:mean=5"),
        steps=2 * 400,
        settings={**SETTINGS, "n_steps": 100, "minibatches": 2},
        snapshots=1,
    )
    with loop.train(job, tmp_path / "run", QUIET) as folder:
        evaluation = add_evaluation(folder, 20, "jax", False)
        with pytest.raises(ConfigError, match="there is no picture of it"):
            conclude.write_episode(folder, tmp_path / "x.gif")
    assert [c["name"] for c in evaluation["constraints"]] == ["damage", "energy"]


def group_of(leader: int) -> list[str]:
    """The commands of a process group that still run (zombies do not)."""
    running = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
            state, _, group = rest.split()[:3]
            if int(group) == leader and state != "Z":
                running.append(name)
        except OSError:
            continue  # it just ended
    return running


@pytest.mark.slow
def test_ctrl_c_in_a_run_with_processes(tmp_path):
    """The whole process group is interrupted, as a terminal does; the trainer saves, and nobody is left."""
    import subprocess
    import time

    words = [
        "train",
        "fakes:long",
        "--vector",
        "async",
        "--steps",
        "1e7",
        "--checkpoint-every",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    words += ["--set", *(f"{k}={v}" for k, v in SETTINGS.items()), "--algo", "ppo"]
    process = subprocess.Popen(
        jobs.command(*words),
        env=jobs.environment() | {"PYTHONPATH": str(pathlib.Path(__file__).parents[1] / "support")},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 200
    while not list((tmp_path / "run").glob("checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "go on with: tqpo train --resume" in err
    deadline = time.monotonic() + 10
    while (left := group_of(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []
