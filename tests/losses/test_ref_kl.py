"""Reverse KL to a reference: rows by hand, golden numbers, and what its mean estimates."""

import json
import math
from pathlib import Path

import pytest
import torch

from prl.losses import ref_kl

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())
LN2 = math.log(2)


def run(trainer, inference, ref, dtype=torch.float64, **options):
    """(per_token, d sum / d trainer, kept, metric) as lists."""
    trainer = torch.tensor(trainer, dtype=dtype, requires_grad=True)
    out = ref_kl(trainer, torch.tensor(inference, dtype=dtype), torch.tensor(ref, dtype=dtype), **options)
    out.per_token.sum().backward()
    return [t.tolist() for t in (out.per_token, trainer.grad, out.kept, out.metrics["ref_kl"])]


def test_the_signal_is_detached():
    # pi = mu = 1/2, ref = 1/4: loss and slope are both -(ln 1/4 - ln 1/2) = ln 2; undetached the slope would be 1.693.
    loss, gradient, kept, metric = run([-LN2], [-LN2], [-2 * LN2])
    assert loss == gradient == metric == pytest.approx([0.693147], abs=1e-6)
    assert kept == [True]


@pytest.mark.parametrize(
    ("mu", "pi", "kept"),
    [
        (0.5, 0.31, True),  # fell by 0.19
        (0.5, 0.29, False),  # fell by 0.21
        (0.1, 0.9, True),  # a rise is never dropped
        (0.5, 0.25, False),
    ],
)
def test_only_a_fall_is_dropped(mu, pi, kept):
    loss, gradient, got, metric = run([math.log(pi)], [math.log(mu)], [math.log(0.6)])
    expected = -math.log(0.6 / pi) * pi / mu if kept else 0.0
    assert (got, metric) == ([kept], pytest.approx([math.log(pi / 0.6)]))
    assert loss == pytest.approx([expected]) and gradient == pytest.approx([expected])


def test_the_edge_of_the_drop_is_inclusive():
    streams = [math.log(0.25)], [math.log(0.5)], [-1.0]
    assert run(*streams, max_drop=0.25 + 1e-12)[2] == [True]
    assert run(*streams, max_drop=0.25 - 1e-12)[2] == [False]


def test_the_drift_term_also_acts_on_dropped_tokens():
    # ln(0.25 / 0.5) = -ln 2 with tau 0.1: 0.1 ln^2 2, slope 0.2 * -ln 2.
    loss, gradient, kept, _ = run([math.log(0.25)], [math.log(0.5)], [-1.0], kl_tau=0.1)
    assert kept == [False]
    assert (loss, gradient) == (pytest.approx([0.1 * LN2**2]), pytest.approx([-0.2 * LN2]))


def test_a_kept_ratio_that_overflows_is_capped_and_counted():
    # The probability rose, so the token stays, by e^89; the signal is -1 + 2.
    streams = (torch.tensor([x]) for x in (-2.0, -91.0, -1.0))
    assert ref_kl(*streams).metrics["clamped"].tolist() == [1.0]
    loss, gradient, kept, _ = run([-2.0], [-91.0], [-1.0], torch.float32)
    assert kept == [True] and loss == gradient == pytest.approx([-1e4])
    assert run([-2.0], [-91.0], [-1.0], max_ratio=50.0)[0] == pytest.approx([-50.0])


@pytest.mark.parametrize("bad", [-math.inf, math.nan])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_log_probability_that_is_no_number_is_dropped(which, bad):
    streams = [[-1.0], [-1.0], [-2.0]]
    streams[which] = [bad]
    loss, gradient, kept, _ = run(*streams)
    assert (loss, gradient, kept) == ([0.0], [0.0], [False])


@pytest.mark.parametrize(("column", "kl_tau"), [("ref_kl", 0.0), ("ref_kl_tau_1e_3", 1e-3)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_golden(column, kl_tau, dtype, tolerance):
    names = ("trainer_logprob", "inference_logprob", "ref_logprob")
    loss, gradient, kept, _ = run(*([row[n] for row in GOLDEN] for n in names), dtype, kl_tau=kl_tau)
    value, slope, stays = zip(*(row[column] for row in GOLDEN), strict=True)
    assert loss == pytest.approx(value, rel=tolerance, abs=tolerance)
    assert gradient == pytest.approx(slope, rel=tolerance, abs=tolerance)
    assert kept == list(stays) and not all(kept)


def test_its_mean_gradient_is_that_of_the_kl():
    # With nothing dropped, E_mu[loss gradient] = grad KL(pi || ref), here over 3 tokens exactly.
    mu = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    logits = torch.tensor([0.4, 0.1, -0.3], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    logprobs = logits.log_softmax(-1)
    loss = (mu * ref_kl(logprobs, mu.log(), ref, max_drop=1.0).per_token).sum()
    kl = (logprobs.exp() * (logprobs - ref)).sum()
    wanted = torch.autograd.grad(kl, logits, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], wanted)
    torch.testing.assert_close(loss, kl)
