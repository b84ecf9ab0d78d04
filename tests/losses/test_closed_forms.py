"""Every rl loss over a whole vocabulary: its mean weight, the drift of a constant credit, and what bounds them."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.losses import cispo, dppo, gspo, icepop, ipo, ppo_clip, tis

SAMPLER = torch.tensor([0.6, 0.3, 0.08, 0.019, 0.001], dtype=torch.float64)
TRAINER = torch.tensor([0.35, 0.3, 0.1, 0.1, 0.15], dtype=torch.float64)
# Ratios .58333, 1, 1.25, 5.26316, 150; moves -.25, 0, .02, .081, .149.

DRIFTS = {  # name: (loss, credit, mean value at credit 1, L1 norm of the mean gradient in logits)
    # Without weights the mean gradient is q - p: .25 + 0 + .02 + .081 + .149.
    "no weight": (partial(cispo, eps_low=0.0, eps_high=0.0), 1.0, None, 0.5),
    "importance weight": (partial(tis, cap=math.inf), 1.0, None, 0.0),
    # Weighted masses .35, .3, .1, .038, .002 of sum .79; each minus .79 p.
    "tis": (tis, 1.0, None, 0.315),
    # .35, .3, .1, .02432, .00128 of sum .7756; each minus .7756 p: .07854 + .06732 + .02244, and as much below 0.
    "cispo": (cispo, 1.0, None, 0.3366),
    # Where tokens drop, the drift is that of their trainer mass P: 2 P (1 - P). Here P = .25 (ratios 5.26 and 150).
    "icepop": (icepop, 1.0, 0.75, 0.375),
    "icepop, low end .5": (partial(icepop, ratio_low=0.5), 1.0, 0.75, 0.375),
    "ipo": (ipo, 1.0, 1.0, 0.0),
    "ipo, .1": (partial(ipo, eps=0.1), 1.0, 0.5, 0.5),
    "ipo, 1: importance sampling": (partial(ipo, eps=1.0), 1.0, 1.0, 0.0),
    "dppo, up": (dppo, 1.0, 1.0, 0.0),  # the only move beyond .2 is a fall
    "dppo, down": (dppo, -1.0, 0.65, 0.455),  # and goes here, P = .35
    # Cut above 1.2, P = .35; the bound stands in with 1.2 * .1.
    "ppo_clip, up": (ppo_clip, 1.0, 0.77, 0.455),
    "ppo_clip, down": (ppo_clip, -1.0, 1.13, 0.455),  # .6 * .8 + .65
    "gspo of one token, up": (gspo, 1.0, 0.75004, 0.455),  # .65 + 1.0004 * .1
    "gspo of one token, down": (gspo, -1.0, 1.24982, 0.455),  # .6 * .9997 + .65
}


def expected(loss, sampler, logits, credit):
    """E_q[per_token] over the vocabulary, each token a sequence of one."""
    advantages = torch.full((len(sampler), 1), credit, dtype=torch.float64)
    out = loss(logits.log_softmax(-1)[:, None], sampler.log()[:, None], advantages)
    return (sampler * out.per_token[:, 0]).sum()


@pytest.mark.parametrize(("loss", "credit", "value", "drift"), DRIFTS.values(), ids=DRIFTS)
def test_mean_and_drift(loss, credit, value, drift):
    logits = TRAINER.log().requires_grad_()
    mean = expected(loss, SAMPLER, logits, credit)
    (gradient,) = torch.autograd.grad(mean, logits)
    assert gradient.abs().sum().item() == pytest.approx(drift, abs=1e-12)
    assert abs(gradient.sum().item()) < 1e-12
    if value is not None:
        assert -credit * mean.item() == pytest.approx(value, abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.sampled_from([1.0, -1.0]))
def test_the_mean_of_a_kept_ratio_is_at_most_one(seed, credit):
    generator = torch.Generator().manual_seed(seed)
    q, p = (3 * torch.randn(2, 6, generator=generator, dtype=torch.float64)).softmax(-1)
    for loss in (ipo, partial(ipo, eps=0.05), icepop, dppo):
        mean = -credit * expected(partial(loss, **_no_cap(loss)), q, p.log(), credit).item()
        assert -1e-12 <= mean <= 1 + 1e-12
    assert -expected(partial(ipo, eps=1.0, max_ratio=1e300), q, p.log(), 1.0).item() == pytest.approx(1.0)


def _no_cap(loss):
    return {} if loss is icepop else {"max_ratio": 1e300}


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([0.5, 2.0, 10.0]))
def test_truncation_is_off_by_the_mass_above_the_cap(seed, cap):
    generator = torch.Generator().manual_seed(seed)
    q, p = torch.randn(2, 6, generator=generator, dtype=torch.float64).softmax(-1)
    f = torch.randn(6, generator=generator, dtype=torch.float64)
    slope = torch.autograd.grad(tis(lp := p.log().requires_grad_(), q.log(), f, cap=cap).per_token.sum(), lp)[0]
    got = -(q * slope).sum() - (p * f).sum()  # E_q[weight f] - E_p[f]
    ratio = p / q
    torch.testing.assert_close(got, -(q * (ratio - cap) * f)[ratio > cap].sum(), rtol=1e-9, atol=1e-12)
