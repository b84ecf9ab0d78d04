"""One colour for one thing, in every picture.

Signed numbers use a diverging blue-orange scale that colour-blind readers can tell apart:
blue above 0, orange below, five steps each way, with and without a dark background.
"""

POSITIVE = ("#dcebf7", "#b3d3ee", "#82b6e0", "#4d94cc", "#1f6fb0")
NEGATIVE = ("#fdebd3", "#fbd09b", "#f5ae5b", "#e58a24", "#c2670a")
POSITIVE_DARK = ("#1a3348", "#1d4768", "#205c8a", "#3f86c0", "#74b3e6")
NEGATIVE_DARK = ("#45301a", "#65421a", "#85541a", "#c07a2c", "#f0a652")
STEPS = len(POSITIVE)

INK, PAPER, MUTED, LINE = "#111111", "#ffffff", "#5f6670", "#c9ced6"
INK_DARK, PAPER_DARK, MUTED_DARK, LINE_DARK = "#e8e8e8", "#1b1e23", "#a3abb5", "#4a5059"

REWARD = "#111111"
COMPONENTS = {"rl": "#0072b2", "ce": "#009e73", "ref_kl": "#cc79a7"}
"""Colours of the loss components; the total is REWARD's black."""


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb", from 0 (black) to 1 (white), as WCAG defines it."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    """WCAG contrast ratio of two colours, from 1 to 21; text needs 4.5."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on `colour`."""
    return max((INK, PAPER), key=lambda ink: contrast(ink, colour))
