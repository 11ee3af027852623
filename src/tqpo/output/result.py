"""Evaluations as a person sees them in Python: a few lines, and in a notebook the verdict card and the curves."""

import os
import uuid
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from tqpo import store
from tqpo.errors import TqpoError
from tqpo.output import plots, report
from tqpo.output.conclude import curves_of
from tqpo.training.evaluations import evaluations_of
from tqpo.training.job import prepared_of


class Result(dict):
    """An evaluation (`tqpo.evaluation.summary` has its keys) that shows itself in short; `run` is its folder."""

    def __init__(self, evaluation: Mapping[str, Any], run: str | os.PathLike):
        super().__init__(evaluation)
        self.run = os.fspath(run)

    def __repr__(self) -> str:
        return "\n".join([f"{self.run}: {headline(self)}", *(f"  {line}" for line in lines(self))])

    def _repr_html_(self) -> str:
        return card(report.verdict(self) + report.tiles(self) + curves(self.run))


class Comparison(tuple):
    """Results side by side."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self))

    def _repr_html_(self) -> str:
        heads = ("run", "verdict", "")
        rows = "".join(
            f"<tr><th scope=row>{escape(r.run)}</th><td>{escape(headline(r))}</td>"
            f"<td>{'<br>'.join(map(escape, lines(r)[1:]))}</td></tr>"
            for r in self
        )
        head = "".join(f"<th scope=col>{name}</th>" for name in heads)
        return card(f"<section><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>")


def headline(result: Mapping[str, Any]) -> str:
    """The verdict in a word, and of what kind of actions."""
    word = result["verdict"]["word"] if result["verdict"] else "no constraint"
    return f"{word} ({result['label']})"


def lines(result: Mapping[str, Any]) -> list[str]:
    """The verdict's sentence, then return and constraints with their intervals."""
    pooled = result["pooled"]
    shown = [result["verdict"]["sentence"]] if result["verdict"] else []
    shown.append("return {} ({})".format(*report.interval(pooled["return"], "{:.4g}".format)))
    for asked, found in zip(result["constraints"], pooled["constraints"], strict=True):
        name, limit = asked["name"], f"{asked['cost_limit']:g}"
        if asked["kind"] == "mean":
            mean = "{} ({})".format(*report.interval(found["episode_cost_mean"], "{:.4g}".format))
            shown.append(f"mean {name} {mean}, asked ≤ {limit}")
        else:
            share = "{} ({})".format(*report.probability(found["safety_prob"], asked["safety"]))
            shown.append(f"Pr[{name} ≤ {limit}] {share}, asked ≥ {100 * asked['safety']:g}%")
    return shown


def curves(run: str) -> str:
    """The learning curves of a run as SVG; nothing where there are none, or its environment is not at hand."""
    try:
        with store.open_run(run) as folder:
            drawn = curves_of(folder, prepared_of(folder.config))
    except TqpoError:
        return ""
    if not drawn:
        return ""
    svg = plots.inline_svg(plots.learning_curves(drawn), f"figure-{uuid.uuid4().hex[:8]}")
    return f"<section><figure>{svg}</figure></section>"


def card(inside: str) -> str:
    """HTML with the report's style, which it keeps to itself."""
    style = resources.files("tqpo").joinpath("assets", "report.css").read_text("utf-8")
    own = style.replace(":root {", "& {").replace("body {", "& {")
    own += "table { color: inherit; } tr { background: none; } padding: .2rem 1.2rem 1.2rem; border-radius: 12px;"
    return f"<style>.tqpo.tqpo.tqpo {{\n{own}\n}}</style><div class=tqpo>{inside}</div>"  # thrice: a notebook styles tables


def result_of(run: str | os.PathLike) -> Result | None:
    """The evaluation that gives a run its verdict; None before there is one."""
    with store.open_run(run) as folder:
        return next((Result(evaluation, folder.folder) for evaluation in evaluations_of(folder)), None)


def comparison(runs: Sequence[str | os.PathLike]) -> Comparison:
    found = []
    for run in runs:
        if (result := result_of(run)) is None:
            raise TqpoError(f"{run} has no evaluation: tqpo.evaluate({os.fspath(run)!r}) makes one")
        found.append(result)
    return Comparison(found)
