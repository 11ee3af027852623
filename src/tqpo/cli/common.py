"""What several commands share."""

import json
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

from tyro.conf import Positional, arg

from tqpo.errors import ConfigError, StoreError

Folder = Annotated[Positional[pathlib.Path], arg(metavar="RUN")]
Folders = Annotated[Positional[tuple[pathlib.Path, ...]], arg(metavar="RUN")]
MISSED = 3  # exit status
# Options that may be left out: their help says what happens then.
Text = Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")]
File = Annotated[pathlib.Path | None, arg(metavar="PATH", help_behavior_hint="")]
Count = Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")]
Number = Annotated[int | None, arg(metavar="INT", help_behavior_hint="")]
Settings = Annotated[tuple[str, ...], arg(metavar="NAME=VALUE", help_behavior_hint="")]


def wide_console():
    """The terminal; where there is none, wide enough that tables stay whole."""
    from rich.console import Console

    console = Console(emoji=False)  # a name with colons is a name
    return console if console.is_terminal else Console(width=140, emoji=False)


def assignments(pairs: tuple[str, ...]) -> dict:
    """NAME=VALUE pairs; a value is JSON where it can be (numbers, true, lists), inf, or else text."""
    out = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"{pair!r} is not a setting: write NAME=VALUE")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = float(text) if text in {"inf", "-inf"} else text
        out[name] = tuple(value) if isinstance(value, list) else value
    return out


def open_all(paths: tuple[pathlib.Path, ...]) -> list:
    from tqpo import store

    if not paths:
        raise ConfigError("no run given: name at least one folder that training wrote")
    return [store.open_run(path) for path in paths]


def runs_among(paths: tuple[pathlib.Path, ...]) -> Iterator:
    """Those that can be opened; of the others a line says why not."""
    for path in paths:
        try:
            yield open_all((path,))[0]
        except StoreError as error:
            print(f"left out: {error}", file=sys.stderr)


def progress(title: str, hidden: bool):
    """Gives a callback (done, total, text) that shows how many episodes are done."""
    from tqpo.training.progress import counting  # needs JAX

    return counting(title, hidden)


def new_table(title: str, columns: Iterable[str], right: Iterable[str] = ()):
    """An empty table; the columns `right` hold numbers. What is too long for its column is folded, never cut."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, box=SIMPLE_HEAD, padding=0, pad_edge=False, title_justify="left")
    for column in columns:
        side = "right" if column in right else "left"
        table.add_column(escape(column), justify=side, overflow="fold", min_width=12 if column == "run" else None)
    return table


def interval(estimate: dict, form: str) -> str:
    """A value and, under it, its interval; that of a probability is rounded outward, as in the verdict's sentence."""
    from tqpo.maths.statistics import outward

    ends = estimate["low"], estimate["high"]
    low, high = ("…" if x is None else form.format(x) for x in (outward(*ends, digits=1) if "%" in form else ends))
    return f"{form.format(estimate['value'])}\n\\[{low}, {high}]"


def costs(measured: dict, limit: float) -> list[str]:
    """Quantile and mean of the episode cost with their intervals, 99 % quantile, worst episode; – where not known."""
    from tqpo.maths.statistics import cost_text

    def text(x: float | None) -> str:
        return "…" if x is None else cost_text(x, limit)

    ranged = (measured["episode_cost_quantile"], measured["episode_cost_mean"])
    cells = [f"{text(x['value'])}\n\\[{text(x['low'])}, {text(x['high'])}]" for x in ranged]
    if "episode_cost_max" not in measured:  # a file of 0.1
        return [*cells, "–", "–"]
    return [*cells, text(measured["episode_cost_99"]["value"]), text(measured["episode_cost_max"])]


COSTS = ("quantile", "mean cost", "99 %", "worst")  # of the episode cost


def constraint_text(asked: dict) -> str:
    """A constraint of an evaluation in a few words."""
    if asked["kind"] == "mean":
        return f"mean {asked['name']} ≤ {asked['cost_limit']:g}"
    return f"Pr\\[{asked['name']} ≤ {asked['cost_limit']:g}] ≥ {asked['safety']:.0%}"


def show_evaluation(evaluation: dict, path: pathlib.Path, quiet: bool = False) -> None:
    """The table and the verdict of a run; where that is a miss and not `quiet`, what to do about it."""
    from tqpo import store
    from tqpo.training.shortfall import advice

    scopes = [(str(s["seed"]), s) for s in evaluation["seeds"]]
    if len(scopes) > 1:
        scopes.append(("all", evaluation["pooled"]))
    numbers = ("seed", "return", "Pr[C ≤ d]", *COSTS)
    several = len(evaluation["constraints"]) > 1
    title = f"{evaluation['label']}, {evaluation['pooled']['episodes']:,} episodes"
    table = new_table(title, (*numbers[:2], *["constraint"] * several, *numbers[2:], "verdict"), numbers)
    for name, scope in scopes:
        for c, asked in zip(scope["constraints"], evaluation["constraints"], strict=True):
            table.add_row(
                name,
                interval(scope["return"], "{:.2f}"),
                *[constraint_text(asked)] * several,
                interval(c["safety_prob"], "{:.1%}"),
                *costs(c, asked["cost_limit"]),
                c["verdict"]["word"],
            )
    console = wide_console()
    console.print(table)
    if verdict := evaluation["verdict"]:
        colour = {"meets": "green", "misses": "red"}.get(verdict["word"], "yellow")
        console.print(f"[bold {colour}]{verdict['sentence']}[/]", soft_wrap=True)
    for line in [] if quiet else advice(store.open_run(path), evaluation):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
