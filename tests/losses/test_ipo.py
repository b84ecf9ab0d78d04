"""IPO: rows by hand, bug reports, golden numbers, closed forms."""

import json
import math
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

from prl.losses import ipo

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def run(trainer, inference, advantages, dtype=torch.float64, **options):
    """(per_token, d sum / d trainer, kept, clamped) as lists."""
    trainer = tensor(trainer, dtype).requires_grad_()
    out = ipo(trainer, tensor(inference, dtype), tensor(advantages, dtype), **options)
    out.per_token.sum().backward()
    return [t.tolist() for t in (out.per_token, trainer.grad, out.kept, out.metrics["clamped"])]


def test_on_policy_the_loss_and_the_gradient_are_minus_the_advantage():
    loss, gradient, kept, clamped = run([-1.0, -3.0], [-1.0, -3.0], [2.0, -0.5])
    assert (loss, gradient, kept, clamped) == ([-2.0, 0.5], [-2.0, 0.5], [True, True], [0, 0])


def test_adv_tau_scales_the_credit():
    assert run([-1.0], [-1.0], [2.0], adv_tau=0.25)[:2] == [[-0.5], [-0.5]]


@pytest.mark.parametrize(
    ("mu", "pi", "eps", "kept"),
    [
        (1e-5, 1e-3, 0.3, True),  # ratio 100, move 0.00099: a rare token may rise
        (1e-5, 1e-3, 0.1, True),
        (0.99, 0.80, 0.3, True),  # move 0.19
        (0.99, 0.80, 0.1, False),
        (0.50, 0.85, 0.3, False),  # ratio only 1.7, move 0.35
        (0.85, 0.50, 0.3, False),  # the band is symmetric
        (0.50, 0.75, 0.25 + 1e-12, True),  # the edge
        (0.50, 0.75, 0.25 - 1e-12, False),
    ],
)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_the_band_is_on_the_probability_move_whatever_the_sign(mu, pi, eps, kept, advantage):
    loss, gradient, got, _ = run([math.log(pi)], [math.log(mu)], [advantage], eps=eps)
    expected = -advantage * pi / mu if kept else 0.0
    assert got == [kept]
    assert (loss, gradient) == (pytest.approx([expected]), pytest.approx([expected]))


def test_a_dropped_ratio_that_overflows_is_exactly_zero():
    # Token 1: |0.5 - 0.4| = 0.1 stays, ratio 1.25. Token 2: move 0.368, ratio e^99 overflows float32.
    loss, gradient, kept, _ = run([math.log(0.5), -1.0], [math.log(0.4), -100.0], [1.0, 1.0], torch.float32)
    assert kept == [True, False]
    assert loss == pytest.approx([-1.25, 0.0]) and gradient == pytest.approx([-1.25, 0.0])
    assert loss[1] == gradient[1] == 0.0


def test_a_kept_ratio_that_overflows_is_capped_and_counted():
    # |e^-2 - e^-91| = 0.135 is inside the band although pi/mu = e^89 is above the float32 maximum.
    loss, gradient, kept, clamped = run([-2.0], [-91.0], [1.0], torch.float32)
    assert (kept, clamped) == ([True], [1.0])
    assert loss == gradient == pytest.approx([-1e4])
    assert run([-2.0], [-91.0], [1.0], max_ratio=50.0)[0] == pytest.approx([-50.0])


@pytest.mark.parametrize("bad", [float("nan"), -float("inf")])
def test_a_log_probability_that_is_no_number_never_passes_the_band(bad):
    for streams in (([bad], [-1.0]), ([-1.0], [bad])):
        loss, gradient, kept, _ = run(*streams, [1.0])
        assert (loss, gradient, kept) == ([0.0], [0.0], [False])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_golden(dtype, tolerance):
    columns = zip(
        *[(r["trainer_logprob"], r["inference_logprob"], r["advantage"], r["ipo"]) for r in GOLDEN], strict=True
    )
    trainer, inference, advantages, expected = columns
    loss, gradient, kept, _ = run(trainer, inference, advantages, dtype)
    value, slope, stays = zip(*expected, strict=True)
    assert loss == pytest.approx(value, rel=tolerance, abs=tolerance)
    assert gradient == pytest.approx(slope, rel=tolerance, abs=tolerance)
    assert kept == list(stays) and not all(kept)


@pytest.mark.parametrize(("eps", "weight", "drift"), [(0.3, 1.0, 0.0), (0.1, 0.5, 0.5)])
def test_mean_ratio_and_drift_over_a_whole_vocabulary(eps, weight, drift):
    # Moves are .25, 0, .02, .081, .149. eps = .3 keeps all: E_q[pi/q] = 1, and a constant credit moves no logit.
    # eps = .1 drops the first and the last, of trainer mass P = .5: E_q = .5, drift of L1 norm 2 P (1 - P) = .5.
    q, p = tensor([0.6, 0.3, 0.08, 0.019, 0.001]), tensor([0.35, 0.3, 0.1, 0.1, 0.15])
    logits = p.log().requires_grad_()
    expected_loss = (
        q * ipo(logits.log_softmax(-1), q.log(), torch.ones(5, dtype=torch.float64), eps=eps).per_token
    ).sum()
    (gradient,) = torch.autograd.grad(expected_loss, logits)
    assert -expected_loss.item() == pytest.approx(weight)
    assert gradient.abs().sum().item() == pytest.approx(drift, abs=1e-12)


def test_the_gradient_is_that_of_the_formula():
    generator = torch.Generator().manual_seed(0)
    inference = -torch.rand(6, generator=generator, dtype=torch.float64) * 3 - 0.5
    trainer = (inference + 0.1).requires_grad_()
    advantages = torch.randn(6, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda lp: -advantages * (lp - inference).exp(), trainer)
    out = ipo(trainer, inference, advantages)
    torch.testing.assert_close(out.per_token, -advantages * (trainer - inference).exp())
    (gradient,) = torch.autograd.grad(out.per_token.sum(), trainer)
    torch.testing.assert_close(gradient, -advantages * (trainer - inference).exp())


def test_streams_of_unequal_shape_are_refused():
    with pytest.raises(TypeCheckError, match="advantages"):
        ipo(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 1))
