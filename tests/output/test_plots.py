"""Figures: that they draw what they are given, in files that open. How they look was looked at."""

import itertools
import pathlib
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from results import STEPS, N, curves

from tqpo.errors import ConfigError, RenderError
from tqpo.output import conclude, plots, video
from tqpo.output.plots import Curve, RunInfo


def evaluation(costs, limit=15.0, label="tqpo"):
    costs = np.asarray(costs, float)
    q, share = np.quantile(costs, 0.9, method="inverted_cdf"), (costs <= limit).mean()
    found = {"episode_cost_quantile": {"value": q}, "safety_prob": {"value": share}}
    return {
        "label": label,
        "constraints": [{"channel": 0, "name": "cost", "kind": "quantile", "cost_limit": limit, "safety": 0.9}],
        "seeds": [{"episode_costs": costs[:, None].tolist()}],
        "pooled": {"constraints": [found]},
    }


def texts(figure):
    svg = ET.fromstring(plots.inline_svg(figure, "x"))
    return " ".join("".join(element.itertext()) for element in svg.iter("{http://www.w3.org/2000/svg}text"))


def test_runs_are_sorted_by_label_and_constraint():
    runs = [RunInfo("a", 15.0, 0.9), RunInfo("b", 15.0, 0.95), RunInfo("a", 15.0, 0.9)]
    two = np.arange(N * 3 * 2, dtype=float).reshape(N, 3, 2)
    first, second = plots.make_curves({"multiplier": two}, STEPS, runs, constraint=1)
    assert (first.info, second.info) == (runs[0], runs[1])
    np.testing.assert_array_equal(first.metrics["multiplier"], two[:, [0, 2], 1])
    np.testing.assert_array_equal(second.metrics["multiplier"], two[:, [1], 1])


def test_nothing_is_drawn_before_the_first_episode():
    c = curves()[0]
    assert np.isnan(c.metrics["return_mean"][0]).all()
    x, mean, low, high = plots.band(c, "return_mean")
    assert len(x) == N - 1
    assert np.isfinite([mean, low, high]).all()


def test_the_band_is_one_deviation_within_the_seeds_range():
    values = np.array([[0.0, 0.0, 0.0, 1.0]])  # mean 1/4, deviation √3/4: below it the smallest value is nearer
    c = Curve(RunInfo("a"), STEPS[:1], {"safety_prob": values})
    _, mean, low, high = plots.band(c, "safety_prob")
    assert (mean[0], low[0]) == (0.25, 0)
    assert high[0] == pytest.approx(0.25 + np.sqrt(3) / 4)


def test_long_runs_are_thinned_out():
    c = Curve(RunInfo("a"), np.arange(5000), {"return_mean": np.ones((5000, 2))})
    x, *_ = plots.band(c, "return_mean")
    assert len(x) == plots.MOST_POINTS
    assert x[-1] == 4999


def test_learning_curves():
    figure = plots.learning_curves(curves(), "SimpleEnv")
    written = texts(figure)
    for text in ("SimpleEnv", "a", "b", "Return", "Episode cost, 90% quantile", "d = 15", "90%", "environment steps"):
        assert text in written
    assert len(figure.axes) == 4


def test_multiplier_and_tilt():
    assert len(plots.multiplier_curves(curves()).axes) == 2
    bare = [Curve(c.info, c.steps, {"multiplier": c.metrics["multiplier"]}) for c in curves()]
    assert len(plots.multiplier_curves(bare).axes) == 1
    with pytest.raises(ConfigError):
        plots.multiplier_curves([Curve(RunInfo("ppo"), STEPS, {})])


@pytest.mark.parametrize("limit", [15.0, 14.5, 0.0, 100.0])
def test_no_bar_straddles_the_limit(limit):
    costs = np.random.default_rng(0).integers(0, 300, 500)
    edges = plots.histogram_edges(costs, limit, 300)
    assert edges[0] <= -0.5
    for left, right in itertools.pairwise(edges):
        inside = costs[(costs > left) & (costs < right)] <= limit
        assert inside.all() or not inside.any()


def test_histogram():
    costs = np.random.default_rng(0).poisson(9, 400)
    figure = plots.cost_histogram([evaluation(costs), evaluation(costs / 7, 1.5, "parts")])
    written = texts(figure)
    for text in ("tqpo", "400 episodes", "limit 15", "limit 1.5", "90% quantile", "episode cost", "Pr[C > x]"):
        assert text in written
    heights = [sum(bar.get_height() for bar in ax.patches) for ax in figure.axes[::2]]
    assert heights == pytest.approx([1, 1])


def test_the_tail_is_how_often_a_cost_is_exceeded():
    costs = [0, 1, 1, 2, 20, 40, 40, 40, 90, 300]
    figure = plots.cost_histogram([evaluation(costs)])
    whole, beyond = figure.axes[1].get_lines()[:2]
    np.testing.assert_array_equal(whole.get_xdata(), [0, 1, 2, 15, 20, 40, 90, 300])
    np.testing.assert_allclose(whole.get_ydata(), [0.9, 0.7, 0.6, 0.6, 0.5, 0.2, 0.1, 0.05])  # 0 is drawn at the foot
    assert beyond.get_xdata()[0] == 15
    assert figure.axes[1].get_yscale() == "log"
    written = texts(figure)
    for text in ("60.0% beyond 15", "at worst 300", "10%"):
        assert text in written


def test_files_open(tmp_path):
    png, svg = plots.save(plots.learning_curves(curves()), tmp_path / "plots" / "learning")
    with Image.open(png) as image:
        assert image.width == 1440
    ET.parse(svg)
    assert svg.read_text() == plots.save(plots.learning_curves(curves()), tmp_path / "again")[1].read_text()


def test_strange_names_stay_names():
    labels = ("a $x_1$ b", "<script>", "_hidden", "a&b", "50%")
    written = texts(plots.learning_curves(curves(labels)))
    for label in labels:
        assert label in written


def test_inline_figures_share_a_page():
    one, two = (plots.inline_svg(plots.learning_curves(curves()), name) for name in ("one", "two"))
    ids = [{e.get("id") for e in ET.fromstring(svg).iter() if e.get("id")} for svg in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert "currentColor" in one
    assert plots.INK not in one


def test_every_run_has_its_label_and_colour():
    def run(path, goal="90%", task="SimpleEnv"):
        job = SimpleNamespace(task=task, name=task, title="tqpo")
        return SimpleNamespace(folder=pathlib.Path(path)), SimpleNamespace(job=job, goal=goal)

    def labels(*runs):
        return conclude.labels_of(*zip(*runs, strict=True))  # type: ignore[arg-type]

    assert labels(run("runs/a"), run("runs/b", "95%")) == ["tqpo 90%", "tqpo 95%"]
    assert labels(run("runs/a"), run("runs/b")) == ["a: tqpo 90%", "b: tqpo 90%"]
    assert labels(run("x/a"), run("y/a")) == ["x/a: tqpo 90%", "y/a: tqpo 90%"]
    assert labels(run("a"), run("b", task="DynamicEnv")) == ["SimpleEnv: tqpo 90%", "DynamicEnv: tqpo 90%"]

    drawn = curves(("a", "b", "c"))
    drawn[0] = Curve(drawn[0].info, drawn[0].steps, {"return_mean": drawn[0].metrics["return_mean"]})  # without λ
    lines = {line.get_label(): line.get_color() for line in plots.multiplier_curves(drawn).axes[0].get_lines()}
    assert lines == {"b": plots.COLOURS[1], "c": plots.COLOURS[2]}  # as in the other figures


def test_wrong_shapes():
    with pytest.raises(ConfigError, match="return_mean"):
        plots.make_curves({"return_mean": np.ones((N, 2))}, STEPS, [RunInfo("a")])


def frames(n=250, size=480):
    """A disc that drives about on squares that stay, much as a task is drawn."""
    y, x = np.mgrid[: int(1.1 * size), :size]
    base = np.full((*x.shape, 3), 250, np.uint8)
    base[100:180, 300:380] = (59, 105, 224)
    for t in range(n):
        frame = base.copy()
        cx, cy = size * (0.5 + 0.3 * np.cos(t / 20)), size * (0.5 + 0.3 * np.sin(t / 13))
        frame[(x - cx) ** 2 + (y - cy) ** 2 < (size / 12) ** 2] = (224, 58, 62)
        yield frame


def test_a_gif_of_an_episode_is_small(tmp_path):
    path = video.write_video(tmp_path / "episode.gif", frames(), frame_duration=0.08)
    assert path.stat().st_size < 3e6
    with Image.open(path) as image:
        assert (image.n_frames, image.size, image.info["duration"]) == (250, (360, 396), 80)
        image.seek(100)
        drawn = np.asarray(image.convert("RGB"), int)
    blue = drawn[75:135, 225:285].reshape(-1, 3)
    assert np.abs(np.median(blue, 0) - (59, 105, 224)).max() < 12


def test_an_mp4_where_there_is_ffmpeg(tmp_path, monkeypatch):
    if video.find_ffmpeg() is None:
        pytest.skip("needs ffmpeg: apt-get install ffmpeg")
    assert video.write_video(tmp_path / "episode.mp4", frames(20, 101), 0.08).stat().st_size > 500
    monkeypatch.setattr(video, "find_ffmpeg", lambda: None)
    with pytest.raises(RenderError, match=r"\.gif"):
        video.write_video(tmp_path / "other.mp4", frames(2, 100), 0.08)


def test_videos_that_cannot_be(tmp_path):
    for name, given, duration in (("a.avi", frames(1), 0.08), ("a.gif", [], 0.08), ("a.gif", frames(1), 0.0)):
        with pytest.raises(ConfigError):
            video.write_video(tmp_path / name, given, duration)
