"""The palette: text is legible on every step, and steps grow away from the paper."""

import pytest

from prl.viz import palette

SCALES = ["POSITIVE", "NEGATIVE", "POSITIVE_DARK", "NEGATIVE_DARK"]


@pytest.mark.parametrize("name", SCALES)
def test_ink_is_legible_on_every_step(name):
    for colour in getattr(palette, name):
        assert palette.contrast(palette.ink_on(colour), colour) >= 4.5


@pytest.mark.parametrize("name", SCALES)
def test_each_step_is_further_from_the_paper(name):
    paper = palette.PAPER_DARK if name.endswith("DARK") else palette.PAPER
    distances = [palette.contrast(colour, paper) for colour in getattr(palette, name)]
    assert distances == sorted(distances) and len(set(distances)) == palette.STEPS


def test_text_is_legible_on_paper():
    for ink, muted, paper in [
        (palette.INK, palette.MUTED, palette.PAPER),
        (palette.INK_DARK, palette.MUTED_DARK, palette.PAPER_DARK),
    ]:
        assert palette.contrast(ink, paper) >= 7 and palette.contrast(muted, paper) >= 4.5


def test_contrast_of_black_on_white_is_21():
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21)
