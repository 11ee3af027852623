"""What the cells say, for people: a table in the terminal; tables and figures on disk; tables in a page."""

import pathlib
from collections.abc import Iterable, Sequence

from tqpo.errors import ConfigError
from tqpo.reproduce import figures, tables
from tqpo.reproduce.tables import Content

END = "<!-- end -->"
IN_PAGE = ("table1", "table2", "released")  # the tables that a page has; the folder has all


def begin(out: pathlib.Path) -> str:
    """The mark in a page after which the tables of a folder stand."""
    return f"<!-- begin: {out.name}, generated -->"


def show(paths: Sequence[pathlib.Path]) -> None:
    from rich.console import Console

    console = Console() if Console().is_terminal else Console(width=170)
    title = "Average over the last tenth of training, mean ± standard deviation over seeds"
    console.print(tables.rich_table(tables.against_paper(tables.ordered(tables.load(paths)), title)))


def contents(cells: tables.Cells, again: tables.Cells, beside: tables.Cells | None = None) -> dict[str, Content]:
    """All tables. The judge's takes cells that were trained again for it where those of the tables were not judged."""
    judged = again | {name: cell for name, cell in cells.items() if tables.is_judged(cell)}
    return {
        "table1": tables.table1(cells),
        "table2": tables.table2(cells),
        "released": tables.released(cells, beside or {}),
        "readings": tables.readings(cells),
        "certificates": tables.certificates(cells),
        "dial": tables.dial(cells),
        "ablation": tables.ablation(cells, beside or {}),
        "leaderboard": tables.leaderboard(cells),
        "price": tables.price(cells, beside or {}),
        "protocols": tables.protocols(cells),
        "judge": tables.judge(judged),
        "times": tables.times(cells),
    }


def write_all(
    out: pathlib.Path, page: pathlib.Path | None = None, beside: Sequence[pathlib.Path] = ()
) -> list[pathlib.Path]:
    """Tables (Markdown, LaTeX) and figures (PNG, SVG) of all cells in a folder, into that folder; the tables also into
    `page`, between its marks. Cells that were trained again for the judge are in the folder `judged`. Those of `beside`
    stand beside cells of the preset `released`, of those that see their budget, and of their ablation."""
    cells, again = (tables.load(sorted(folder.glob("*.json"))) for folder in (out, out / "judged"))
    if not cells:
        hint = f"run tqpo reproduce table1 --out {out}, or name the folder with --out"
        raise ConfigError(f"{out} holds no results: {hint}")
    other = tables.load(path for folder in beside for path in sorted(folder.glob("*.json")))
    shown = {name: content for name, content in contents(cells, again, other).items() if content.rows}
    written = []
    for name, content in shown.items():
        for suffix, text in ((".md", tables.markdown(content)), (".tex", tables.latex(content))):
            written.append(out / f"{name}{suffix}")
            written[-1].write_text(text)
    if "released" not in shown:  # the paper has no such figures
        written += figures.draw_all(cells, out, other)
    return written if page is None else [*written, write_page(page, out, [shown[x] for x in IN_PAGE if x in shown])]


def write_page(page: pathlib.Path, out: pathlib.Path, shown: Iterable[Content]) -> pathlib.Path:
    """Puts the tables of a folder between its marks in a page."""
    text, mark = page.read_text() if page.exists() else "", begin(out)
    if mark not in text or END not in text:
        raise ConfigError(f"{page} lacks the marks {mark} and {END} between which tables are written")
    head, rest = text.split(mark, 1)
    parts = [f"**{content.title}**\n\n{tables.markdown(content)}" for content in shown]
    page.write_text(head + mark + "\n\n" + "\n".join(parts) + "\n" + END + rest.split(END, 1)[1])
    return page
