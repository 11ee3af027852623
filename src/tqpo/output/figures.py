"""How every figure looks, and how it is written.

A figure can be saved as PNG and SVG, or put into a page as SVG. There its ink is the page's text colour, so it
follows a dark theme.
"""

import io
import pathlib
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f2630"
RC: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "legend.frameon": False,
    "svg.hashsalt": "tqpo",
    "text.parse_math": False,  # a $ in a name is a $
}


def finish(ax: "Axes", steps: bool = True) -> None:
    ax.grid(axis="y", color=INK, alpha=0.12, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(length=3, width=0.8)
    if steps:
        ax.set_xlabel("environment steps")
        ax.xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g} M" if x >= 1e6 else f"{x / 1e3:g} k" if x else "0")
        ax.margins(x=0.01)


def legend(figure: "Figure", title: str) -> None:
    """Title and labels above the axes; a single label only if there is no title to take its place."""
    handles = {label: h for ax in figure.axes for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if len(handles) > 1 or (handles and not title):
        columns = -(-len(handles) // -(-len(handles) // 5))  # at most five in a row, rows as even as possible
        box = figure.legend(
            handles.values(), handles.keys(), loc="outside upper left", ncols=columns, columnspacing=1.4, title=title
        )
        box.set_alignment("left")
        box.get_title().set(fontsize=12, fontweight="bold")
    elif title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure  # not pyplot: no global state, no display

    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # inches  # pyright: ignore
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def style(changes: Any = None):
    import matplotlib

    return matplotlib.rc_context(RC | (changes or {}))


def save(figure: "Figure", stem: str | pathlib.Path) -> list[pathlib.Path]:
    """Writes `stem`.png and `stem`.svg."""
    paths = [pathlib.Path(f"{stem}.png"), pathlib.Path(f"{stem}.svg")]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    with style():
        figure.savefig(paths[0], dpi=160)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def inline_svg(figure: "Figure", prefix: str) -> str:
    """The figure as an <svg> element for a page: its ink the page's text colour, its ids begun with `prefix`."""
    buffer = io.StringIO()
    with style({"svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\1{prefix}-", svg)
