"""A matplotlib figure that a notebook shows as the last value of a cell, without pyplot."""

from io import BytesIO
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

from prl.viz.text import printable

FONT, MONO = "DejaVu Sans", "DejaVu Sans Mono"
"""Both come with matplotlib, so a picture looks the same everywhere."""
WIDTH = 9.0
"""Inches: the width of a notebook cell."""


class Picture(Figure):
    """A `Figure` that is nobody's current figure. It is not closed and never shown twice; `savefig` works as usual."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, layout="constrained", facecolor="white", **kwargs)

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


def drawable(text: str, font: str = FONT) -> str:
    """The text with what is invisible written out and what `font` has no glyph for as an empty box."""
    glyphs = get_font(findfont(font))
    return "".join(char if glyphs.get_char_index(ord(char)) else "\u25a1" for char in printable(text))


def tidy(ax: Axes) -> None:
    """A light grid behind the data and no frame above and right of it."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, color="#e4e7ec", linewidth=0.8)
    ax.set_axisbelow(True)


def note(text: str, height: float = 1.2) -> Picture:
    """A picture of one sentence: what to show where there is nothing to plot."""
    picture = Picture(figsize=(WIDTH, height))
    picture.text(0.5, 0.5, drawable(text), ha="center", va="center", parse_math=False)
    return picture
