"""Results as tables: in the terminal, as Markdown and as LaTeX. A table is a title, columns and rows of text."""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from tqpo.reproduce.cells import read


class Content(NamedTuple):
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def plus_minus(pair: Sequence[float | None], form: str) -> str:
    return " ± ".join(form.format(x) for x in pair if x is not None)


def percent(pair: Sequence[float | None], digits: int = 1) -> str:
    return plus_minus([None if x is None else 100 * x for x in pair], f"{{:.{digits}f}}")


def load(paths: Sequence[pathlib.Path]) -> list[dict[str, Any]]:
    return [found for path in paths if (found := read(path)) is not None]


def overview(cells: Sequence[dict[str, Any]]) -> Content:
    """The last tenth of training beside the paper's numbers."""
    columns = (
        "task",
        "algorithm",
        "preset",
        "level",
        "R",
        "paper",
        "Pr [%]",
        "paper",
        "Pr of each seed [%]",
        "group [s]",
    )
    rows = []
    for found in cells:
        s, last, paper = found["settings"], found["last_tenth"], found["published"]
        timing = found.get("group")
        rows.append(
            (
                s["task"],
                s["algo"],
                s["preset"],
                f"{s['safety']:.0%}",
                plus_minus(last["return_mean_std"], "{:.2f}"),
                plus_minus(paper["episode_return"], "{:g}") if paper else "",
                percent(last["safety_prob_mean_std"]),
                percent(paper["safety_prob"], 0) if paper else "",
                " ".join(f"{100 * x:.0f}" for x in last["safety_prob"]),
                f"{timing['total_s']:.0f} ({timing['runs']} runs)" if timing else "not complete",
            )
        )
    return Content("Average over the last tenth of training, mean ± standard deviation over seeds", columns, rows)


def rich_table(content: Content):
    from rich.table import Table

    out = Table(title=content.title)
    for column in content.columns:
        out.add_column(column, justify="left" if column in {"task", "algorithm", "preset"} else "right")
    for row in content.rows:
        out.add_row(*row)
    return out


def markdown(content: Content) -> str:
    lines = [content.columns, ("---",) * len(content.columns), *content.rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines) + "\n"


def latex(content: Content) -> str:
    def clean(text: str) -> str:
        for a, b in (
            ("%", r"\%"),
            ("±", r"$\pm$"),
            ("−", "$-$"),
            ("≤", r"$\le$"),
            ("_", r"\_"),
            ("…", r"\dots{}"),
            ("`", ""),
        ):
            text = text.replace(a, b)
        return text

    body = [" & ".join(clean(x) for x in row) + r" \\" for row in (content.columns, *content.rows)]
    begin = rf"\begin{{tabular}}{{{'l' * len(content.columns)}}}" + "\n\\hline"
    return "\n".join([begin, body[0], r"\hline", *body[1:], r"\hline", r"\end{tabular}", ""])
