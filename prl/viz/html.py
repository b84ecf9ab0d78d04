"""A piece of HTML that a notebook shows and a file keeps."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>{title}</title></head>
<body>
{fragment}
</body></html>
"""


@dataclass(frozen=True)
class Html:
    """A self-contained fragment: no script, nothing loaded from elsewhere. `str(html)` is its source."""

    fragment: str
    title: str = "prl"

    def __str__(self) -> str:
        return self.fragment

    def __repr__(self) -> str:
        return f"Html({self.title!r}, {len(self.fragment):,} characters)"

    def _repr_html_(self) -> str:
        return self.fragment

    def save(self, path: str | Path) -> Path:
        """Write a complete page, UTF-8, that opens offline; returns its path."""
        path = Path(path)
        path.write_text(_PAGE.format(title=escape(self.title), fragment=self.fragment), encoding="utf-8")
        return path
