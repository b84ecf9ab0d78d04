"""The style sheet of `token_html`: stream switch, colours, tooltip. Holds no text of the data.

Class names are short because every token carries several: a stream is one letter, a token is
in class `a3` or `a-3` where stream `a` is on step 3 of the scale above or below 0. The switch
is a radio button per stream: `.ka:checked` colours the `a` classes after it.
"""

from collections.abc import Iterable
from typing import NamedTuple

from prl.types import ROLES
from prl.viz import palette


class Stream(NamedTuple):
    """A switchable stream: its letter in class and attribute names, its label, its unit ("" for none)."""

    letter: str
    label: str
    unit: str


STREAMS = {
    "advantages": Stream("a", "advantage", ""),
    "inference_logprobs": Stream("b", "inference logprob", "nats"),
    "ref_logprobs": Stream("c", "ref logprob", "nats"),
    "rl_weights": Stream("d", "rl weight", ""),
    "ce_weights": Stream("e", "ce weight", ""),
    "ref_kl_weights": Stream("f", "ref_kl weight", ""),
    "temperatures": Stream("g", "temperature", ""),
    "version": Stream("h", "weights version", ""),
}
PLACES = {"step": Stream("s", "step", ""), "message": Stream("m", "message", "")}
"""Shown in the tooltip only."""

_LAYOUT = """
.prl{position:relative;margin:0;padding:.6em .8em 4.5em;border-radius:4px;font:13px/1.5 system-ui,sans-serif;
 color:var(--ink);background:var(--paper);--ink:INK;--paper:PAPER;--muted:MUTED;--line:LINE}
.prl .h{font-weight:600}
.prl .n{color:var(--muted)}
.prl>input{appearance:none;width:auto;height:auto;margin:.4em .4em .4em 0;padding:.1em .6em;
 border:1px solid var(--line);border-radius:1em;background:none;color:var(--ink);font:inherit;cursor:pointer;
 vertical-align:middle}
.prl>input::before{content:attr(aria-label)}
.prl>input:checked{background:var(--ink);color:var(--paper)}
.prl>input:focus-visible,.prl i:focus{outline:2px solid var(--ink);outline-offset:1px}
.prl .g{display:none;color:var(--muted)}
.prl .g b{display:inline-block;width:1.4em;height:1em;vertical-align:middle;border-bottom:2px solid transparent}
.prl .r{margin-top:.7em;padding-top:.4em;border-top:1px solid var(--line)}
.prl .x{position:relative;font:12px/1.75 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap}
.prl summary{color:var(--muted);cursor:pointer}
.prl i{display:inline-block;max-width:100%;overflow-wrap:anywhere;font-style:italic;color:var(--muted);
 padding:0 1px;line-height:1.35;border-bottom:2px solid transparent}
.prl i.t{font-style:normal;color:var(--ink);box-shadow:inset 0 0 0 1px var(--line);--m:"in the mask"}
.prl i:hover::after,.prl i:focus::after{position:absolute;z-index:9;left:0;right:0;margin-top:1.7em;padding:.3em .6em;
 font:12px/1.5 system-ui,sans-serif;white-space:pre-wrap;background:var(--ink);color:var(--paper);border-radius:3px;
 pointer-events:none}
"""


def stylesheet(name: str, streams: Iterable[str], places: Iterable[str]) -> str:
    """The CSS of a fragment of class `name` whose tooltip lists `streams` and `places`."""
    light = _steps(palette.POSITIVE, palette.NEGATIVE)
    dark = _steps(palette.POSITIVE_DARK, palette.NEGATIVE_DARK)
    dark += f"--ink:{palette.INK_DARK};--paper:{palette.PAPER_DARK};"
    dark += f"--muted:{palette.MUTED_DARK};--line:{palette.LINE_DARK}"
    return "".join(
        [
            _layout(),
            f".prl{{{light}}}\n@media (prefers-color-scheme:dark){{.prl{{{dark}}}}}\n",
            *(f'.prl .r{code}{{--r:"{role}"}}\n' for code, role in enumerate(ROLES)),
            *(_switch(step) for step in range(-palette.STEPS, palette.STEPS + 1) if step),
            ",".join(f".prl .k{s.letter}:checked~.b .g{s.letter}" for s in STREAMS.values()),
            "{display:block}\n",
            _tooltip(name, streams, places),
        ]
    )


def step_class(letter: str, step: int) -> str:
    """The class of a token on `step` of stream `letter`; "" at 0."""
    return f" {letter}{step}" if step else ""


def _layout() -> str:
    names = {"INK": palette.INK, "PAPER": palette.PAPER, "MUTED": palette.MUTED, "LINE": palette.LINE}
    css = _LAYOUT
    for name, colour in names.items():
        css = css.replace(f":{name}", f":{colour}")
    return css


def _steps(positive: tuple[str, ...], negative: tuple[str, ...]) -> str:
    """Custom properties: background p1..p5, n1..n5 and the ink that reads best on each."""
    scale = {f"p{i}": c for i, c in enumerate(positive, 1)} | {f"n{i}": c for i, c in enumerate(negative, 1)}
    return "".join(f"--{name}:{colour};--i{name}:{palette.ink_on(colour)};" for name, colour in scale.items())


def _switch(step: int) -> str:
    selectors = ",".join(f".prl .k{s.letter}:checked~.b .{s.letter}{step}" for s in STREAMS.values())
    name, line = (f"p{step}", "solid") if step > 0 else (f"n{-step}", "dotted")
    return f"{selectors}{{background:var(--{name});color:var(--i{name});border-bottom:2px {line} var(--ink)}}\n"


def _tooltip(name: str, streams: Iterable[str], places: Iterable[str]) -> str:
    parts = ['"position " attr(data-p) "  |  id " attr(data-i) "  |  " var(--r,"no role") ", " var(--m,"context")']
    for stream in [*(PLACES[p] for p in places), *(STREAMS[s] for s in streams)]:
        unit = f" {stream.unit}" if stream.unit else ""
        parts.append(f'"  |  {stream.label} " attr(data-{stream.letter}) "{unit}"')
    return f".{name} i:hover::after,.{name} i:focus::after{{content:{' '.join(parts)}}}\n"
