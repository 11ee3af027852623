"""One HTML page that needs nothing else: the verdict, the intervals, the curves, an episode to play back, the settings.

No address is fetched (its own policy forbids it), all text is escaped, and the figures are SVG in the page's own ink,
so that they follow a dark theme. The page's style and its player are the files in `assets/`.
"""

import base64
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from tqpo.errors import ConfigError
from tqpo.maths import statistics
from tqpo.output import plots
from tqpo.output.playback import player, record_episode

__all__ = ["Report", "page", "record_episode", "write_report"]

ASSETS = ("report.css", "player.js")
TONES = {"meets": ("meets", "✓"), "misses": ("misses", "✕"), "cannot tell yet": ("open", "?")}


@dataclass(frozen=True)
class Report:
    """What a page shows. Only the title and one evaluation are needed; the first evaluation gives the verdict."""

    title: str
    evaluations: Sequence[Mapping[str, Any]]  # of `evaluation.summarise`
    subtitle: str = ""
    curves: Sequence[plots.Curve] = ()
    episodes: Sequence[Mapping[str, Any]] = ()  # of `record_episode`
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)


def write_report(path: str | pathlib.Path, report: Report) -> pathlib.Path:
    """Writes the page, whole or not at all."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(page(report), encoding="utf-8")
    draft.replace(path)
    return path


def page(report: Report) -> str:
    """The HTML text."""
    if not report.evaluations:
        raise ConfigError("a report needs at least one evaluation: run `tqpo evaluate` first")
    style, script = (resources.files("tqpo").joinpath("assets", name).read_text("utf-8") for name in ASSETS)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{allowed}'"
    parts = [
        f"<header><h1>{escape(report.title)}</h1><p class=soft>{escape(report.subtitle)}</p></header>",
        verdict(report.evaluations[0]),
        tiles(report.evaluations[0]),
        intervals(report.evaluations),
        figures(report),
        player(report.episodes),
        facts("Settings", report.settings),
        facts("Provenance", report.provenance),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + f"\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def verdict(evaluation: Mapping[str, Any]) -> str:
    """The answer, large."""
    said = evaluation["verdict"]
    if said is None:
        return "<section><h2>No constraint was set, so there is no verdict.</h2></section>"
    tone, mark = TONES[said["word"]]
    k = decisive(evaluation)
    asked, all_met = evaluation["constraints"][k], said["word"] == "meets" and len(evaluation["constraints"]) > 1
    aim = (
        f"all {len(evaluation['constraints'])} constraints"
        if all_met
        else aim_of(asked, len(evaluation["constraints"]))
    )
    answers = {"meets": f"Meets {aim}", "misses": f"Misses {aim}"}
    shown = ""
    if asked["kind"] == "quantile":
        level, safety = asked["safety"], evaluation["pooled"]["constraints"][k]["safety_prob"]
        low = gauge_start([safety], level)
        marks = [(0.0, f"{low:.0%}"), (place(level, low), f"required {100 * level:g}%"), (1.0, "100%")]
        labels = "".join(f'<span style="left:{100 * x:.2f}%">{text}</span>' for x, text in marks)
        shown = f"{gauge(safety, level, low)}<div class=scale aria-hidden=true>{labels}</div>"
    return (
        f'<section class="verdict {tone}" aria-label="Verdict"><p class=headline>'
        f"<span class=mark aria-hidden=true>{mark}</span>"
        f"<span id=verdict>{escape(answers.get(said['word'], 'Cannot tell yet'))}</span></p>"
        f"<p class=sentence>{escape(said['sentence'])}</p><p class=soft>{escape(said['seeds'])}</p>"
        f"{shown}</section>"
    )


def aim_of(asked: Mapping[str, Any], constraints: int) -> str:
    """A constraint in few words."""
    if asked["kind"] == "mean":
        return f"mean {asked['name']} ≤ {asked['cost_limit']:g}"
    return f"{100 * asked['safety']:g}% safety" + (f" ({asked['name']})" if constraints > 1 else "")


def decisive(evaluation: Mapping[str, Any]) -> int:
    """Which constraint the verdict is about."""
    words = [c["verdict"]["word"] for c in evaluation["pooled"]["constraints"]]
    return words.index(evaluation["verdict"]["word"])


def gauge_start(estimates: Sequence[Mapping[str, Any]], level: float) -> float:
    """Where the axis of probabilities begins, so that it shows everything and no more: a multiple of 5%."""
    lowest = min([level - 0.05, *(x["low"] for x in estimates)])
    return max(0.0, np.floor(20 * lowest + 1e-9) / 20)


def place(x: float, low: float) -> float:
    return (x - low) / (1 - low)


def gauge(estimate: Mapping[str, Any], level: float, low: float) -> str:
    """The interval of a probability on an axis from `low` to 1, with the level; the text beside it says the same."""
    left, point, right = (100 * place(estimate[end], low) for end in ("low", "value", "high"))
    return (
        "<div class=gauge aria-hidden=true>"
        f'<span class=range style="left:{left:.2f}%;width:{right - left:.2f}%"></span>'
        f'<span class=level style="left:{100 * place(level, low):.2f}%"></span>'
        f'<span class=point style="left:{point:.2f}%"></span></div>'
    )


def interval(estimate: Mapping[str, Any], form: str) -> tuple[str, str]:
    """Value and range as text; an end that is not known is an ellipsis."""
    low, high = ("…" if estimate[end] is None else form.format(estimate[end]) for end in ("low", "high"))
    return form.format(estimate["value"]), f"{low} to {high}"


def probability(estimate: Mapping[str, Any], level: float) -> tuple[str, str]:
    """The same of a probability, rounded as in the verdict's sentence."""
    low, high = statistics.percentages(statistics.Interval(**estimate), level)
    return f"{estimate['value']:.1%}", f"{low} to {high}"


def tiles(evaluation: Mapping[str, Any]) -> str:
    """The numbers of the first evaluation, pooled."""
    pooled, sure = evaluation["pooled"], f"{100 * evaluation['confidence']:g}%"
    shown = [("Return, mean", *interval(pooled["return"], "{:.2f}"))]
    for asked, measured in zip(evaluation["constraints"], pooled["constraints"], strict=True):
        name = "" if len(evaluation["constraints"]) == 1 else f" ({asked['name']})"
        limit, level = f"{asked['cost_limit']:g}", f"{100 * asked['safety']:g}%"
        shown += [
            (f"Within the limit of {limit}{name}", *probability(measured["safety_prob"], asked["safety"])),
            (f"Episode cost, {level} quantile{name}", *interval(measured["episode_cost_quantile"], "{:.4g}")),
            (f"Episode cost, mean{name}", *interval(measured["episode_cost_mean"], "{:.2f}")),
        ]
    cells = "".join(
        f"<div class=tile><div class=name>{escape(name)}</div><div class=value>{value}</div>"
        f"<div class=range>{sure} interval {ends}</div></div>"
        for name, value, ends in shown
    )
    return f"<div class=tiles>{cells}</div>"


def intervals(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Per evaluation a table with a row per seed; before them, if there are several, one that compares them."""
    parts = ["<section><h2>How sure is this?</h2>"]
    if len(evaluations) > 1:
        rows = [(e["label"] or "–", e["pooled"], e) for e in evaluations]
        parts.append(table("Evaluation", rows, "Every evaluation, its seeds pooled."))
    for i, e in enumerate(evaluations):
        rows = [(str(seed["seed"]), seed, e) for seed in e["seeds"]]
        pooled = [("all", e["pooled"], e)] if len(rows) > 1 else []
        policy = "the mean action" if e["deterministic"] else "sampled actions"
        note = f"Fresh episodes with {policy}; intervals hold with {100 * e['confidence']:g}% confidence."
        if pooled:
            spread = interval(e["over_seeds"]["return"], "{:.2f}")
            note += f" Return, interquartile mean over the seeds: {spread[0]} ({spread[1]})."
        named = escape(e["label"] or "Per seed")
        body = table("Seed", rows + pooled, note, total=bool(pooled))
        parts.append(f"<details{' open' * (i == 0)}><summary>{named}</summary>{body}</details>")
    return "".join(parts) + "</section>"


def table(first: str, rows: Sequence[tuple[str, Mapping, Mapping]], note: str, total: bool = False) -> str:
    """Rows of (name, scope, evaluation); the last one is a total where `total` says so."""
    asked = rows[0][2]["constraints"]
    heads = [first, "Episodes", "Return"]
    for c in asked:
        of = "" if len(asked) == 1 else f" ({c['name']})"
        heads += [
            f"Pr[C ≤ {c['cost_limit']:g}]{of}",
            "",
            f"{100 * c['safety']:g}% quantile{of}",
            f"Mean cost{of}",
            "Verdict",
        ]
    lines = []
    for i, (name, scope, evaluation) in enumerate(rows):
        cells = [
            f"<th scope=row>{escape(name)}</th><td>{scope['episodes']:,}</td>"
            f"{cell(*interval(scope['return'], '{:.2f}'))}"
        ]
        for k, (c, measured) in enumerate(zip(evaluation["constraints"], scope["constraints"], strict=True)):
            low = gauge_start(
                [r[1]["constraints"][k]["safety_prob"] for r in rows if len(r[1]["constraints"]) > k], c["safety"]
            )
            tone, mark = TONES[measured["verdict"]["word"]]
            cells.append(
                f"{cell(*probability(measured['safety_prob'], c['safety']))}"
                f"<td class={tone}>{gauge(measured['safety_prob'], c['safety'], low)}</td>"
                f"{cell(*interval(measured['episode_cost_quantile'], '{:.4g}'))}"
                f"{cell(*interval(measured['episode_cost_mean'], '{:.2f}'))}"
                f'<td class="word {tone}"><span aria-hidden=true>{mark}</span> {measured["verdict"]["word"]}</td>'
            )
        kind = " class=total" if total and i == len(rows) - 1 else ""
        lines.append(f"<tr{kind}>{''.join(cells)}</tr>")
    head = "".join(f"<th scope=col>{escape(h)}</th>" if h else "<td></td>" for h in heads)
    return (
        f"<p class=soft>{escape(note)}</p>"
        f'<div class=scroll role=region tabindex=0 aria-label="Intervals by {first.lower()}">'
        f"<table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def cell(value: str, ends: str) -> str:
    return f"<td>{value}<small>{ends}</small></td>"


def figures(report: Report) -> str:
    drawn = []
    if report.curves:
        about = "Mean over seeds; the band is one standard deviation. Dashed: the limit and the required level."
        drawn.append((plots.learning_curves(report.curves), "Learning curves", about))
        if any("multiplier" in c.metrics for c in report.curves):
            about = "The multiplier weighs cost against return; the tilt slows its steps up or down."
            drawn.append((plots.multiplier_curves(report.curves), "Multiplier over training", about))
    histogram = plots.cost_histogram(report.evaluations[:6])
    drawn.append(
        (histogram, "Histogram of the episode cost", "Fresh episodes after training; orange: beyond the limit.")
    )
    out = []
    for i, (figure, name, about) in enumerate(drawn):
        svg = plots.inline_svg(figure, f"figure{i}").replace(
            "<svg ", f'<svg role="img" aria-label="{escape(name)}" ', 1
        )
        out.append(f"<figure><div class=scroll>{svg}</div><figcaption>{escape(about)}</figcaption></figure>")
    return f"<section><h2>Training and episode cost</h2>{''.join(out)}</section>"


def facts(title: str, given: Mapping[str, Any]) -> str:
    """Nested settings as a table of dotted names."""
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in flatten(given)
    )
    if not rows:
        return ""
    return (
        f"<section><details><summary>{title}</summary><div class=scroll>"
        f"<table class=facts><tbody>{rows}</tbody></table></div></details></section>"
    )


def flatten(given: Any, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(given, Mapping):
        dot = f"{prefix}." if prefix else ""
        return [row for name, value in given.items() for row in flatten(value, f"{dot}{name}")]
    plain = isinstance(given, str | int | float) or given is None
    return [(prefix, "–" if given is None else str(given) if plain else json.dumps(given, default=str))]
