"""Laws that hold for every unreduced loss; a new loss gets them by a row in LOSSES."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
ON_POLICY_SLOPE = {
    "ce": lambda s: -torch.ones_like(s[0]),
    "ref_kl": lambda s: s[0] - s[2],
    "ref_kl with drift": lambda s: s[0] - s[2],
}  # every other one: minus the advantage
ACTS_ON_DROPPED = {"ref_kl with drift"}
VALUE_OF_THE_BOUND = {"ppo_clip", "gspo"}  # dropped tokens have a constant loss
WHOLE_SEQUENCE = {"gspo"}  # the last axis is one sequence, whose tokens see each other
TAKES_ANY_LOGPROB = {"ce"}  # has no ratio, and nothing that drops
BAD = [float("nan"), float("inf"), -float("inf"), 1e9, -1e9]
LAW = settings(deadline=None, max_examples=30)
every_loss = pytest.mark.parametrize("name", LOSSES)


def streams(seed, *shape):
    """trainer, inference, ref log-probabilities and advantages, all float64."""
    generator = torch.Generator().manual_seed(seed)
    inference = -3 * torch.rand(shape, generator=generator, dtype=torch.float64) - 0.05
    trainer = (inference + torch.randn(shape, generator=generator, dtype=torch.float64) / 2).clamp(max=-1e-3)
    ref = -3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    return [trainer, inference, ref, torch.randn(shape, generator=generator, dtype=torch.float64)]


def masks(seed, *shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed + 1)) < 0.6


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


def same(a, b, tolerance=0.0):
    for x, y in zip(flat(a), flat(b), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


@every_loss
@LAW
@given(st.integers(0, 10**6), st.lists(st.sampled_from(BAD), min_size=4, max_size=4))
def test_what_stands_outside_the_mask_cannot_leak(name, seed, bad):
    values, mask = streams(seed, 9), masks(seed, 9)
    dirty = [torch.where(mask, stream, junk) for stream, junk in zip(values, bad, strict=True)]
    (want, wanted), (got, gradient) = slope(name, values, mask), slope(name, dirty, mask)
    same(got, want)
    assert torch.equal(gradient, wanted)
    assert all((stream[~mask] == 0).all() for stream in (*flat(got), gradient))


@every_loss
@LAW
@given(st.integers(0, 10**6))
def test_a_mask_equals_leaving_the_tokens_out(name, seed):
    values, mask = streams(seed, 9), masks(seed, 9)
    masked, short = call(name, values, mask), call(name, [stream[mask] for stream in values])
    for a, b in zip(flat(masked), flat(short), strict=True):
        torch.testing.assert_close(a[mask], b)


@every_loss
@LAW
@given(st.integers(0, 10**6))
def test_a_dropped_token_has_exactly_no_loss_and_no_slope(name, seed):
    out, gradient = slope(name, streams(seed, 40))
    if name not in ACTS_ON_DROPPED:
        assert (gradient[~out.kept] == 0).all()
        assert name in VALUE_OF_THE_BOUND or (out.per_token[~out.kept] == 0).all()


@every_loss
def test_on_policy_slope(name):
    values = streams(0, 12)
    values[1] = values[0].clone()
    out, gradient = slope(name, values)
    assert out.kept.all()
    torch.testing.assert_close(gradient, ON_POLICY_SLOPE.get(name, lambda s: -s[3])(values))


@every_loss
@LAW
@given(st.integers(0, 10**6))
def test_the_order_of_tokens_does_not_matter(name, seed):
    values, mask = streams(seed, 9), masks(seed, 9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    permuted = call(name, [stream[order] for stream in values], mask[order])
    for a, b in zip(flat(permuted), flat(call(name, values, mask)), strict=True):
        torch.testing.assert_close(a, b[order], rtol=1e-14 if name in WHOLE_SEQUENCE else 0, atol=0)


@every_loss
@LAW
@given(st.integers(0, 10**6), st.integers(1, 8))
def test_tokens_see_each_other_only_within_a_sequence(name, seed, cut):
    values, mask = streams(seed, 2, 9), masks(seed, 2, 9)
    whole = flat(call(name, values, mask))
    rows = [flat(call(name, [stream[i] for stream in values], mask[i])) for i in range(2)]
    for stream, parts in zip(whole, zip(*rows, strict=True), strict=True):
        torch.testing.assert_close(stream, torch.stack(parts), rtol=1e-14, atol=0)
    if name not in WHOLE_SEQUENCE:
        parts = [flat(call(name, [s[:, at] for s in values], mask[:, at])) for at in (slice(cut), slice(cut, None))]
        for stream, halves in zip(whole, zip(*parts, strict=True), strict=True):
            assert torch.equal(stream, torch.cat(halves, dim=1))


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


@every_loss
def test_vmap_rows_and_a_loop_agree(name):
    values, mask = streams(1, 3, 5), masks(1, 3, 5)
    whole = call(name, values, mask)
    mapped = torch.func.vmap(lambda *row: call(name, row[:4], row[4]))(*values, mask)
    for i in range(3):
        row = flat(call(name, [stream[i] for stream in values], mask[i]))
        for a, b, c in zip(row, flat(whole), flat(mapped), strict=True):
            torch.testing.assert_close(b[i], a, rtol=1e-14, atol=0)
            torch.testing.assert_close(c[i], a, rtol=1e-14, atol=0)


@every_loss
@LAW
@given(st.integers(0, 10**6))
def test_float32_is_close_to_float64(name, seed):
    values = streams(seed, 9)
    (want, wanted), (got, gradient) = slope(name, values), slope(name, [stream.float() for stream in values])
    torch.testing.assert_close(got.per_token.double(), want.per_token, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-5, atol=1e-5)


@every_loss
def test_inputs_stay_as_they_were_and_only_the_trainer_gets_a_gradient(name):
    values = [stream.requires_grad_() for stream in streams(2, 6)]
    before = [stream.detach().clone() for stream in values]
    out = call(name, values, masks(2, 6))
    out.per_token.sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(values, before, strict=True))
    assert values[0].grad is not None and values[1].grad is None and values[2].grad is None
    assert not any(stream.requires_grad for stream in out.metrics.values())


@every_loss
@pytest.mark.parametrize("masked", [False, True])
def test_compiles_without_a_graph_break(name, masked):
    fn, used, options = LOSSES[name]
    values, mask = streams(3, 6), masks(3, 6) if masked else None
    compiled = torch.compile(bare(fn), fullgraph=True, backend="aot_eager")
    trainer = values[0].clone().requires_grad_()
    got = compiled(*([trainer, *values[1:]][i] for i in used), mask=mask, **options)
    want, gradient = slope(name, values, mask)
    same(got, want, 1e-14)
    torch.testing.assert_close(torch.autograd.grad(got.per_token.sum(), trainer)[0], gradient)


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
