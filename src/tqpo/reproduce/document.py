"""What the cells say, for people: a table in the terminal; tables, figures and `docs/reproduction.md` on disk."""

import pathlib
from collections.abc import Sequence

from tqpo.reproduce import tables


def show(paths: Sequence[pathlib.Path]) -> None:
    from rich.console import Console

    console = Console()
    console = console if console.is_terminal else Console(width=170)
    console.print(tables.rich_table(tables.overview(tables.load(paths))))


def write_all(out: pathlib.Path) -> list[pathlib.Path]:
    """Tables and figures of all cells in a folder."""
    return []
