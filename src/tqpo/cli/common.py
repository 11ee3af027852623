"""What several commands share."""

import json
import pathlib

from tyro.conf import Positional

from tqpo.errors import ConfigError

Folder = Positional[pathlib.Path]


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


def progress(title: str, hidden: bool):
    """A context manager that gives a callback (done, total), shown as a bar in a terminal."""
    import contextlib

    from rich.console import Console
    from rich.progress import Progress

    @contextlib.contextmanager
    def show():
        console = Console(stderr=True, quiet=hidden)
        with Progress(console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    return show()


def interval(found: dict, form: str) -> str:
    """A value and its interval; that of a probability is rounded outward, as in the verdict's sentence."""
    from tqpo.maths.statistics import outward

    ends = outward(found["low"], found["high"], digits=1) if "%" in form else (found["low"], found["high"])
    low, high = ("…" if end is None else form.format(end) for end in ends)
    return f"{form.format(found['value'])} [{low}, {high}]".replace("[", "\\[")


def constraint_text(asked: dict) -> str:
    """A constraint of an evaluation in a few words."""
    if asked["kind"] == "mean":
        return f"mean {asked['name']} ≤ {asked['cost_limit']:g}"
    return f"Pr\\[{asked['name']} ≤ {asked['cost_limit']:g}] ≥ {asked['safety']:.0%}"


def show_evaluation(found: dict) -> None:
    from rich.table import Table

    table = Table(title=found["label"])
    for column in ("seed", "episodes", "return", "Pr[C ≤ d]", "cost quantile", "mean cost", "verdict"):
        table.add_column(column, justify="left" if column == "verdict" else "right")
    scopes = [(str(s["seed"]), s) for s in found["seeds"]]
    if len(scopes) > 1:
        scopes.append(("all", found["pooled"]))
    several = len(found["constraints"]) > 1
    if several:
        table.add_column("constraint")
    for name, scope in scopes:
        for k, c in enumerate(scope["constraints"]):
            table.add_row(
                name,
                f"{scope['episodes']:,}",
                interval(scope["return"], "{:.2f}"),
                interval(c["safety_prob"], "{:.1%}"),
                interval(c["episode_cost_quantile"], "{:.0f}"),
                interval(c["episode_cost_mean"], "{:.1f}"),
                c["verdict"]["word"],
                *([constraint_text(found["constraints"][k])] if several else []),
            )
    console = wide_console()
    console.print(table)
    if found["verdict"]:
        colour = {"meets": "green", "misses": "red"}.get(found["verdict"]["word"], "yellow")
        console.print(f"[bold {colour}]{found['verdict']['sentence']}[/]", soft_wrap=True)
