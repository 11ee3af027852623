"""Figures: learning curves as the paper's Figures 2 and 3, the multiplier and its tilt, the episode cost and its tail.

A line is the mean over seeds, the band around it one standard deviation either way (within the seeds' range). Colours
are Okabe & Ito's, which colour-blind readers can tell apart; after six labels the line style changes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tqpo.errors import ConfigError
from tqpo.maths.statistics import cost_text
from tqpo.output.figures import INK, finish, inline_svg, legend, new_figure, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Curve",
    "RunInfo",
    "cost_histogram",
    "inline_svg",
    "learning_curves",
    "make_curves",
    "multiplier_curves",
    "save",
]

COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
LINE_STYLES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
WITHIN, BEYOND = "#0072b2", "#d55e00"
MOST_POINTS = 600
CURVES = {
    "return_mean": "Return",
    "safety_prob": "Safety probability Pr[C ≤ d]",
    "episode_cost_mean": "Episode cost, mean",
    "episode_cost_quantile": "Episode cost, {} quantile",
}


class RunInfo(NamedTuple):
    """What a run of a group is, for a figure: runs with the same label are seeds of one setting."""

    label: str
    cost_limit: float | None = None
    safety: float | None = None


@dataclass(frozen=True)
class Curve:
    """The runs of one label."""

    info: RunInfo
    steps: np.ndarray  # [iterations] environment steps of one run
    metrics: Mapping[str, np.ndarray]  # name → [iterations, runs]; not a number where there is nothing to show


def make_curves(
    metrics: Mapping[str, np.ndarray], steps: np.ndarray, runs: Sequence[RunInfo], constraint: int = 0
) -> list[Curve]:
    """Metrics of a group [iterations, runs] or, one per constraint, [iterations, runs, K] as curves by label."""
    curves = []
    for info in dict.fromkeys(runs):
        mine = [i for i, run in enumerate(runs) if run == info]
        own = {}
        for name, values in metrics.items():
            if values.ndim < 2 or values.shape[:2] != (len(steps), len(runs)):
                raise ConfigError(f"metric {name} {values.shape}: expected [{len(steps)} iterations, {len(runs)} runs]")
            flat = values if values.ndim == 2 else values[:, :, min(constraint, values.shape[2] - 1)]
            own[name] = flat[:, mine].astype(float)
        if "window_episodes" in own:
            empty = own["window_episodes"] == 0
            own |= {name: np.where(empty, np.nan, own[name]) for name in CURVES if name in own}
        curves.append(Curve(info, np.asarray(steps), own))
    return curves


def learning_curves(curves: Sequence[Curve], title: str = "") -> "Figure":
    """Return, safety probability, mean and quantile of the episode cost over training."""
    shown = [name for name in CURVES if any(name in c.metrics for c in curves)]
    if not shown:
        raise ConfigError(f"no metric of {', '.join(CURVES)}: there is nothing to draw")
    rows = -(-len(shown) // 2)
    with style():
        figure, axes = new_figure(rows, 2, (9.0, 2.7 * rows + 0.4))
        for ax, name in zip(axes, shown, strict=False):
            draw_curves(ax, curves, name)
            asked = {percent(c.info.safety) for c in curves if c.info.safety}
            ax.set_title(CURVES[name].format(asked.pop() if len(asked) == 1 else "required"))
            if name == "safety_prob":
                levels(ax, {c.info.safety for c in curves}, percent)
                ax.set_ylim(max(0.0, min(0.75, ax.get_ylim()[0])), 1.005)
                ax.yaxis.set_major_formatter(lambda x, _: percent(x))
            if name.startswith("episode_cost"):
                levels(ax, {c.info.cost_limit for c in curves}, "d = {:g}".format)
                ax.set_ylim(0, cost_top(curves, name))
        legend(figure, title)
    return figure


def multiplier_curves(curves: Sequence[Curve], title: str = "") -> "Figure":
    """λ over training, and the factors that tilt its steps: η₊ upward (solid), η₋ downward (dashed)."""
    if not any("multiplier" in c.metrics for c in curves):
        raise ConfigError("no run has a multiplier: there is nothing to draw")
    tilted = [c for c in curves if "tilt_up" in c.metrics and "tilt_down" in c.metrics]
    with style():
        figure, axes = new_figure(1, 2 if tilted else 1, (9.0, 3.1))
        draw_curves(axes[0], curves, "multiplier")
        axes[0].set_title("Multiplier λ")
        axes[0].set_ylim(bottom=0)
        if tilted:
            colours = palette(curves)
            for c in tilted:
                for name, line in (("tilt_up", "-"), ("tilt_down", (0, (4, 1.5)))):
                    x, mean, *_ = band(c, name)
                    axes[1].plot(x, mean, color=colours[c.info.label][0], linestyle=line, linewidth=1.6)
            axes[1].set_title("Tilt of its step:  η₊ up (solid),  η₋ down (dashed)")
            axes[1].set_ylim(0, 1.03)
            finish(axes[1])
        legend(figure, title)
    return figure


def cost_histogram(evaluations: Sequence[Mapping[str, Any]], constraint: int = 0, title: str = "") -> "Figure":
    """Episode costs of each evaluation (`evaluation.summarise`), all seeds: a histogram with limit and quantile, and
    how often each cost is exceeded, which shows the tail."""
    with style():
        figure, axes = new_figure(len(evaluations), 2, (9.0, 2.6 * len(evaluations) + 0.5))
        # the axis ends where 1 in 200 episodes lies beyond; those go into the last bar
        tops = [np.quantile(episode_costs(e, constraint), 0.995) for e in evaluations]
        tops += [2 * asked["cost_limit"] for e in evaluations if (asked := asked_of(e, constraint))]
        top = float(max(tops)) or 1.0
        for ax, tail, evaluation in zip(axes[::2], axes[1::2], evaluations, strict=True):
            draw_histogram(ax, evaluation, constraint, top)
            draw_exceedance(tail, evaluation, constraint)
        legend(figure, title)
    return figure


def draw_curves(ax: "Axes", curves: Sequence[Curve], name: str) -> None:
    colours = palette(curves)
    for c in curves:
        if name in c.metrics:
            colour, line = colours[c.info.label]
            x, mean, low, high = band(c, name)
            ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
            ax.plot(x, mean, color=colour, linestyle=line, linewidth=1.8, label=named(c.info.label))
    finish(ax)


def band(curve: Curve, name: str) -> tuple[np.ndarray, ...]:
    """Steps, mean and band where at least one run has a value, thinned out to what a figure can show."""
    values = curve.metrics[name]
    rows = np.flatnonzero(np.isfinite(values).any(1))
    if len(rows) > MOST_POINTS:
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, MOST_POINTS).astype(int))]
    values = np.where(np.isfinite(values[rows]), values[rows], np.nan)
    mean, spread = np.nanmean(values, 1), np.nanstd(values, 1)
    low, high = np.nanmin(values, 1, initial=np.inf), np.nanmax(values, 1, initial=-np.inf)
    return curve.steps[rows], mean, np.maximum(mean - spread, low), np.minimum(mean + spread, high)


def cost_top(curves: Sequence[Curve], name: str) -> float:
    """What the axis must show: everything but an untrained policy's first tenth, and twice the limit."""
    tops = [2 * c.info.cost_limit for c in curves if c.info.cost_limit]
    for c in curves:
        if name in c.metrics:
            high = band(c, name)[3]
            tops.append(1.08 * float(np.max(high[len(high) // 10 :], initial=0)))
    return max(tops, default=0) or 1.0


def levels(ax: "Axes", values: set[float | None], name: Callable[[float], str]) -> None:
    """A dashed line at each limit or level, named to the right of the axes, where no curve runs."""
    for value in sorted(v for v in values if v is not None):
        ax.axhline(value, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=1.5)
        place = {"textcoords": "offset points", "xytext": (3, 0), "ha": "left", "va": "center", "fontsize": 9}
        ax.annotate(name(value), (1, value), xycoords=("axes fraction", "data"), **place)


def asked_of(evaluation: Mapping[str, Any], constraint: int) -> Mapping[str, Any] | None:
    """Constraint number `constraint` of an evaluation, if it has that many."""
    return next(iter(evaluation["constraints"][constraint : constraint + 1]), None)


def episode_costs(evaluation: Mapping[str, Any], constraint: int) -> np.ndarray:
    channel = (asked_of(evaluation, constraint) or {"channel": 0})["channel"]
    return np.concatenate([np.asarray(s["episode_costs"], float)[:, channel] for s in evaluation["seeds"]])


def histogram_edges(costs: np.ndarray, limit: float, top: float) -> np.ndarray:
    """Edges of the bars. One separates safe from unsafe at the limit; whole-number costs fall into a bar's middle."""
    whole = bool(np.all(costs == np.round(costs)))
    width = max(1.0, np.ceil(top / 60)) if whole else top / 40
    start = np.floor(limit) + 0.5 if whole else limit
    first = start - width * np.ceil((start + 0.5 * whole) / width)
    return np.arange(first, max(top, start + width) + width, width)


def draw_histogram(ax: "Axes", evaluation: Mapping[str, Any], constraint: int, top: float) -> None:
    costs = episode_costs(evaluation, constraint)
    asked = asked_of(evaluation, constraint)
    limit = asked["cost_limit"] if asked else np.inf
    edges = histogram_edges(costs, limit if asked else 0.0, top)
    width = edges[1] - edges[0]
    share = np.histogram(np.minimum(costs, edges[-1] - width / 2), edges)[0] / len(costs)
    unsafe = edges[:-1] + width / 2 > limit
    ax.bar(edges[:-1] + width / 2, share, 0.86 * width, color=np.where(unsafe, BEYOND, WITHIN))
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1.3 * share.max())  # room for what the lines are called
    ax.set_xlabel("episode cost" + (f" (last bar: more than {edges[-2]:.4g})" if costs.max() > edges[-1] else ""))
    ax.set_ylabel(f"share of {len(costs):,} episodes")
    ax.set_yticks([x for x in ax.get_yticks() if x <= min(1, ax.get_ylim()[1])])
    ax.yaxis.set_major_formatter(lambda x, _: percent(x))
    ax.set_title(evaluation["label"])
    if asked:
        q = evaluation["pooled"]["constraints"][constraint]["episode_cost_quantile"]["value"]
        border = (edges[np.argmax(unsafe)], f"limit {limit:g}", (0, (4, 2)))
        named_quantile = f"{percent(asked['safety'])} quantile: {cost_text(q, limit)}"
        name_lines(ax, border, (min(q, edges[-1]), named_quantile, "-"))
    finish(ax, steps=False)


def draw_exceedance(ax: "Axes", evaluation: Mapping[str, Any], constraint: int) -> None:
    """The share of episodes that cost more than x, on a log axis; the limit, and the share that may exceed it."""
    costs, asked = episode_costs(evaluation, constraint), asked_of(evaluation, constraint)
    values = np.unique(np.concatenate([[min(0.0, costs.min())], costs, [asked["cost_limit"]] if asked else []]))
    beyond = 1 - np.searchsorted(np.sort(costs), values, side="right") / len(costs)  # Pr[C > x]
    lowest = 0.5 / len(costs)  # the axis ends below one episode
    ax.step(values, np.maximum(beyond, lowest), where="post", color=WITHIN, linewidth=1.8)
    ax.set(yscale="log", ylim=(lowest, 1.3), xlim=(values[0], 1.04 * values[-1] or 1.0), xlabel="x")
    ax.yaxis.set_major_formatter(lambda y, _: percent(y))
    ax.minorticks_off()
    title = f"Pr[C > x]: at worst {costs.max():g}"
    if asked:
        limit, tail = asked["cost_limit"], values >= asked["cost_limit"]
        ax.step(values[tail], np.maximum(beyond[tail], lowest), where="post", color=BEYOND, linewidth=1.8)
        ax.axvline(limit, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=1.5)
        levels(ax, {1 - asked["safety"]} if asked["kind"] == "quantile" else set(), lambda x: f"{percent(x)}\nallowed")
        title = f"Pr[C > x]: {beyond[tail][0]:.1%} beyond {limit:g}, at worst {cost_text(costs.max(), limit)}"
    ax.set_title(title)
    finish(ax, steps=False)


def name_lines(ax: "Axes", *marks: tuple[float, str, Any]) -> None:
    """Two vertical lines, each labelled on its outer side, or without room there on the other side, above the other line."""
    start, end = ax.get_xlim()
    left, right = sorted(marks, key=lambda m: m[0])
    letter = 0.022 * (end - start)  # its share of the axes' width, or a little more
    fits = left[0] - start > letter * len(left[1]), end - right[0] > letter * len(right[1])
    heights = {(True, True): (0.95, 0.95), (True, False): (0.85, 0.95)}.get(fits, (0.95, 0.85))
    sides = "right" if fits[0] else "left", "left" if fits[1] else "right"
    for (x, text, line), side, height in zip((left, right), sides, heights, strict=True):
        ax.axvline(x, 0, height - 0.03, color=INK, linewidth=1.3, linestyle=line)
        place = {"textcoords": "offset points", "xytext": (-5 if side == "right" else 5, 0), "ha": side, "va": "top"}
        ax.annotate(text, (x, height), xycoords=("data", "axes fraction"), fontsize=9, **place)


def percent(x: float) -> str:
    return f"{100 * x:.6g}%"


def named(label: str) -> str:
    """matplotlib leaves labels that begin with an underscore out of a legend."""
    return f"\u200b{label}" if label.startswith("_") else label


def palette(curves: Sequence[Curve]) -> dict[str, tuple[str, Any]]:
    """Colour and line style of each label, in order of appearance."""
    labels = list(dict.fromkeys(c.info.label for c in curves))
    n = len(COLOURS)
    return {label: (COLOURS[i % n], LINE_STYLES[i // n % len(LINE_STYLES)]) for i, label in enumerate(labels)}
