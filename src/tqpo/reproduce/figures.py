"""The paper's Figures 2, 3 and 4, from the cells' curves."""

import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tqpo.maths import statistics
from tqpo.output import plots
from tqpo.output.figures import INK, finish, legend, new_figure, save, style
from tqpo.reproduce.paper import SUITE, TABLE1
from tqpo.reproduce.tables import Cells, name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TASKS = tuple(dict.fromkeys(c.task for c in TABLE1))
LINES = (("tqpo", 0.90), ("tqpo", 0.95), ("qcpo", 0.90), ("qcpo", 0.95), ("ppo-lag", 0.90))
WITHIN, BEYOND = "#2a78b8", "#c8553d"
PANELS = 3  # of a figure, side by side
FRONTIER = {  # algorithm and preset → what it is called there, its colour
    ("ppo-lag", "paper"): ("PPO-Lagrangian", "#8a8f98"),
    ("qcpo", "paper"): ("QCPO", "#e0a030"),
    ("tqpo", "paper"): ("TQPO", "#2a78b8"),
    ("budget", "fast"): ("budget", "#c8553d"),
    ("budget-dial", "fast"): ("one run, all levels", "#3d8c5a"),
}
FAST_FRONTIER = {  # of the suite
    ("ppo", "fast"): ("PPO", "#9aa0a8"),
    ("ppo-lag", "fast"): ("PPO-Lagrangian", "#7b4fa3"),
    ("ppo-early", "fast"): ("PPO, ended at the limit", "#e0a030"),
    ("tqpo", "fast"): ("TQPO", "#2a78b8"),
    ("budget", "fast"): ("budget", "#c8553d"),
}


def limit_of(cell: dict[str, Any]) -> float:
    """d, as it was asked for."""
    return float(cell["settings"]["config"]["constraints"][0]["limit"])


def curve_of(cell: dict[str, Any]) -> plots.Curve:
    curves, settings = cell["curves"], cell["settings"]
    level = "" if settings["algo"] == "ppo-lag" else f" {settings['safety']:.0%}"
    metrics = {k: np.array(v) for k, v in curves.items() if isinstance(v, list)}
    n = len(metrics["return_mean"])
    steps = (np.arange(n) * curves["every"] + 1) * curves["steps_per_iteration"]
    return plots.Curve(plots.RunInfo(name_of(cell) + level, limit_of(cell), settings["safety"]), steps, metrics)


def grid(cells: Cells, rows: tuple[tuple[str, str], ...]):
    """One row per metric, one column per task."""
    with style():
        figure, axes = new_figure(len(rows), len(TASKS), (4.2 * len(TASKS), 2.7 * len(rows) + 0.6))
        for i, (metric, name) in enumerate(rows):
            for j, task in enumerate(TASKS):
                ax = axes[i * len(TASKS) + j]
                wanted = [f"{task}-{algo}-{100 * level:g}-paper" for algo, level in LINES]
                curves = [curve_of(cells[key]) for key in wanted if key in cells]
                ax.set_title(f"{task}: {name}")
                if curves:
                    plots.draw_curves(ax, curves, metric)
                    mark(ax, metric, curves)
                else:
                    ax.text(0.5, 0.5, "not run", ha="center", transform=ax.transAxes)
        legend(figure, "")
    return figure


def mark(ax: "Axes", metric: str, curves: list[plots.Curve]) -> None:
    """The limit or the levels, and an axis that shows them."""
    if metric.startswith("episode_cost"):
        limits = {curve.info.cost_limit for curve in curves}
        ax.set_ylim(0, min(plots.cost_top(curves, metric), 8 * max(x or 0.0 for x in limits)))
        plots.levels(ax, limits, lambda d: f"d = {d:g}")
    if metric == "safety_prob":
        ax.set_ylim(0.4, 1.005)
        ax.yaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
        plots.levels(ax, {0.90, 0.95}, lambda p: f"{p:.0%}")


def tilted(cells: Cells, task: str):
    """Figure 4: how the cost quantile is distributed over training, without and with the tilt."""
    algos = {"tqpo-no-tilt": "without the tilt", "tqpo": "with the tilt"}
    with style():
        figure, axes = new_figure(len(algos), 1, (6.0, 5.0))
        for ax, (algo, name) in zip(axes, algos.items(), strict=True):
            ax.set_title(f"{task}, 95%: cost quantile {name}")
            if cell := cells.get(f"{task}-{algo}-95-paper"):
                draw_quantiles(ax, cell)
            else:
                ax.text(0.5, 0.5, "not run", ha="center", transform=ax.transAxes)
        axes[-1].set_xlabel("episode-cost quantile q")
        top = max(ax.get_ylim()[1] for ax in axes)
        for ax in axes:
            ax.set_ylim(0, top)
    return figure


def draw_quantiles(ax: "Axes", cell: dict[str, Any]) -> None:
    q = np.array(cell["curves"]["episode_cost_quantile"])
    lam = np.array(cell["curves"]["multiplier"])
    q, lam = q[len(q) // 10 :], lam[len(lam) // 10 :]  # the first tenth is an untrained policy's
    limit = limit_of(cell)
    top = 4 * limit
    edges = np.arange(-0.5, top + 1.5, 2.0)
    share = np.histogram(np.minimum(q.ravel(), top), edges)[0] / q.size
    centres = edges[:-1] + 1.0
    ax.bar(centres, share, 1.8, color=np.where(centres > limit, BEYOND, WITHIN))
    ax.axvline(limit + 0.5, color=INK, linestyle=(0, (4, 2)), linewidth=1.2)  # between 15 and 16
    ax.annotate(f"d = {limit:g}", (limit + 0.5, 0.62), (4, 0), ("data", "axes fraction"), "offset points", fontsize=9)
    change = np.diff(lam, axis=0)
    up, down = change[change > 0].sum() / lam.shape[1], -change[change < 0].sum() / lam.shape[1]
    above = float((q > limit).mean())
    text = f"q > d in {above:.0%} of iterations\nλ rises by {up:.1f} and falls by {down:.1f} in all (mean of seeds)"
    ax.text(0.98, 0.95, text, ha="right", va="top", transform=ax.transAxes, fontsize=9)
    ax.set_ylabel("share of iterations")
    ax.yaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    finish(ax, steps=False)


def frontier(cells: Cells, sure: bool = False):
    """Return against safety in fresh episodes, a point for each policy; the paper's own means as stars.

    `sure` takes the lower end of each policy's 95 % interval instead of the share, and joins the positions of a dial.
    """
    suite = tuple(dict.fromkeys(c.task for c in SUITE if any(x["settings"]["task"] == c.task for x in cells.values())))
    tasks, known = (suite, FAST_FRONTIER) if suite else (TASKS, FRONTIER)
    with style():
        columns = min(len(tasks), PANELS)
        rows = -(-len(tasks) // columns)
        figure, axes = new_figure(rows, columns, (4.6 * columns, 0.4 + 4.0 * rows))
        for ax in axes[len(tasks) :]:
            ax.set_axis_off()
        for ax, task in zip(axes, tasks, strict=False):
            ax.set_title(task)
            for cell in (c for c in cells.values() if c["settings"]["task"] == task):
                draw_policies(ax, cell, sure, known)
            for level in (0.80, 0.90, 0.95, 0.99) if sure else (0.90, 0.95):
                ax.axvline(level, color=INK, linestyle=(0, (4, 2)), linewidth=0.8, alpha=0.6)
            ax.set_xlim(0.5 if sure else None, 1.0)
            ax.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
            ax.set_xlabel("Pr[C ≤ d] is at least, with 95 % confidence" if sure else "Pr[C ≤ d]")
            ax.set_ylabel("return")
            finish(ax, steps=False)
        legend(figure, "")
    return figure


def draw_policies(ax: "Axes", cell: dict[str, Any], sure: bool, known: dict[tuple[str, str], tuple[str, str]]) -> None:
    settings = cell["settings"]
    label, colour = known.get((settings["algo"], settings["preset"]), (None, None))
    if label is None:
        return
    if "dial" in cell:
        for seed in cell["dial"].values():
            ax.plot(*dial_points(seed), "o-", color=colour, label=label, markersize=4, linewidth=1, alpha=0.7)
    elif cell.get("fresh"):
        seeds = cell["fresh"]["seeds"]
        safe = [s["constraints"][0]["safety_prob"]["low" if sure else "value"] for s in seeds]
        ax.scatter(safe, [s["return"]["value"] for s in seeds], 34, colour, label=label, alpha=0.85, edgecolors="none")
    if cell["published"] and not sure:
        x, y = cell["published"]["safety_prob"][0], cell["published"]["episode_return"][0]
        ax.scatter([x], [y], 110, colour, marker="*", edgecolors=INK, linewidths=0.7, zorder=3)


def dial_points(seed: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Lower ends of the safety, and returns, of a dial's certified positions."""
    found = [x["fresh"] for x in seed.values() if x["certificate"]["word"] == "certified"]
    lows = [statistics.clopper_pearson(x["safety_prob"] * x["episodes"], x["episodes"]).low for x in found]
    points = sorted(zip(lows, (x["return"] for x in found), strict=True))
    return [x for x, _ in points], [y for _, y in points]


def draw_all(cells: Cells, out: pathlib.Path, beside: Cells | None = None) -> list[pathlib.Path]:
    if any("dial" in cell for cell in cells.values()):
        return save(frontier((beside or {}) | cells, sure=True), out / "certified")
    if any(cell["settings"]["algo"].startswith(("budget", "ppo-early")) for cell in cells.values()):
        return save(frontier((beside or {}) | cells), out / "frontier")
    costs = (("episode_cost_mean", "average cost"), ("episode_cost_quantile", "cost quantile"))
    rewards = (("return_mean", "return"), ("safety_prob", "safety probability"))
    figures = grid(cells, costs), grid(cells, rewards), tilted(cells, "SimpleEnv")
    return [path for number, figure in enumerate(figures, 2) for path in save(figure, out / f"figure{number}")]
