"""PPO, GSPO, CISPO, TIS and DPPO: rows by hand, where each cuts, and what stays finite."""

import inspect
import math

import pytest
import torch

from prl.errors import DataError
from prl.losses import cispo, dppo, gspo, icepop, ipo, ppo_clip, tis
from tests.losses.rows import run

BASELINES = [ppo_clip, gspo, cispo, tis, dppo]
LN = math.log


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "kept"),
    [
        (1.5, 2.0, -2.4, 0.0, False),  # cut at 1.2: -1.2 * 2
        (0.5, 2.0, -1.0, -1.0, True),  # a fall against the advantage stays
        (0.5, -2.0, 1.6, 0.0, False),  # cut at 0.8: 0.8 * 2
        (1.5, -2.0, 3.0, 3.0, True),
        (1.1, 2.0, -2.2, -2.2, True),
        (1.5, 0.0, 0.0, 0.0, True),  # no credit, nothing to cut
    ],
)
def test_ppo_cuts_on_the_side_that_the_advantage_pushes_to(ratio, advantage, loss, slope, kept):
    got = run(ppo_clip, [LN(0.3 * ratio)], [LN(0.3)], [advantage])
    assert got[:3] == (pytest.approx([loss]), pytest.approx([slope]), [kept])
    assert got[3] == {"clamped": [0.0]}


def test_ppo_bounds_are_set_apart_and_an_eps_low_of_one_cuts_nothing():
    columns = [LN(1.25), LN(0.01)], [0.0, 0.0], [1.0, -1.0]
    assert run(ppo_clip, *columns, eps_high=0.28)[2] == [True, False]
    assert run(ppo_clip, *columns, eps_low=1.0)[2] == [False, True]


def test_ppo_equals_the_smaller_of_both_surrogates():
    generator = torch.Generator().manual_seed(0)
    trainer = (-2 * torch.rand(200, generator=generator, dtype=torch.float64)).requires_grad_()
    inference = -2 * torch.rand(200, generator=generator, dtype=torch.float64)
    advantages = torch.randn(200, generator=generator, dtype=torch.float64)
    ratio = (trainer - inference).exp()
    want = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    out = ppo_clip(trainer, inference, advantages)
    torch.testing.assert_close(out.per_token, want)
    gradients = [torch.autograd.grad(x.sum(), trainer)[0] for x in (out.per_token, want)]
    torch.testing.assert_close(*gradients)
    assert torch.equal(out.kept, gradients[1] != 0) and 0 < out.kept.sum() < 200


@pytest.mark.parametrize("loss", [ppo_clip, dppo, ipo])
def test_a_kept_ratio_that_overflows_is_capped_and_counted(loss):
    # e^-2 - e^-91 = 0.135 passes every probability band, and A < 0 leaves PPO unclipped; pi/mu = e^89 > float32.
    value, slope, kept, metrics = run(loss, [-2.0], [-91.0], [-1.0], dtype=torch.float32)
    assert (kept, metrics) == ([True], {"clamped": [1.0]})
    assert value == slope == pytest.approx([1e4])
    assert run(loss, [-2.0], [-91.0], [-1.0], max_ratio=50.0)[0] == pytest.approx([50.0])


def test_a_cut_ratio_that_overflows_has_the_value_of_the_bound():
    assert run(ppo_clip, [-2.0], [-91.0], [1.0], dtype=torch.float32)[:3] == (pytest.approx([-1.2]), [0.0], [False])


def test_gspo_by_hand():
    # Log ratios ln 2 and 0: s = 2^(1/2). A = -1 is unclipped, so every token has s, which over 2 tokens and |y| = 2
    # sums to s; slope of s in each log-probability: s / 2, and here times |y| once more.
    s = math.sqrt(2)
    loss, gradient, kept, metrics = run(gspo, [-1.0, -1.0], [-1.0 - LN(2), -1.0], [-1.0, -1.0])
    assert (kept, metrics) == ([True, True], {"clamped": [0.0, 0.0]})
    assert loss == gradient == pytest.approx([s, s])
    # A = 1: the whole sequence is cut at 1 + 4e-4.
    loss, gradient, kept, _ = run(gspo, [-1.0, -1.0], [-1.0 - LN(2), -1.0], [1.0, 1.0])
    assert (loss, gradient, kept) == (pytest.approx([-1.0004] * 2), [0.0, 0.0], [False, False])
    # s = 2^(-1/2) below 1 - 3e-4 is cut for A = -1 only.
    assert run(gspo, [-1.0, -1.0], [-1.0 + LN(2), -1.0], [-1.0, -1.0])[0] == pytest.approx([0.9997] * 2)
    assert run(gspo, [-1.0, -1.0], [-1.0 + LN(2), -1.0], [1.0, 1.0])[1] == pytest.approx([-1 / s] * 2)


def test_gspo_over_its_length_is_the_sequence_loss_in_value_and_gradient():
    generator = torch.Generator().manual_seed(1)
    inference = -2 * torch.rand(6, 7, generator=generator, dtype=torch.float64)
    trainer = (inference + 1e-3 * torch.randn(6, 7, generator=generator, dtype=torch.float64)).requires_grad_()
    mask = torch.rand(6, 7, generator=generator) < 0.7
    advantages = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5, -0.5], dtype=torch.float64)[:, None].expand(6, 7)
    length = mask.sum(-1)
    s = ((mask * (trainer - inference)).sum(-1) / length).exp()
    want = -torch.minimum(s * advantages[:, 0], s.clamp(1 - 3e-4, 1 + 4e-4) * advantages[:, 0])
    out = gspo(trainer, inference, advantages, mask=mask)
    got = out.per_token.sum(-1) / length
    torch.testing.assert_close(got, want)
    slopes = [torch.autograd.grad(x.sum(), trainer)[0] for x in (got, want)]
    torch.testing.assert_close(*slopes)
    cut = (slopes[1] == 0).all(-1)
    assert 0 < cut.sum() < 6 and torch.equal(out.kept, mask & ~cut[:, None])


def test_gspo_with_credit_per_token_cuts_by_each_tokens_sign():
    # s = 2: the positive token is cut at 1.0004, the negative one is not.
    loss, gradient, kept, _ = run(gspo, [-1.0, -1.0], [-1.0 - LN(2)] * 2, [1.0, -1.0])
    assert kept == [False, True]
    assert (loss, gradient) == (pytest.approx([-1.0004, 2.0]), pytest.approx([0.0, 2.0]))


def test_gspo_ratio_that_overflows_is_capped_and_counted():
    value, slope, kept, metrics = run(gspo, [-2.0, -2.0], [-95.0, -95.0], [-1.0, -1.0], dtype=torch.float32)
    assert (kept, metrics) == ([True, True], {"clamped": [1.0, 1.0]})
    assert value == slope == pytest.approx([1e4, 1e4])


def test_gspo_without_a_token_is_zero():
    empty = torch.zeros(3, dtype=torch.bool)
    assert run(gspo, [-1.0] * 3, [-2.0] * 3, [1.0] * 3, mask=empty)[:3] == ([0.0] * 3, [0.0] * 3, [False] * 3)


@pytest.mark.parametrize(
    ("loss", "options", "ratio", "weight", "clipped"),
    [
        (cispo, {}, 1.5, 1.28, True),
        (cispo, {}, 1.2, 1.2, False),
        (cispo, {}, 0.1, 0.1, False),  # no lower bound
        (cispo, {"eps_low": 0.2}, 0.1, 0.8, True),
        (cispo, {"eps_high": 0.0, "eps_low": 0.0}, 7.0, 1.0, True),
        (tis, {}, 3.0, 2.0, True),
        (tis, {}, 2.0, 2.0, False),
        (tis, {}, 0.1, 0.1, False),
        (tis, {"cap": math.inf}, 50.0, 50.0, False),
    ],
)
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_a_weight_is_detached_and_clipped_and_the_token_stays(loss, options, ratio, weight, clipped, advantage):
    trainer = LN(0.01 * ratio)
    value, slope, kept, metrics = run(loss, [trainer], [LN(0.01)], [advantage], **options)
    assert (kept, metrics) == ([True], {"clipped": [float(clipped)]})
    assert value == pytest.approx([-weight * advantage * trainer])
    assert slope == pytest.approx([-weight * advantage])


@pytest.mark.parametrize(("loss", "weight"), [(cispo, 1.28), (tis, 2.0)])
def test_a_clipped_weight_that_would_overflow_is_the_bound(loss, weight):
    value, slope, _, metrics = run(loss, [-2.0], [-91.0], [1.0], dtype=torch.float32)
    assert (value, slope) == (pytest.approx([2 * weight]), pytest.approx([-weight]))
    assert metrics == {"clipped": [1.0]}


@pytest.mark.parametrize(
    ("mu", "pi", "eps", "kept_up", "kept_down"),  # for A > 0 and for A < 0
    [
        (1e-5, 1e-3, 0.2, True, True),
        (0.99, 0.80, 0.15, True, False),  # fell by 0.19
        (0.99, 0.80, 0.2, True, True),
        (0.50, 0.85, 0.2, False, True),  # rose by 0.35
        (0.50, 0.85, 0.36, True, True),
        (0.50, 0.25, 0.25 + 1e-12, True, True),  # the edge
        (0.50, 0.25, 0.25 - 1e-12, True, False),
    ],
)
def test_dppo_drops_only_moves_along_the_advantage(mu, pi, eps, kept_up, kept_down):
    columns = [LN(pi)] * 3, [LN(mu)] * 3, [1.0, -1.0, 0.0]
    loss, gradient, kept, _ = run(dppo, *columns, eps_low=eps, eps_high=eps)
    assert kept == [kept_up, kept_down, kept_down]  # A = 0 goes with the negative ones
    want = [-pi / mu if kept_up else 0.0, pi / mu if kept_down else 0.0, 0.0]
    assert (loss, gradient) == (pytest.approx(want), pytest.approx(want))
    assert all(x == 0.0 for x, keep in zip(loss, kept, strict=True) if not keep)


@pytest.mark.parametrize(
    ("mu", "pi", "icepop_keeps", "ipo_keeps", "narrow_ipo_keeps"),
    [(1e-5, 1e-3, False, True, True), (0.99, 0.80, True, True, False), (0.50, 0.85, True, False, False)],
)
def test_what_a_band_of_ratios_and_one_of_probabilities_keep(mu, pi, icepop_keeps, ipo_keeps, narrow_ipo_keeps):
    # Ratios 100, .808, 1.7; moves .00099, .19, .35.
    columns = [LN(pi)], [LN(mu)], [1.0]
    assert run(icepop, *columns)[2] == [icepop_keeps]
    assert run(ipo, *columns)[2] == [ipo_keeps]
    assert run(ipo, *columns, eps=0.1)[2] == [narrow_ipo_keeps]


@pytest.mark.parametrize("loss", BASELINES)
@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_streams_that_would_broadcast_are_refused(loss, wrong):
    streams = [torch.zeros(2, 3) for _ in range(3)]
    streams[wrong] = torch.zeros(2, 1)
    with pytest.raises(DataError, match=rf"{loss.__name__}: streams differ in shape: .*\[2, 1\].* one entry per token"):
        inspect.unwrap(loss)(*streams)
