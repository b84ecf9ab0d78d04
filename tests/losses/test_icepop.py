"""IcePop: rows by hand, the edges of the band, bug reports, golden numbers."""

import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.errors import DataError
from prl.losses import icepop
from tests.losses.rows import GOLDEN, run

LOW, HIGH = math.log(0.2), math.log(5)
DTYPES = [torch.float32, torch.float64]


def test_ratios_in_and_outside_the_band():
    # Ratios .1, .2, 1, 5, 10 at A = 1: the outer two go, the rest sum to 6.2.
    ratios = [0.1, 0.2, 1.0, 5.0, 10.0]
    loss, gradient, kept, metrics = run(icepop, [math.log(r) for r in ratios], [0.0] * 5, [1.0] * 5)
    assert (kept, metrics) == ([False, True, True, True, False], {})
    assert sum(loss) == pytest.approx(-6.2)
    assert loss == gradient == pytest.approx([0, -0.2, -1, -5, 0])
    assert loss[0] == gradient[0] == loss[4] == gradient[4] == 0.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("base", [0.0, -1.0, -2.0, -3.7, -20.0])
def test_both_ends_are_kept_and_what_is_dropped_never_overflows(base, dtype):
    gaps = [LOW, HIGH, HIGH + 1e-4, LOW - 1e-4, -99.0, 99.0, 0.0]
    inference = [base] * 7
    loss, gradient, kept, _ = run(icepop, [base + gap for gap in gaps], inference, [1.0] * 7, dtype=dtype)
    assert kept == [True, True, False, False, False, False, True]
    assert sum(loss) == pytest.approx(-(0.2 + 5 + 1), rel=1e-5)
    assert loss == gradient
    assert all(x == 0.0 for x, keep in zip(loss, kept, strict=True) if not keep)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(deadline=None, max_examples=200)
@given(st.floats(-60, 0), st.sampled_from([LOW, HIGH]))
def test_an_end_is_kept_wherever_rounding_puts_it(dtype, inference, gap):
    # A bare <= on the rounded difference loses up to a third of the pairs that lie on the end.
    _, _, kept, _ = run(icepop, [inference + gap], [inference], [1.0], dtype=dtype)
    assert kept == [True]
    beyond = inference + gap + math.copysign(1e-4, gap)
    assert run(icepop, [beyond], [inference], [1.0], dtype=dtype)[2] == [False]


def test_a_band_of_one_point_keeps_the_policy_that_sampled():
    assert run(icepop, [-1.0, -1.0], [-1.0, -1.01], [1.0, 1.0], ratio_low=1.0, ratio_high=1.0)[2] == [True, False]


def test_the_band_does_not_look_at_the_sign_and_adv_tau_scales_the_credit():
    loss, gradient, kept, _ = run(
        icepop, [math.log(0.6)] * 2 + [math.log(0.1)], [math.log(0.4)] * 2 + [math.log(0.6)], [2.0, -2.0, 1.0],
        adv_tau=0.5,
    )  # fmt: skip
    assert kept == [True, True, False]  # 1.5, 1.5, 1/6
    assert loss == gradient == pytest.approx([-1.5, 1.5, 0.0])


def test_a_rare_token_that_rose_is_dropped():
    # ratio e^89: ipo keeps it, as its probability moved by 0.135 only.
    assert run(icepop, [-2.0], [-91.0], [1.0], dtype=torch.float32)[:3] == ([0.0], [0.0], [False])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_golden(dtype, tolerance):
    columns = ([row[n] for row in GOLDEN] for n in ("trainer_logprob", "inference_logprob", "advantage"))
    loss, gradient, kept, _ = run(icepop, *columns, dtype=dtype)
    value, slope, stays = zip(*(row["icepop"] for row in GOLDEN), strict=True)
    assert loss == pytest.approx(value, rel=tolerance, abs=tolerance)
    assert gradient == pytest.approx(slope, rel=tolerance, abs=tolerance)
    assert kept == list(stays) and not all(kept)


def test_the_gradient_is_that_of_the_formula():
    inference = torch.tensor([-0.5, -2.0, -3.5], dtype=torch.float64)
    advantages = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    trainer = (inference + 0.3).requires_grad_()
    out = icepop(trainer, inference, advantages)
    torch.testing.assert_close(out.per_token, -advantages * (trainer - inference).exp())
    (gradient,) = torch.autograd.grad(out.per_token.sum(), trainer)
    torch.testing.assert_close(gradient, -advantages * math.exp(0.3))


def test_streams_that_would_broadcast_are_refused():
    with pytest.raises(DataError, match=r"icepop: streams differ in shape: .*'advantages': \[2, 1\]"):
        inspect.unwrap(icepop)(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 1))
