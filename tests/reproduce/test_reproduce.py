"""Reproduction: cells, groups, what is kept, what the files say. Training itself is tested elsewhere; here it is a few steps."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal

import numpy as np
import pytest
from jobs import call

from reference import ship
from reference.compare import differences
from tqpo import store
from tqpo.algorithms.presets import PRESETS
from tqpo.errors import ConfigError, Interrupted, TqpoError, UnknownNameError
from tqpo.networks import NetworkSpec
from tqpo.reproduce import cells, document, figures, groups, judge, learners, tables
from tqpo.reproduce.cells import Plan
from tqpo.reproduce.paper import SETS, TABLE1, TABLE2, Cell
from tqpo.training import loop
from tqpo.training.choose import Choice
from tqpo.training.policies import load_policies

TINY = {"network": NetworkSpec("lstm", (8,)), "n_envs": 2, "n_steps": 1000, "epochs": 1}


@pytest.fixture(scope="module", autouse=True)
def tiny_paper():
    """The paper's preset with a tiny network and batch."""
    before = dict(PRESETS["paper"])
    for name, config in before.items():
        PRESETS["paper"][name] = dataclasses.replace(config, learner=dataclasses.replace(config.learner, **TINY))
    yield
    PRESETS["paper"].update(before)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two cells of one group, trained for three iterations, evaluated and judged."""
    chosen = tuple(c for c in TABLE1 if c.task == "SimpleEnv" and c.algo == "tqpo")
    out = tmp_path_factory.mktemp("paper")
    plan = Plan(chosen, out, (0, 1), 6000, episodes=4, judged_seeds=1, judged_episodes=2, chunk=3)
    groups.run_group(plan, chosen)
    for cell in chosen:
        assert groups.unjudged(plan, cell)
        judging = judge.Judge(plan, 1)
        judging.played[cell] = {part: judge.play(plan, part) for part in [judge.Part(cell, 0, range(2))]}
        judging.write(cell)
        assert not groups.unjudged(plan, cell)
    return plan


def test_sets_are_the_paper():
    assert len(TABLE1) == 12
    assert len(TABLE2) == 10
    assert len(SETS["table1"]) == 15
    assert len({c.name for c in SETS["all"]}) == len(SETS["all"]) == 15 + 6 + 4 + 9
    shared = {c.name: c.published for c in TABLE1}
    for c in TABLE2:
        if c.name in shared:
            assert c.published.episode_return == shared[c.name].episode_return


def test_the_suite_has_its_own_limit(tmp_path):
    assert len(SETS["suite"]) == 6 * (3 + 2 * 2)  # tasks, algorithms without a level, two more at two levels
    cell = next(c for c in SETS["suite"] if c.task == "SafetyPointCircle1" and c.algo == "budget")
    (constraint,) = Plan((cell,), tmp_path).prepare(cell).config.constraints
    assert constraint.limit == 25.0


def test_groups_share_a_program(tmp_path):
    plan = Plan(tuple(SETS["all"]), tmp_path)
    of_all = plan.groups()
    assert len(of_all) == 17
    assert sorted(c.name for g in of_all for c in g) == sorted(c.name for c in SETS["all"])
    assert len(of_all[0]) == 4  # TQPO with its ablations
    for group in of_all:
        assert len({(c.task, c.preset, plan.prepare(c).group.algorithm) for c in group}) == 1


@pytest.mark.slow
def test_a_cell_says_everything(finished):
    plan = finished
    for cell in plan.cells:
        result = cells.read(plan.path(cell))
        assert result["complete"]
        assert result["settings"]["safety"] == cell.safety
        assert len(result["last_tenth"]["return"]) == 2
        assert [s["episodes"] for s in result["fresh"]["seeds"]] == [4, 4]
        assert result["judge"]["mujoco"]["pooled"]["episodes"] == 2
        assert result["judge"]["jax"]["pooled"]["episodes"] == 4
        assert result["provenance"]["versions"]["jax"]
        assert np.array(result["curves"]["safety_prob"]).shape == (3, 2)
        assert result["group"]["runs"] == 4
    kept = store.open_run(cells.policy_folder(plan.path(plan.cells[0])))
    kept.verify()
    assert list(load_policies(kept)) == [0]  # the seed that is judged
    assert not (plan.out / groups.GROUPS / "SimpleEnv-tqpo-paper").exists()


@pytest.mark.slow
def test_a_cell_that_was_made_without_a_judge_is_judged_later(finished, tmp_path):
    plan = dataclasses.replace(finished, out=pathlib.Path(shutil.copytree(finished.out, tmp_path / "paper")))
    cell = plan.cells[0]
    whole = cells.read(plan.path(cell))
    cells.write(plan.path(cell), whole | {"judge": None})
    assert groups.unjudged(plan, cell)
    assert not groups.unjudged(dataclasses.replace(plan, judged_seeds=0), cell)
    groups.lay_beside(plan, cell)
    assert cells.read(plan.path(cell))["judge"] == {"jax": whole["judge"]["jax"], "mujoco": None}


def test_results_of_other_versions_are_still_good(tmp_path):
    """A setting that the file is too old to have counts as its default; one that is gone does not count."""
    cell = TABLE1[0]
    plan = Plan((cell,), tmp_path)
    settings = plan.settings(cell)
    del settings["config"]["dual"]["max_multiplier"]
    settings["config"]["dual"]["no_such_setting_any_more"] = 1
    assert plan.is_current(cell, settings)
    settings["config"]["dual"]["gain"] = 0.7
    assert not plan.is_current(cell, settings)
    assert not dataclasses.replace(plan, steps=1).is_current(cell, plan.settings(cell))


def test_changed_settings_are_other_results(tmp_path):
    cell = next(c for c in SETS["fast"] if c.task == "SimpleEnv")
    plan = Plan((cell,), tmp_path, changes=(("delta", 0.2),))
    changed = plan.prepare(cell).config
    assert (changed.dual.delta, changed.constraints[0].safety) == (0.2, cell.safety)
    assert not plan.is_current(cell, Plan((cell,), tmp_path).settings(cell))
    assert plan.is_current(cell, plan.settings(cell))


@pytest.mark.slow
def test_what_is_done_is_not_done_again(finished):
    plan = finished
    assert plan.groups() == []
    assert len(dataclasses.replace(plan, seeds=(0, 1, 2)).groups()) == 1
    assert len(dataclasses.replace(plan, steps=7000).groups()) == 1
    path = plan.path(plan.cells[0])
    whole = path.read_text()
    path.write_text(json.dumps(json.loads(whole) | {"complete": False}))
    assert plan.groups() == [plan.cells[:1]]
    path.write_text("{")
    with pytest.raises(cells.TqpoError, match="remove it"):
        plan.groups()
    path.write_text(whole)


def test_averages_are_those_of_the_last_tenth():
    plan, cell = Plan((), None, (0, 1), 1), Cell("SimpleEnv", "tqpo", 0.9)
    n = 40
    metrics = {name: np.zeros((n, 2)) for name in ("return_sum", "skipped")}
    metrics |= {"steps": np.full((n, 2), 2000), "episodes": np.full((n, 2), 2), "safe_episodes": np.zeros((n, 2))}
    metrics["return_sum"][-4:] = [6.0, 10.0]
    metrics["safe_episodes"][-2:, 1] = 2
    last = cells.result_of(plan, cell, metrics)["last_tenth"]
    assert last["return"] == [3.0, 5.0]
    assert last["safety_prob"] == [0.0, 0.5]
    assert last["return_mean_std"] == pytest.approx([4.0, np.sqrt(2)])
    assert last["episodes"] == [8, 8]


def test_a_failure_names_its_group(tmp_path):
    plan = Plan((Cell("SimpleEnv", "nonsense", 0.9),), tmp_path)
    with pytest.raises(UnknownNameError, match="nonsense"):
        groups.run_plan(plan, lambda tasks, on_wait: iter(()))


@pytest.mark.slow
def test_tables(finished, capsys):
    plan = finished
    paths = [plan.path(cell) for cell in plan.cells]
    document.show(paths)
    assert "SimpleEnv" in capsys.readouterr().out
    content = tables.table1(tables.load(paths))
    assert tables.markdown(content).count("\n") == 4
    assert r"\begin{tabular}" in tables.latex(content)
    assert "±" not in tables.latex(content)


@pytest.mark.slow
def test_tables_figures_and_page_on_disk(finished, tmp_path, monkeypatch, capsys):
    """`tables` writes into its folder, and into a page only if that is named."""
    plan = finished
    old = f"before\n{document.begin(plan.out)}\nold\n{document.END}\nafter\n"
    page = tmp_path / "docs" / "reproduction.md"
    page.parent.mkdir()
    page.write_text(old)
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(monkeypatch, capsys, "reproduce", "tables", "--out", plan.out)
    written = {pathlib.Path(line).name for line in out.split()}
    assert (code, page.read_text()) == (0, old)
    assert {"table1.md", "table1.tex", "judge.md", "figure2.png", "figure3.svg", "figure4.png"} <= written
    code, out, _ = call(monkeypatch, capsys, "reproduce", "tables", "--out", plan.out, "--page", page)
    text = page.read_text()
    assert (code, out.split()[-1]) == (0, str(page))
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "**Table 1" in text
    assert "MuJoCo as the judge" not in text  # in the folder only
    code, _, err = call(monkeypatch, capsys, "reproduce", "figures", "--out", plan.out, "--page", "no.md")
    assert (code, "no.md lacks the marks" in err) == (2, True)
    with pytest.raises(ConfigError, match="holds no results"):
        document.write_all(tmp_path)


def test_the_released_configuration_beside_the_paper_and_ours():
    """Its table has the preset `paper` beside it; its readings are of one run each."""
    name = "SimpleEnv-qcpo-90-paper"
    folder = pathlib.Path(__file__).parents[2] / "results" / "paper"
    ours = tables.load([folder / f"{name}.json"])
    cell = ours[name] | {"settings": ours[name]["settings"] | {"preset": "released"}}
    cell |= {"last_tenth": cell["last_tenth"] | {"return_mean_std": [9.0, 1.0], "return": [8.0, 10.0]}}
    cell |= {"last_window": {"return": [7.0, 9.0], "safety_prob": [0.9, 1.0]}}
    cell |= {"discounted": {"return": [0.5, 0.7], "safety_prob": [1.0, 1.0]}}
    found = document.contents({"SimpleEnv-qcpo-90-released": cell}, {}, ours)
    assert found["released"].rows[0][3:6] == ("8.6 ± 0.4", "15.8 ± 2.6", "9.0 ± 1.0")
    assert found["readings"].rows[0][3:7] == ("8.6", "9.0", "8.0", "0.6")
    assert found["readings"].rows[0][-2:] == ("95.0", "100.0")
    assert not document.contents(ours, {})["released"].rows


def test_tables_of_certificates_dial_ablation_and_price():
    results = pathlib.Path(__file__).parents[2] / "results"
    dial, paper, whole = (tables.load(sorted((results / x).glob("*.json"))) for x in ("dial", "paper", "budget/5M"))
    rows = document.contents(dial, {})["dial"].rows
    assert [row[:3] for row in rows[:2]] == [("SimpleEnv", "80%", "5 of 5"), ("SimpleEnv", "90%", "5 of 5")]
    assert len(rows) == 3 * 4
    assert {row[3] for row in document.contents(paper, {})["certificates"].rows if "PPO" in row[2]} == {"0 of 5"}
    cell = whole["SimpleEnv-budget-90-fast"]
    other = {x: cell | {"settings": cell["settings"] | {"algo": x}} for x in ("budget-blind", "ppo")}
    found = document.contents(other, {}, whole)
    assert [row[0] for row in found["ablation"].rows] == ["budget", "budget-blind", "ppo"]
    simple = {name: x for name, x in whole.items() if name.startswith("SimpleEnv")}
    by_level = {
        level: np.mean([x["return"]["value"] for x in whole[f"SimpleEnv-budget-{level}-fast"]["fresh"]["seeds"]])
        for level in (90, 95)
    }
    assert document.contents(simple, {}, other)["price"].rows == [
        ("SimpleEnv", f"{level}%", f"{r:.1f}", f"{by_level[90]:.1f}", f"{100 * r / by_level[90]:.0f} %")
        for level, r in by_level.items()
    ]


def test_the_judge_takes_cells_that_were_trained_again_only_where_it_must():
    folder = pathlib.Path(__file__).parents[2] / "results" / "paper"
    kept, again = (tables.load(sorted(f.glob("*.json"))) for f in (folder, folder / "judged"))
    rows = document.contents(kept, again)["judge"].rows
    assert len(rows) == len(TABLE1)  # every cell once
    both = next(name for name in again if name in kept)
    verdict = again[both]["judge"]
    judged_now = document.contents(
        kept | {both: kept[both] | {"judge": verdict}}, {both: again[both] | {"judge": None}}
    )
    assert len(judged_now["judge"].rows) == sum(tables.is_judged(cell) for cell in kept.values()) + 1


def test_agreement():
    a = {"value": 1.0, "low": 0.8, "high": 1.2}
    assert tables.agree(a, {"value": 1.25, "low": 1.05, "high": 1.45})
    assert not tables.agree(a, {"value": 1.3, "low": 1.1, "high": 1.5})


@pytest.mark.slow
def test_two_folders_are_compared(finished, tmp_path):
    plan = finished
    other = tmp_path / "other"
    shutil.copytree(plan.out, other)
    names = sorted(f"{cell.name}.json" for cell in plan.cells)
    changed = json.loads((other / names[0]).read_text()) | {"group": None}
    (other / names[0]).write_text(json.dumps(changed))
    assert differences(plan.out, other) == {name: [] for name in names}
    (other / names[0]).write_text(json.dumps(changed | {"skipped_updates": 1}))
    (other / names[1]).unlink()
    assert differences(plan.out, other) == {names[0]: ["skipped_updates"], names[1]: ["missing"]}


class Lost(Exception):
    pass


@pytest.mark.slow
def test_a_group_that_was_stopped_or_lost_goes_on(tmp_path, monkeypatch):
    """It goes on from its last checkpoint, and ends with the numbers of one that was never stopped."""
    chosen = tuple(c for c in TABLE1 if c.task == "SimpleEnv" and c.algo == "tqpo")[:1]
    whole = Plan(chosen, tmp_path / "whole", (0,), 10_000, episodes=0, chunk=1)
    groups.run_group(whole, chosen)
    drive, seen = loop.drive, []

    def until(last, end):
        def driven(*arguments):
            *arguments, watch = arguments

            def watching(iteration, chunk):
                seen.append(iteration)
                watch(iteration, chunk)
                if iteration == last:
                    end()

            return drive(*arguments, watching)

        monkeypatch.setattr(loop, "drive", driven)

    def lose():
        raise Lost

    monkeypatch.setattr(groups, "PARTIAL_EVERY", 1)
    cases = {
        "lost": (Lost, lose, 2, [3, 4, 5]),
        "stopped": (Interrupted, lambda: os.kill(os.getpid(), signal.SIGTERM), None, [4, 5]),
    }
    for name, (error, end, every, rest) in cases.items():
        plan = dataclasses.replace(whole, out=tmp_path / name, checkpoint_every=every)
        until(3, end)
        with pytest.raises(error):
            groups.run_group(plan, chosen)
        partial = cells.read(plan.path(chosen[0]))
        assert (partial["complete"], len(partial["curves"]["return_mean"])) == (False, 3)
        seen.clear()
        until(6, end)
        groups.run_group(plan, chosen)
        assert seen == rest
        assert not any(differences(whole.out, plan.out).values())
        assert not list(plan.out.glob(".groups/*"))


def test_the_time_of_a_command_names_the_hardware_that_trained(tmp_path):
    plan = Plan(tuple(SETS["fast"][:1]), tmp_path)
    hardware = {"platform": "gpu", "device": "one"}
    cells.write(plan.path(plan.cells[0]), {"provenance": {"hardware": hardware}})
    for _ in range(2):
        groups.add_timing(plan, {"seconds": 1.0}, plan.cells[0])
    first, second = json.loads((tmp_path / "timing.json").read_text())["commands"]
    assert first["provenance"]["hardware"] == second["provenance"]["hardware"] == hardware


@pytest.mark.slow
def test_progress_and_failures(finished, capsys):
    """Nothing is left to train: the runner gets no task, the view no line; a failure is named."""
    plan = finished
    assert groups.run_plan(plan, lambda tasks, on_wait: iter([])) == [plan.path(c) for c in plan.cells]
    more = dataclasses.replace(plan, seeds=(0, 1, 2))

    def failing(tasks, on_wait):
        on_wait()
        yield tasks[0][0], TqpoError("no device")

    with pytest.raises(TqpoError, match=r"SimpleEnv tqpo \(paper\): no device"):
        groups.run_plan(more, failing)


@pytest.mark.slow
def test_the_best_policy_of_a_cell_is_shipped(finished, tmp_path, monkeypatch):
    cell = finished.cells[0]
    plan = dataclasses.replace(finished, out=tmp_path / "cells", judged_seeds=2)
    policy = load_policies(store.open_run(cells.policy_folder(finished.path(cell))))[0]
    groups.keep_policies(plan, cell, {seed: {3: policy} for seed in (0, 1)}, dict.fromkeys((0, 1), Choice(3, None)))
    result = cells.read(finished.path(cell))
    for seed, word in zip(result["fresh"]["seeds"], ("misses", "meets"), strict=True):
        seed["constraints"][0]["verdict"]["word"] = word
    path = plan.path(cell)
    cells.write(path, result)
    shipped = store.open_run(ship.ship(path, tmp_path, episodes=3))
    assert shipped.config["job"]["seeds"] == [1]
    assert json.loads(shipped.path("policy.json").read_text())["description"]["chosen"][0]["of_cell"] == cell.name
    changed = dataclasses.replace(PRESETS["paper"]["tqpo"], indicator_scale=7.0)
    monkeypatch.setitem(PRESETS["paper"], "tqpo", changed)
    again = store.open_run(ship.ship(path, tmp_path / "again", episodes=3))
    assert again.config == shipped.config, "a policy keeps the settings that it was made with"


def test_the_leaderboard_has_published_means_beside_it():
    def estimate(value):
        return {"value": value, "low": value - 1, "high": value + 1}

    first = {"safety_prob": estimate(0.9), "episode_cost_mean": estimate(12.0)}
    cell = {
        "settings": {"task": "SafetyPointGoal1", "algo": "tqpo", "safety": 0.9, "preset": "fast"},
        "complete": True,
        "fresh": {"pooled": {"return": estimate(15.0), "constraints": [first]}},
        "certificates": {"0": {"word": "certified"}, "1": {"word": "refused"}},
    }
    rows = tables.leaderboard({"SafetyPointGoal1-tqpo-90-fast": cell}).rows
    assert (rows[0][1], rows[0][3], rows[0][-1]) == ("90%", "15.0 [14.0, 16.0]", "1 of 2")
    assert rows[1] == ("SafetyPointGoal1", "–", "PPOLag, OmniSafe", "13", "–", "26", "–")
    assert len(rows) == 5


def test_figures_show_the_limit_that_was_asked_for():
    cell = {
        "settings": {"algo": "tqpo", "preset": "fast", "safety": 0.9, "config": {"constraints": [{"limit": 25.0}]}},
        "curves": {"every": 1, "steps_per_iteration": 10, "return_mean": [[1.0]], "episode_cost_mean": [[20.0]]},
    }
    assert figures.curve_of(cell).info.cost_limit == 25.0


@pytest.mark.slow
def test_training_is_measured_beside_another_checkout(tmp_path, monkeypatch, capsys):
    out = tmp_path / "bench.json"
    small = ["--set", "n_envs=2", "n_steps=16", "--episodes", "2", "--rounds", "1"]
    here = pathlib.Path(learners.__file__).parents[3]
    code, *_ = call(monkeypatch, capsys, "bench", "learners", *small, "--ahead", "--against", here, "--out", out)
    assert code == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert {"this", "other", "ratio"} <= row.keys()
    assert all(row[name][f"{part}_s"] >= 0 for name in ("this", "other") for part in learners.PARTS)
