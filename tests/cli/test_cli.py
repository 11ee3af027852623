"""The command line: what is wrong is said in one line, with exit status 2, and nothing is overwritten."""

import json
import shutil

import jobs
import pytest
from jobs import call

from tqpo import __version__, cli, store
from tqpo.training import loop
from tqpo.training.loop import Options


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = loop.train(jobs.small_job(), tmp_path_factory.mktemp("cli") / "run", Options(quiet=True, episodes=7))
    folder.finish()
    folder.close()
    return folder.folder


WRONG = [
    (["train", "NoEnv"], "there is no task 'NoEnv'; there are SimpleEnv"),
    (["train", "Simple"], "did you mean SimpleEnv?"),
    (["train", "CartPole-v1"], "a Gymnasium environment is written gym:CartPole-v1"),
    (["train", "--algo", "sac"], "no algorithm 'sac'; there are ppo"),
    (["train", "--algo", "TQPO"], "did you mean tqpo?"),
    (["train", "--algo", "bugdet"], "did you mean budget?"),
    (["train", "simpleenv"], "did you mean SimpleEnv?"),
    (["train", "--vector", "foo"], "vector = 'foo': sync or async or ray"),
    (["train", "--episodes", "-3"], "episodes = -3: at least 0"),
    (["train", "--set", "max_multiplier=0"], "max_multiplier = 0.0: positive, or λ is always 0"),
    (["train", "rover.py:Rover"], "a module is named without .py: rover:Rover"),
    (["train", "--preset", "slow"], "no preset 'slow'; there are paper, released, fast"),
    (["train", "--safety", "1.2"], "safety = 1.2: a probability strictly between 0 and 1"),
    (["train", "--cost-limit", "-3"], "cost_limit = -3.0: a number that is not negative"),
    (["train", "--seeds", "0"], "seeds = 0: at least 1"),
    (["train", "--set", "learning_rat=1"], "no setting learning_rat (did you mean learning_rate?); there are"),
    (["train", "--set", "learning_rate=fast"], "learning_rate = 'fast': a number"),
    (["train", "--set", "epochs=2.5"], "epochs = 2.5: a whole number"),
    (["train", "--set", "bootstrap_timeouts=1"], "bootstrap_timeouts = 1: true or false"),
    (["train", "--set", "margin=some"], "margin = 'some': a number"),
    (["train", "--set", "cost_limit=some"], "cost_limit = 'some': a number"),
    (["train", "--set", "gain=NaN"], "gain = nan: a number"),
    (["train", "--set", "gain=null"], "gain = None: a number"),
    (["train", "--set", "hidden=64"], "hidden = 64: whole numbers, as in 64,64"),
    (["train", "--set", "dual=1"], "dual = 1: set what is in it by name"),
    (["train", "--set", "constraints=ab"], "constraints = 'ab': several Constraint"),
    (["train", "--set", "learning_rate"], "'learning_rate' is not a setting: write NAME=VALUE"),
    (["train", "--set", "minibatches=7"], "minibatches = 7: must divide"),
    (["train", "--task-set", "extents=0.1"], "does not fit into extents"),
    (["train", "--resume", "/nowhere/at/all"], "does not exist: give the folder that training wrote"),
    (["evaluate", "/nowhere/at/all"], "does not exist"),
    (["plot"], "no run given: name at least one folder"),
    (["bench", "planes"], "bench 'planes': there is envs"),
    (["reproduce", "fast", "--set", "safety=0.8"], "safety is what a cell is and cannot be set"),
    (["reproduce", "fast", "--set", "gain=0.2"], "give them a folder with --out"),
    (["reproduce", "all", "--set", "step_stride=1", "--out", "x"], "SimpleEnv-qcpo-90-paper: no setting step_stride"),
    (["reproduce", "fast", "--set", "minibatches=7", "--out", "x"], "minibatches = 7: must divide"),
    (["reproduce", "tables", "--set", "gain=0.2"], "tables draws what is there"),
    (["reproduce", "fast", "--page", "docs/x.md"], "--page goes with tables or figures"),
    (["reproduce", "fast", "--seeds", "0"], "seeds = 0: at least 1"),
    (["reproduce", "table9"], "nothing to reproduce called 'table9'; there are table1"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_wrong_input_is_one_line_and_exit_status_two(words, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(monkeypatch, capsys, *words)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(run, monkeypatch, capsys):
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    code, _, err = call(monkeypatch, capsys, "train", "--out", str(run))
    assert (code, "already holds a run" in err) == (2, True)
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


def test_resuming_with_another_setting_is_refused(run, monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "train", "--resume", str(run), "--safety", "0.95")
    assert code == 2
    assert f"safety = 0.95: {run} was begun with 0.9; leave it out to resume" in err


def test_a_finished_run_is_extended_and_another_starts_from_it(run, monkeypatch, capsys, tmp_path):
    copy, more = shutil.copytree(run, tmp_path / "run"), str(jobs.STEPS + 400)
    code, _, err = call(monkeypatch, capsys, "train", "--resume", copy, "--steps", "100")
    assert (code, "give more of them to extend it" in err) == (2, True)
    code, _, _ = call(monkeypatch, capsys, "train", "--resume", copy, "--steps", more, "--episodes", "0", "--quiet")
    with store.open_run(copy) as folder:
        assert (code, folder.finished, folder.metrics()["step"].max()) == (0, True, jobs.STEPS + 400)
    words = [*jobs.arguments(tmp_path / "tuned"), "--init-from", copy, "--cost-limit", "5", "--quiet"]
    code, _, _ = call(monkeypatch, capsys, *words)
    assert (code, store.open_run(tmp_path / "tuned").config["init_from"]["run"]) == (0, folder.id)


def test_a_folder_that_is_not_a_run_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "notes.txt").write_text("not a run")
    code, _, err = call(monkeypatch, capsys, "evaluate", str(tmp_path))
    assert (code, "is not a run: it has no manifest.json" in err) == (2, True)
    code, _, err = call(monkeypatch, capsys, "evaluate", str(tmp_path / "notes.txt"))
    assert (code, "is a file, not the folder of a run" in err) == (2, True)


def test_evaluate_compare_plot_watch_report(run, monkeypatch, capsys, tmp_path):
    code, out, err = call(monkeypatch, capsys, "compare", str(run), str(tmp_path))
    assert f"left out: {tmp_path} is not a run" in err
    assert code == 2  # nothing evaluated yet
    shutil.copytree(run, tmp_path / "unfinished")
    code, out, _ = call(monkeypatch, capsys, "evaluate", str(run), "--episodes", "20", "--json")
    found = json.loads(out)
    assert (code, found["pooled"]["episodes"]) == (0, 40)
    assert store.open_run(run).finished
    store.open_run(run).verify()
    code, out, err = call(monkeypatch, capsys, "evaluate", str(run), "--episodes", "10")
    assert (code, "20 episodes" in out, "keeps its evaluation of 40 episodes" in err) == (0, True, True)
    code, out, _ = call(monkeypatch, capsys, "compare", str(run), str(run))
    assert (code, out.count("SimpleEnv")) == (0, 2)
    code, out, _ = call(monkeypatch, capsys, "train", "--resume", str(run))
    assert (code, "is finished and judged" in out) == (0, True)
    code, out, err = call(monkeypatch, capsys, "compare", str(tmp_path / "unfinished"), str(run))
    assert (code, out.count("SimpleEnv"), "unfinished has no evaluation: run tqpo evaluate" in err) == (0, 1, True)
    code, out, _ = call(monkeypatch, capsys, "plot", str(run), "--out", str(tmp_path))
    assert (code, (tmp_path / "learning.png").exists()) == (0, True)
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(monkeypatch, capsys, "plot", str(run), str(run))
    assert (code, (tmp_path / "plots" / "cost.png").exists()) == (0, True)
    code, out, _ = call(monkeypatch, capsys, "watch", str(run), "--out", str(tmp_path / "episode.gif"))
    assert (code, (tmp_path / "episode.gif").exists()) == (0, True)
    code, out, _ = call(monkeypatch, capsys, "report", str(run), "--out", str(tmp_path / "page.html"))
    assert (code, (tmp_path / "page.html").exists()) == (0, True)


@pytest.mark.parametrize(("word", "status"), [("meets", 0), ("cannot tell yet", 0), ("misses", 3)])
def test_a_missed_constraint_has_an_exit_status_where_asked(word, status, monkeypatch, capsys):
    monkeypatch.setattr("tqpo.output.conclude.judge", lambda *_: {"verdict": {"word": word}})
    assert call(monkeypatch, capsys, "evaluate", "run", "--json", "--fail-on-miss")[0] == status
    assert call(monkeypatch, capsys, "evaluate", "run", "--json")[0] == 0


def test_an_interrupt_while_the_policy_is_judged_says_what_is_kept(run, monkeypatch, capsys, tmp_path):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "evaluation.json").unlink(missing_ok=True)
    monkeypatch.setattr("tqpo.output.conclude.conclude", stopped)
    code, _, err = call(monkeypatch, capsys, "train", "--resume", str(copy), "--quiet")
    assert (code, f"training is done and kept; tqpo evaluate {copy}" in err) == (130, True)


def test_help_is_in_groups_with_the_short_name(monkeypatch, capsys):
    _, out, _ = call(monkeypatch, capsys, "train", "--help")
    assert out.startswith("usage: tqpo train ")
    assert "{None}" not in out
    groups = [out.index(f" {name} options ") for name in ("problem", "training", "environment", "output")]
    assert groups == sorted(groups)


def test_a_warning_of_ours_is_one_line_and_others_say_where():
    assert (
        cli.one_line("a checkpoint is damaged", store.StoreWarning, "store/run.py", 9)
        == "tqpo: a checkpoint is damaged\n"
    )
    assert "mine.py:9: RuntimeWarning: overflow" in cli.one_line("overflow", RuntimeWarning, "mine.py", 9, "")


def test_version(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "--version")
    assert (code, out) == (0, f"tqpo {__version__}\n")


def test_fewer_steps_than_an_iteration_are_said_before_training(monkeypatch, capsys, tmp_path):
    words = jobs.arguments(tmp_path / "run")
    words[words.index("--steps") + 1] = "10"
    words.insert(words.index("--set") + 1, "hidden=8,8")
    said = []

    def untrained(_group, _iterations, _folder, position, *_):
        said.append(capsys.readouterr().out)
        return position

    monkeypatch.setattr(loop, "drive", untrained)
    monkeypatch.setattr(loop, "choose_policies", lambda *_: None)
    code, _, _ = call(monkeypatch, capsys, *words)
    assert (code, said[0].startswith("steps = 10: an iteration has 200, so this is one of them\n")) == (0, True)
    assert store.open_run(tmp_path / "run").config["derived"]["algorithm"]["learner"]["network"]["hidden"] == [8, 8]


@pytest.mark.parametrize(("words", "episodes"), [([], 7), (["--episodes", "9"], 9)])
def test_a_resumed_run_is_judged_with_the_episodes_asked_for_at_first(
    run, words, episodes, monkeypatch, capsys, tmp_path
):
    asked = []
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "evaluation.json").unlink(missing_ok=True)
    monkeypatch.setattr("tqpo.cli.train.Train._conclude", lambda _self, _folder, n: asked.append(n))
    call(monkeypatch, capsys, "train", "--resume", str(copy), "--quiet", *words)
    assert asked == [episodes]


@pytest.mark.parametrize(
    "words", [["tasks"], ["tasks", "--observation", "SimpleEnv"], ["algorithms"], ["--help"], ["train", "--help"]]
)
def test_lists_and_help(words, monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, *words)
    assert code == 0
    assert len(out) > 200
