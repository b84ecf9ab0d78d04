"""What holds for every unreduced loss beyond the laws of `tests/conformance`; a new loss gets it by a row in LOSSES."""

import itertools

import pytest
import torch

from prl.errors import DataError
from prl.losses import ce, cispo, dppo, gspo, icepop, ipo, ppo_clip, ref_kl, tis
from prl.losses.ratios import in_band, mismatch_kl, probability_move
from tests.unhooked import bare

LOSSES = {  # name: (function, which of the four streams it takes, settings)
    "ipo": (ipo, (0, 1, 3), {}),
    "icepop": (icepop, (0, 1, 3), {}),
    "icepop, narrow": (icepop, (0, 1, 3), {"ratio_low": 0.8, "ratio_high": 1.25}),
    "ce": (ce, (0,), {}),
    "ref_kl": (ref_kl, (0, 1, 2), {}),
    "ref_kl with drift": (ref_kl, (0, 1, 2), {"kl_tau": 0.1}),
    "ppo_clip": (ppo_clip, (0, 1, 3), {}),
    "cispo": (cispo, (0, 1, 3), {}),
    "cispo, two-sided": (cispo, (0, 1, 3), {"eps_low": 0.2}),
    "tis": (tis, (0, 1, 3), {}),
    "dppo": (dppo, (0, 1, 3), {}),
    "gspo": (gspo, (0, 1, 3), {}),
}
WHOLE_SEQUENCE = {"gspo"}  # the last axis is one sequence, whose tokens see each other
TAKES_ANY_LOGPROB = {"ce"}  # has no ratio, and nothing that drops
every_loss = pytest.mark.parametrize("name", LOSSES)


def streams(seed, *shape):
    """trainer, inference, ref log-probabilities and advantages, all float64."""
    generator = torch.Generator().manual_seed(seed)
    inference = -3 * torch.rand(shape, generator=generator, dtype=torch.float64) - 0.05
    trainer = (inference + torch.randn(shape, generator=generator, dtype=torch.float64) / 2).clamp(max=-1e-3)
    ref = -3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    return [trainer, inference, ref, torch.randn(shape, generator=generator, dtype=torch.float64)]


def call(name, values, mask=None):
    fn, used, options = LOSSES[name]
    return fn(*(values[i] for i in used), mask=mask, **options)


def flat(out):
    return [out.per_token, out.kept, *out.metrics.values()]


def slope(name, values, mask=None):
    """(output, d sum / d trainer)."""
    trainer = values[0].detach().clone().requires_grad_()
    out = call(name, [trainer, *values[1:]], mask)
    return out, torch.autograd.grad(out.per_token.sum(), trainer)[0]


@every_loss
def test_whatever_the_log_probabilities_float32_stays_finite(name):
    # A rare token's ratio is e^89 and more, above the float32 maximum; each token is a sequence of its own.
    grid = list(itertools.product([-1e-4, -2.0, -30.0, -300.0, -1e4], repeat=3))
    trainer, inference, ref = torch.tensor([row for row in grid for _ in range(2)]).T[..., None]
    advantages = torch.tensor([1.0, -1.0]).repeat(len(grid))[:, None]
    out, gradient = slope(name, [trainer, inference, ref, advantages])
    assert all(stream.isfinite().all() for stream in (*flat(out), gradient, out.per_token.sum()))
    assert out.kept.any()
    assert mismatch_kl(trainer, inference).sum().isfinite()


@every_loss
@pytest.mark.parametrize("bad", [float("nan"), -float("inf"), float("inf")])
@pytest.mark.parametrize("which", [0, 1])
def test_a_log_probability_that_is_no_number_is_never_kept(name, bad, which):
    if name in TAKES_ANY_LOGPROB:
        return
    values, mask = streams(4, 3, 5), torch.ones(3, 5, dtype=torch.bool)
    values[which][1, 2] = bad
    out, gradient = slope(name, values, mask)
    gone = [1] if name in WHOLE_SEQUENCE else [1, 2]
    for stream in (out.per_token, gradient, out.kept):
        assert (stream[tuple(gone)] == 0).all() and stream.isfinite().all()
    mask[tuple(gone)] = False
    want, wanted = slope(name, values, mask)
    assert torch.equal(out.per_token, want.per_token) and torch.equal(gradient, wanted)


def test_small_probability_moves_do_not_cancel_in_float32():
    trainer, inference = torch.tensor([-1.0, -20.0]), torch.tensor([-1.0 - 2**-20, -20.0 - 2**-10])
    want = trainer.double().exp() - inference.double().exp()
    torch.testing.assert_close(probability_move(trainer, inference).double(), want, rtol=1e-5, atol=0)
    torch.testing.assert_close(probability_move(inference, trainer).double(), -want, rtol=1e-5, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_ratio_that_is_no_number_is_outside_every_band(bad):
    streams = torch.tensor([bad, -1.0, bad, -1.0]), torch.tensor([-1.0, bad, bad, -1.0])
    assert in_band(*streams, 1e-30, 1e30).tolist() == [False, False, False, True]


def test_mismatch_kl_by_hand():
    # pi/mu = 2: 2 - 1 - ln 2 = 0.306853; equal log-probabilities: exactly 0.
    got = mismatch_kl(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0 - 0.6931472, -1.0]))
    assert got.tolist() == pytest.approx([0.306853, 0.0], abs=1e-6) and got[1] == 0.0


@every_loss
@pytest.mark.parametrize("which", [1, -1])
def test_streams_of_unequal_shape_raise_also_without_the_type_hook(name, which):
    fn, used, options = LOSSES[name]
    values = [streams(0, 4)[i] for i in used]
    mask = torch.ones(4, dtype=torch.bool)
    if which < len(values) and len(values) > 1:
        values[which] = values[which][:1]
    else:
        mask = mask[:1]
    with pytest.raises(DataError, match=r"streams differ in shape: .*\[1\].*one entry per token"):
        bare(fn)(*values, mask=mask, **options)
