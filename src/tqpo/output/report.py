"""One HTML page that needs nothing else: the verdict, the intervals, the curves, an episode to play back, the settings.

No address is fetched (its own policy forbids it), all text is escaped, and the figures are SVG in the page's own ink,
so that they follow a dark theme. The page's style and its player are the files in `assets/`.
"""

import base64
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from tqpo.errors import ConfigError
from tqpo.evaluation.summary import WORST_FIRST
from tqpo.maths import statistics
from tqpo.output import plots
from tqpo.output.playback import player, record_episode
from tqpo.training.certificates import circumstances

__all__ = ["Report", "page", "record_episode", "write_report"]

ASSETS = ("report.css", "player.js")
TONES = {"meets": ("meets", "✓"), "misses": ("misses", "✕"), "cannot tell yet": ("open", "?")}


@dataclass(frozen=True)
class Report:
    """What a page shows. Only the title and one evaluation are needed; the first evaluation gives the verdict."""

    title: str
    evaluations: Sequence[Mapping[str, Any]]  # of `evaluation.summarise`
    subtitle: str = ""
    curves: Sequence[Sequence[plots.Curve]] = ()  # of each constraint
    certificates: Sequence[Mapping[str, Any]] = ()  # of `training.certificates`
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
        certificates(report.certificates),
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


def certificates(entries: Sequence[Mapping[str, Any]]) -> str:
    """The sentences to sign, one for each claim about each seed's policy."""
    alike = {"certified": "meets", "refuted": "misses", "undecided": "cannot tell yet"}
    tones = {word: TONES[verdict] for word, verdict in alike.items()}
    lines = [
        f'<p class="sentence {tones[row["word"]][0]}"><span aria-hidden=true>{tones[row["word"]][1]}</span> '
        f"Seed {entry['policy']['seed']}. {escape(row['sentence'])} "
        f"<small class=soft>{escape(circumstances(entry))}; policy SHA-256 "
        f"{escape(entry['policy']['sha256']['policy.safetensors'][:16])}…</small></p>"
        for entry in entries
        for row in entry["claims"]
    ]
    return f'<section aria-label="Certificate"><h2>Certificate</h2>{"".join(lines)}</section>' if lines else ""


def verdict(evaluation: Mapping[str, Any]) -> str:
    """The answer, large; then each constraint with its own, the worst first."""
    said, asked = evaluation["verdict"], evaluation["constraints"]
    if said is None:
        return "<section><h2>No constraint was set, so there is no verdict.</h2></section>"
    tone, mark = TONES[said["word"]]
    aim = aim_of(asked[0], 1) if len(asked) == 1 else f"all {len(asked)} constraints"
    order = worst_first(evaluation)
    if len(asked) > 1 and said["word"] != "meets":
        aim = aim_of(asked[order[0]], len(asked))
    answers = {"meets": f"Meets {aim}", "misses": f"Misses {aim}"}
    return (
        f'<section class="verdict {tone}" aria-label="Verdict"><p class=headline>'
        f"<span class=mark aria-hidden=true>{mark}</span>"
        f"<span id=verdict>{escape(answers.get(said['word'], 'Cannot tell yet'))}</span></p>"
        + "".join(constraint_verdict(evaluation, k, "" if i else said["seeds"]) for i, k in enumerate(order))
        + "</section>"
    )


def constraint_verdict(evaluation: Mapping[str, Any], k: int, seeds: str) -> str:
    """What is said of one constraint, by its name where there are several, with its probability on a scale; then what
    is said of its seeds."""
    asked, measured = evaluation["constraints"][k], evaluation["pooled"]["constraints"][k]
    tone, mark = TONES[measured["verdict"]["word"]]
    name = ""
    if len(evaluation["constraints"]) > 1:
        name = f"<h3><span aria-hidden=true>{mark}</span> {escape(goal_of(asked))}</h3>"
    shown = ""
    if asked["kind"] == "quantile":
        level, safety = asked["safety"], measured["safety_prob"]
        low = gauge_start([safety], level)
        middle = place(level, low)
        end = "100%" if middle < 0.7 else ""  # a phone has no room for both
        marks = [(0.0, f"{low:.0%}"), (middle, f"required {100 * level:g}%"), (1.0, end)]
        labels = "".join(f'<span style="left:{100 * x:.2f}%">{text}</span>' for x, text in marks)
        shown = f"{gauge(safety, level, low)}<div class=scale aria-hidden=true>{labels}</div>"
    return (
        f"<div class={tone}>{name}<p class=sentence>{escape(measured['verdict']['sentence'])}</p>"
        f"<p class=soft>{escape(seeds)}</p>{shown}</div>"
    )


def aim_of(asked: Mapping[str, Any], constraints: int) -> str:
    """A constraint in few words."""
    if asked["kind"] == "mean":
        return f"mean {asked['name']} ≤ {asked['cost_limit']:g}"
    return f"{100 * asked['safety']:g}% safety" + (f" ({asked['name']})" if constraints > 1 else "")


def goal_of(asked: Mapping[str, Any]) -> str:
    """A constraint as a formula."""
    name, limit = asked["name"], f"{asked['cost_limit']:g}"
    return f"E[{name}] ≤ {limit}" if asked["kind"] == "mean" else f"Pr[{name} ≤ {limit}] ≥ {100 * asked['safety']:g}%"


def worst_first(evaluation: Mapping[str, Any]) -> list[int]:
    """The constraints, those that are missed first."""
    words = [c["verdict"]["word"] for c in evaluation["pooled"]["constraints"]]
    return sorted(range(len(words)), key=lambda k: WORST_FIRST.index(words[k]))


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


def interval(estimate: Mapping[str, Any], show: Callable[[float], str] = "{:.2f}".format) -> tuple[str, str]:
    """Value and range as text; an end that is not known is an ellipsis."""
    value, low, high = ("…" if estimate[name] is None else show(estimate[name]) for name in ("value", "low", "high"))
    return value, f"{low} to {high}"


def probability(estimate: Mapping[str, Any], level: float) -> tuple[str, str]:
    """The same of a probability, rounded as in the verdict's sentence."""
    low, high = statistics.percentages(statistics.Interval(**estimate), level)
    return f"{estimate['value']:.1%}", f"{low} to {high}"


def numbers(asked: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """What is measured of a constraint: value and interval by name. A file of 0.1 has no tail."""

    def cost(x: float) -> str:
        return statistics.cost_text(x, asked["cost_limit"])

    shown = {
        f"Within the limit of {asked['cost_limit']:g}": probability(measured["safety_prob"], asked["safety"]),
        f"Cost, {100 * asked['safety']:g}% quantile": interval(measured["episode_cost_quantile"], cost),
        "Cost, mean": interval(measured["episode_cost_mean"], cost),
    }
    if "episode_cost_max" in measured:
        value, ends = interval(measured["episode_cost_99"], cost)
        shown["Cost, 99% quantile"] = value, f"{ends}; at worst {cost(measured['episode_cost_max'])}"
    return shown


def tiles(evaluation: Mapping[str, Any]) -> str:
    """The numbers of the first evaluation, pooled; of several constraints the one number that each is judged by."""
    pooled, asked = evaluation["pooled"], evaluation["constraints"]
    shown = {"Return, mean": interval(pooled["return"])}
    for k in worst_first(evaluation):
        within, _, mean, *_ = (found := numbers(asked[k], pooled["constraints"][k])).values()
        shown |= found if len(asked) == 1 else {goal_of(asked[k]): mean if asked[k]["kind"] == "mean" else within}
    cells = "".join(
        f"<div class=tile><div class=name>{escape(name)}</div><div class=value>{value}</div>"
        f"<div class=range>{100 * evaluation['confidence']:g}% interval {ends}</div></div>"
        for name, (value, ends) in shown.items()
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
            spread = interval(e["over_seeds"]["return"])
            note += f" Return, interquartile mean over the seeds: {spread[0]} ({spread[1]})."
        named = escape(e["label"] or "Per seed")
        body = table("Seed", rows + pooled, note, total=bool(pooled))
        parts.append(f"<details{' open' * (i == 0)}><summary>{named}</summary>{body}</details>")
    return "".join(parts) + "</section>"


def table(first: str, rows: Sequence[tuple[str, Mapping, Mapping]], note: str, total: bool = False) -> str:
    """Rows of (name, scope, evaluation), a line for each constraint; the last one is a total where `total` says so."""
    named = max(len(evaluation["constraints"]) for *_, evaluation in rows) > 1
    heads = [first, "Return", *["Constraint"] * named]
    heads += ["Within the limit", "Cost quantile", "Mean cost", "99% quantile", "Verdict"]
    bodies = []
    for i, (name, scope, evaluation) in enumerate(rows):
        lines = [constraint_cells(rows, i, k, named) for k in worst_first(evaluation)] or [""]
        span = f" rowspan={len(lines)}" if len(lines) > 1 else ""
        lines[0] = (
            f"<th scope=rowgroup{span}>{escape(name)}<small>{scope['episodes']:,} episodes</small></th>"
            f"{cell(*interval(scope['return']), span)}{lines[0]}"
        )
        kind = " class=total" if total and i == len(rows) - 1 else ""
        bodies.append(f"<tbody{kind}>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody>")
    head = "".join(f"<th scope=col>{escape(h)}</th>" for h in heads)
    return (
        f"<p class=soft>{escape(note)}</p>"
        f'<div class=scroll role=region tabindex=0 aria-label="Intervals by {first.lower()}">'
        f"<table><thead><tr>{head}</tr></thead>{''.join(bodies)}</table></div>"
    )


def constraint_cells(rows: Sequence[tuple[str, Mapping, Mapping]], i: int, k: int, named: bool) -> str:
    """What row `i` says of constraint `k`; its scale is that of the whole column."""
    _, scope, evaluation = rows[i]
    asked, measured = evaluation["constraints"][k], scope["constraints"][k]
    others = [r[1]["constraints"][k]["safety_prob"] for r in rows if len(r[1]["constraints"]) > k]
    tone, mark = TONES[measured["verdict"]["word"]]
    within, *costs = numbers(asked, measured).values()
    costs += [("–", "")] * (3 - len(costs))
    scale = gauge(measured["safety_prob"], asked["safety"], gauge_start(others, asked["safety"]))
    return (
        (f"<td>{escape(goal_of(asked))}</td>" if named else "")
        + f"<td class={tone}>{within[0]}<small>{within[1]}</small>{scale if asked['kind'] == 'quantile' else ''}</td>"
        + "".join(cell(value, ends.replace("; ", "<br>")) for value, ends in costs)
        + f'<td class="word {tone}"><span aria-hidden=true>{mark}</span>\u00a0{measured["verdict"]["word"]}</td>'
    )


def cell(value: str, ends: str, span: str = "") -> str:
    return f"<td{span}>{value}<small>{ends}</small></td>"


def figures(report: Report) -> str:
    """Curves, multiplier and episode costs of each constraint, the worst first."""
    asked, out = report.evaluations[0]["constraints"], []
    for k in worst_first(report.evaluations[0]) or [0]:
        title = f": {goal_of(asked[k])}" if len(asked) > 1 else ""
        curves = report.curves[k] if k < len(report.curves) else ()
        drawn = "".join(
            f"<figure><div class=scroll>{described(figure, f'figure{k}-{i}', name + title)}</div>"
            f"<figcaption>{escape(about)}</figcaption></figure>"
            for i, (figure, name, about) in enumerate(drawings(curves, report.evaluations, k))
        )
        out.append(f"<section><h2>{escape(f'Training and episode cost{title}')}</h2>{drawn}</section>")
    return "".join(out)


def drawings(curves: Sequence[plots.Curve], evaluations: Sequence[Mapping[str, Any]], k: int) -> Iterator[tuple]:
    """The figures of constraint `k`: each with its name and what it shows."""
    if curves:
        about = "Mean over seeds; the band is one standard deviation. Dashed: the limit and the required level."
        yield plots.learning_curves(curves), "Learning curves", about
        if any("multiplier" in c.metrics for c in curves):
            tilted = any("tilt_up" in c.metrics for c in curves)
            about = f"The multiplier weighs cost against return{'; the tilt slows its steps up or down' * tilted}."
            yield plots.multiplier_curves(curves), "Multiplier over training", about
    shown = [e for e in evaluations if not e["constraints"] or len(e["constraints"]) > k][:6]
    about = (
        "Fresh episodes after training; orange: beyond the limit. Left: how many episodes cost so much. Right, on a "
        "logarithmic scale: how many cost more than x. The constraint holds if the curve passes below the crossing of "
        "the dashed lines."
    )
    yield plots.cost_histogram(shown, k), "Histogram and tail of the episode cost", about


def described(figure: Any, prefix: str, name: str) -> str:
    """A figure as SVG with a name for those who do not see it."""
    svg = plots.inline_svg(figure, prefix)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(name)}" ', 1)


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
