"""The page: whole, escaped, without addresses; and in a real browser, where one is installed."""

import functools
import json
import re
import shutil
import subprocess

import jax
import numpy as np
import pytest
from results import LIMIT, Always, curves, summarised

from tqpo import envs
from tqpo.algorithms.settings import Constraint
from tqpo.envs import State
from tqpo.errors import ConfigError
from tqpo.evaluation.episodes import Totals, Trace
from tqpo.evaluation.summary import summarise
from tqpo.output import playback, report
from tqpo.output.report import Report, page, verdict, write_report
from tqpo.physics.movable import Boxes

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = "</script><script>document.title='owned'</script>\"'><img src=x onerror=alert(1)>"


@functools.cache
def recorded(task):
    """An episode of six states drawn by hand."""
    config, rng = envs.TASKS[task], np.random.default_rng(0)

    def places(count, size=2):
        return np.broadcast_to(rng.uniform(-1, 1, (count, size)), (6, count, size))

    boxes = Boxes(rng.uniform(-1, 1, (6, config.gremlins, 3)), np.ones((6, config.gremlins, 4)) / 2, np.zeros(0))
    states = State(
        key=None,
        pose=rng.uniform(-2, 2, (6, 3)),
        velocity=np.zeros((6, 3)),
        acceleration=np.zeros((6, 3)),
        hazards=places(config.hazards),
        buttons=places(config.buttons),
        goal=np.repeat([[0.5, 0.5], [-0.5, 0.25]], 3, axis=0),
        goal_button=np.full(6, 1 if config.buttons else -1),
        gremlins=places(config.gremlins, 3),
        boxes=boxes,
        touching=np.zeros(6, bool),
        timer=np.array([0, 0, 0, 10, 9, 10]),
        distance=np.zeros(6),
        cost=np.zeros(6),
        steps=np.arange(6),
    )
    costs = np.zeros((5, 1 + len(config.sources)))
    costs[2, 0] = 1
    seen = Trace(states, np.zeros((6, 1)), np.linspace(0, 1, 5), costs)
    return seen, playback.encode(seen, config, cost_limit=15.0, title=f"{task}, {EVIL}")


def full(**changes):
    parts = {
        "title": f"SimpleEnv {EVIL}",
        "evaluations": [summarised(rate=0.98, label=EVIL), summarised(rate=0.9, label="sampled")],
        "curves": [curves(("tqpo", EVIL))],
        "episodes": [recorded(task)[1] for task in envs.TASKS],
        "settings": {"algorithm": EVIL, "learner": {"hidden": [128, 128], EVIL: None}},
        "provenance": {"commit": "abc"},
    }
    return Report(**(parts | changes))


@pytest.mark.parametrize("task", envs.TASKS)
def test_a_recording_gives_back_what_was_seen(task):
    seen, found = recorded(task)
    json.dumps(found, allow_nan=False)

    def added(name, shape):
        return np.cumsum(np.array(found[name]).reshape(6, *shape), 0) / 1000

    np.testing.assert_allclose(added("poses", (3,)), seen.states.pose, atol=5.1e-4)
    gremlins = added("gremlins", (len(found["circles"]), 3))
    np.testing.assert_allclose(gremlins[..., :2], seen.states.boxes.pos[..., :2], atol=5.1e-4)
    np.testing.assert_allclose(added("returns", ()), [0, *np.cumsum(seen.rewards)], atol=5.1e-4)
    assert found["costs"] == [3]
    button = 1 if found["buttons"] else -1
    second = [-0.5, 0.25, button]
    assert found["goals"] == [[0, 0.5, 0.5, button], [3, *second], [5, *second]]  # the last: the same one once more


def test_an_episode_is_recorded():
    env = envs.make("SimpleEnv", max_steps=20)
    found = playback.record_episode(env, Always([0.05, 0.0]), jax.random.key(0), deterministic=True)
    assert len(found["poses"]) == 3 * 21
    moved = np.cumsum(np.array(found["poses"]).reshape(-1, 3), 0)
    assert np.abs(moved[-1] - moved[0]).max() > 10  # mm


def test_only_tasks_can_be_recorded():
    with pytest.raises(ConfigError, match="built-in task"):
        playback.record_episode(object(), Always([0.0, 0.0]), jax.random.key(0))  # type: ignore[arg-type]


def test_the_page_is_whole_and_alone(tmp_path):
    path = write_report(tmp_path / "deep" / "report.html", full())
    text = path.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    assert "@import" not in text
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_all_text_is_escaped():
    text = page(full())
    assert EVIL not in text
    assert "<img" not in text
    assert text.count("<script") == 2  # the player and its data
    assert text.count("</script") == 2


def test_the_data_of_the_player_survive_escaping():
    data = re.search(r'<script type="application/json" id=episodes>(.*?)</script>', page(full()), re.DOTALL)
    assert json.loads(data[1])[0]["title"].endswith(EVIL)


def test_words_for_every_verdict():
    assert "Meets 90% safety" in verdict(summarised(rate=0.99))
    assert "Misses 90% safety" in verdict(summarised(rate=0.6))
    assert "Cannot tell yet" in verdict(summarised(rate=0.9))


def test_the_headline_names_what_was_asked():
    asked = {"name": "energy", "kind": "mean", "cost_limit": 20.0, "safety": 0.9}
    assert report.aim_of(asked, 2) == "mean energy ≤ 20"
    assert report.aim_of(asked | {"kind": "quantile", "safety": 0.5}, 2) == "50% safety (energy)"
    assert report.aim_of(asked | {"kind": "quantile"}, 1) == "90% safety"
    assert "No constraint was set" in verdict(summarised(constraints=()))


def test_little_is_enough():
    text = page(Report("a run", [summarised(seeds=1, n=5)]))
    assert "Watch an episode" not in text
    assert "Settings" not in text
    with pytest.raises(ConfigError):
        page(Report("a run", []))


def test_evaluations_with_different_constraints_share_a_page():
    two = (LIMIT, Constraint(channel=1, limit=3.0, safety=0.5))
    costs = np.array([[1.5, 0.0], [200.25, 9.0]])
    odd = summarise({4: Totals(np.ones(2), costs, np.ones(2))}, two, ("cost", "other"), deterministic=True)
    text = page(full(evaluations=[summarised(), odd, summarised(constraints=())], curves=()))
    assert "Pr[other ≤ 3] ≥ 50%" in text


def test_several_constraints_each_by_name_the_missed_one_first():
    met, bound = Constraint(channel=0, limit=59.0, safety=0.9), Constraint(channel=1, kind="mean", limit=0.04)
    text = page(full(evaluations=[summarised(constraints=(met, bound))], curves=[curves(("a",)), curves(("b",))]))
    heads = re.findall(r"<h3>.*?</span> (.*?)</h3>", text)
    assert heads == ["E[hazards] ≤ 0.04", "Pr[cost ≤ 59] ≥ 90%"]
    assert "Misses mean hazards ≤ 0.04" in text
    figures = re.findall(r"<h2>Training and episode cost: (.*?)</h2>", text)
    assert figures == heads
    named = re.findall(r'aria-label="([^":]+): E\[hazards', text)
    assert named == ["Learning curves", "Multiplier over training", "Histogram and tail of the episode cost"]
    rows = re.findall(r"<tbody.*?</tbody>", text)
    assert all(row.count("<td>E[hazards] ≤ 0.04</td>") == 1 for row in rows if "rowgroup" in row)


def test_the_tail_is_beside_the_probability():
    costs = np.array([0.01] * 95 + [0.0312] * 4 + [0.5])[:, None]
    small = (Constraint(limit=0.04, safety=0.9),)
    text = page(
        Report("a", [summarise({0: Totals(np.ones(100), costs, np.ones(100))}, small, ("c",), deterministic=True)])
    )
    assert "<br>at worst 0.5000" in text
    assert re.search(r"99% quantile</div><div class=value>0.0312<", text)
    assert re.search(r"90% quantile</div><div class=value>0.0100<", text)
    old = summarised()
    for scope in (old["pooled"], *old["seeds"]):
        for c in scope["constraints"]:
            del c["episode_cost_99"], c["episode_cost_max"]
    assert "<br>at worst" not in page(Report("from before", [old]))


def browse(path, tmp_path, *extra):
    """The page's DOM after nine seconds of its own time, and what the console said."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=9000"]
    command += [*extra, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium")
def test_a_browser_shows_the_verdict_without_script_errors(tmp_path):
    path = write_report(tmp_path / "report.html", full(evaluations=[summarised(rate=0.99)]))
    dom, said = browse(path, tmp_path)
    assert said == []
    assert 'data-ready="true"' in dom
    assert "data-script-error" not in dom
    assert "Meets 90% safety" in dom
    assert "owned" not in re.search(r"<title>(.*?)</title>", dom)[1].replace("title='owned'", "")
    assert re.search(r'id="step">0 of 5<', dom)  # the player has drawn


@pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium")
def test_a_browser_plays_every_episode(tmp_path):
    """A script of the test's own, which the page's policy would forbid, presses the buttons."""
    path = write_report(tmp_path / "report.html", full())
    script = """
      const seen = [], by = (id) => document.getElementById(id), tell = (x, e) => x.dispatchEvent(new Event(e));
      const later = (ms) => new Promise((done) => setTimeout(done, ms));
      (async () => {
        for (let i = 0; i < 4; i++) {
          by("choose").value = i; tell(by("choose"), "change"); by("play").click();
          while (by("play").textContent === "Pause") await later(50);
          seen.push(by("step").textContent + by("play").textContent + by("cost").textContent);
          by("scrub").value = 2; tell(by("scrub"), "input"); seen.push(by("step").textContent + by("play").textContent);
        }
        document.body.dataset.seen = seen.join("|");
      })();"""
    text = re.sub(r"<meta http-equiv.*?>", "", path.read_text("utf-8"))
    # virtual time knows timers, not frames; and a frame's time may lie before the click that asked for it
    timed = (
        "<script>window.requestAnimationFrame = (f) => setTimeout(() => f(performance.now() - 50), 16);</script></head>"
    )
    text = text.replace("</head>", timed).replace("</body>", f"<script>{script}</script></body>")
    path.write_text(text, "utf-8")
    dom, said = browse(path, tmp_path, "--blink-settings=preferredColorScheme=0", "--window-size=390,800")
    assert said == []
    assert "data-script-error" not in dom
    seen = re.search(r'data-seen="(.*?)"', dom)[1].split("|")
    assert seen == ["5 of 5Replay1 (limit 15)", "2 of 5Play"] * 4
