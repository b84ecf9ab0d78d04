"""Figures: lanes, panels, labels, and odd input; every figure is drawn."""

import matplotlib.colors as colors
import pytest
from numpy.testing import assert_allclose

from prl import frames
from prl.types import StepReport
from prl.viz import group_advantages, history, palette
from tests.viz.cases import decode, full_sample, group, hand_made, sample, scored_group, trace

PNG = b"\x89PNG"


def report(step, **terms):
    metrics = {"rl/mismatch_kl": 0.01 * step, "rl/kept": 1 - 0.1 * step}
    return StepReport(step, step, sum(terms.values()), terms, metrics, 0.5, 1.0, 10, 1.0)


def drawn(picture):
    assert picture._repr_png_().startswith(PNG)
    assert picture.get_figwidth() == 9.0
    return picture


def texts(ax):
    return [t.get_text() for t in ax.texts]


def test_a_group_has_a_lane_per_rollout_with_its_tokens_and_reward():
    picture = drawn(group_advantages(scored_group(), decode))
    ax = picture.axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0", "1", "2"]
    assert [t.get_text() for t in ax.child_axes[0].get_yticklabels()] == ["1", "0", "0.25"]
    assert texts(ax) == ["\u00b7two", "<|end|>"] * 3
    assert_allclose(ax.collections[0].get_array().compressed(), [0.5, 0.5, -0.5, -2.0, 0, 0])
    assert ax.get_xlabel() == "position among the trained tokens (tokens)"
    assert (ax.get_ylabel(), ax.child_axes[0].get_ylabel()) == ("rollout", "reward (no unit)")
    assert picture.axes[1].get_ylabel() == "advantage (no unit)"
    assert ax.get_title() == "sums: What is 1+1?"


def test_the_colour_scale_is_centred_at_zero_and_blue_above():
    mesh = drawn(group_advantages(scored_group(), decode)).axes[0].collections[0]
    assert (mesh.norm.vmin, mesh.norm.vmax) == (-2.0, 2.0)
    assert colors.to_hex(mesh.cmap(1.0)) == palette.POSITIVE[-1]
    assert colors.to_hex(mesh.cmap(0.0)) == palette.NEGATIVE[-1]


def test_sign_is_also_a_line_solid_above_and_dotted_below():
    ax = drawn(group_advantages(scored_group(), decode)).axes[0]
    lines = [c for c in ax.collections[2:] if len(c.get_segments())]  # after the cells and the gaps between lanes
    assert [[segment[:, 0].tolist() for segment in c.get_segments()] for c in lines] == [[[0, 2]], [[0, 2]]]
    (_, solid), (_, dotted) = (c.get_linestyle()[0] for c in lines)
    assert solid is None and dotted is not None


def test_lanes_of_different_length_and_traces_of_several_samples():
    two = trace("t0", 1.0, (sample("a", (0, 0, 1, 2)), sample("b", (0, 0, 3, 4))))
    mesh = drawn(group_advantages(group(two, trace("t1", 0.0, (sample("c"),))), decode)).axes[0].collections[0]
    table = mesh.get_array().reshape(2, 4)
    assert table.tolist() == [[1, 2, 3, 4], [0.5, -1, None, None]]


def test_before_scoring_cells_are_white_and_there_is_no_colour_bar():
    picture = drawn(group_advantages(group(trace("t", 1.0, (sample(advantages=None),))), decode))
    assert len(picture.axes) == 1
    assert picture.axes[0].get_title() == "sums: What is 1+1? (not scored yet)"


def test_a_group_without_a_rollout_says_so():
    odd = group(trace("t", 0.0, ()), errors=["boom"])
    picture = drawn(group_advantages(odd, decode))
    assert picture.axes == []
    assert picture.texts[0].get_text() == "sums/1+1@0: no rollout takes part (1 of 2 episodes failed)."


def test_tokens_that_do_not_fit_are_left_out():
    long = trace("t", 1.0, (full_sample(600, 10),))
    assert texts(drawn(group_advantages(group(long), decode)).axes[0]) == []
    middle = drawn(group_advantages(group(trace("t", 1.0, (full_sample(40, 4),))), decode)).axes[0].texts
    assert {t.get_rotation() for t in middle} == {0, 90}


@pytest.mark.parametrize("text", ["$x^$", "\\frac{", "\U0001f600\u65e5", "\x00", "\ud800", "%s {}"])
def test_any_text_can_be_drawn(text):
    odd = group(trace("t", 1.0, (sample(text),), agent=text), trace("u", 0.0, (sample(text),)), task=text)
    drawn(group_advantages(odd, lambda i: text))
    drawn(group_advantages(group(errors=[text]), lambda i: text))


def test_agents_are_named_where_there_are_several():
    both = group(trace("t", 1.0, (sample(),), agent="solver"), trace("u", 0.0, (sample(),), agent="proposer"))
    ax = drawn(group_advantages(both, decode)).axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0 solver", "1 proposer"]


def test_history_has_a_panel_for_what_was_measured():
    picture = drawn(history([report(1, rl=0.5, ce=0.25), report(2, rl=0.25, ce=0.25), report(3, rl=0.5)]))
    labels = [ax.get_ylabel() for ax in picture.axes]
    assert labels == [
        "reward, mean per rollout", "loss per token (ce in nats)",
        "mismatch KL (nats per token)", "kept share of tokens",
    ]  # fmt: skip
    assert {ax.get_xlabel() for ax in picture.axes} == {"training step"}
    lines = {line.get_label(): line for line in picture.axes[1].lines}
    assert lines["total"].get_ydata().tolist() == [0.75, 0.5, 0.5]
    assert lines["ce"].get_xdata().tolist() == [1, 2]  # not reported at step 3
    assert {name: lines[name].get_color() for name in ("rl", "ce")} == {k: palette.COMPONENTS[k] for k in ("rl", "ce")}


def test_history_of_a_frame_is_that_of_the_reports():
    reports = [report(1, rl=0.5), report(2, rl=0.25)]
    assert drawn(history(frames.steps(reports)))._repr_png_() == history(reports)._repr_png_()


def test_history_leaves_out_panels_without_numbers():
    one = report(4, ce=0.5)._replace(metrics={}, reward=None)
    picture = drawn(history([one]))
    assert [ax.get_ylabel() for ax in picture.axes] == ["loss per token (ce in nats)"]
    assert picture.axes[0].get_xlim() == (3, 5)
    three = drawn(history([report(1, rl=1.0)._replace(reward=None)]))
    assert len(three.axes) == 3


def test_history_before_the_first_step():
    assert drawn(history([])).texts[0].get_text() == "No training step yet."


def test_an_infinite_advantage_does_not_set_the_scale():
    odd = hand_made("s", [0, 1, 2], [False, True, True], advantages=[0, float("inf"), 0.5], rl_weights=[0, 0, 0])
    mesh = drawn(group_advantages(group(trace("t", 1.0, (odd,))), decode)).axes[0].collections[0]
    assert mesh.norm.vmax == 0.5
