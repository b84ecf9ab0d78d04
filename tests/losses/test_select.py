"""From a setting or a function to three components: dispatch, membership, the page-style loss."""

import dataclasses
import inspect
import math
from functools import partial

import pytest
import torch

from prl.config import IPO, IcePop
from prl.errors import ConfigError, DataError
from prl.losses import (
    LossInputs,
    LossOutputs,
    TokenLoss,
    combine,
    component_counts,
    gspo,
    icepop,
    ipo,
    ppo_clip,
    token_means,
)
from prl.losses.select import component_losses, rl_loss, sequence_means

NAN = float("nan")


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def streams(**changes):
    """Six trained tokens: sample 0 has tokens 2, 3, 5 (rl) and 6 (ce); sample 4 has 1 (rl) and 2 (ref_kl)."""
    out = {
        "sample": torch.tensor([0, 0, 0, 0, 4, 4]),
        "token": torch.tensor([2, 3, 5, 6, 1, 2]),
        "inference_logprobs": tensor(-1, -1.5, -2, 0, -0.5, -1),
        "advantages": tensor(2, 2, 2, 0, -1, 0),
        "ref_logprobs": tensor(0, 0, 0, 0, 0, -0.75),
        "rl_weights": tensor(1, 1, 1, 0, 1, 0),
        "ce_weights": tensor(0, 0, 0, 0.5, 0, 0),
        "ref_kl_weights": tensor(0, 0, 0, 0, 0, 1),
    }
    return {**out, **changes}


LOGPROBS = tensor(-1.1, -1.4, -1.5, -3, -0.9, -1.25)


def clipped(inputs: LossInputs, width: float = 0.2) -> LossOutputs:
    """The pessimistic PPO surrogate, summed over the sequence's own tokens."""
    ratio = (inputs.trainer_logprobs - inputs.inference_logprobs).exp()
    inside = ratio.clamp(1 - width, 1 + width)
    gain = torch.minimum(ratio * inputs.advantages, inside * inputs.advantages)
    outside = (ratio != inside)[inputs.loss_mask]
    return LossOutputs(-gain[inputs.loss_mask].sum(), {"outside": outside.double().mean()})


def ppo_clip_loss(inputs: LossInputs, clip_eps: float = 0.2) -> LossOutputs:
    """A user's function as the algorithms page writes one."""
    ratio = torch.exp(inputs.trainer_logprobs - inputs.inference_logprobs)
    clipped = torch.clamp(ratio, 1 - clip_eps, 1 + clip_eps)
    surrogates = ratio * inputs.advantages, clipped * inputs.advantages
    loss = -torch.min(*surrogates)[inputs.loss_mask].sum()
    return LossOutputs(
        loss=loss,
        metrics={
            "clip_frac": (ratio != clipped)[inputs.loss_mask].float().mean(),
        },
    )


def clipped_tokens(trainer, inference, advantages, width=0.2):
    ratio = (trainer - inference).exp()
    inside = ratio.clamp(1 - width, 1 + width)
    per_token = -torch.minimum(ratio * advantages, inside * advantages)
    return TokenLoss(per_token, ratio == inside, {"outside": (ratio != inside).double()})


def total(loss, given):
    logprobs = LOGPROBS.clone().requires_grad_()
    weights = {name: given[f"{name}_weights"] for name in ("rl", "ce", "ref_kl")}
    out = component_losses(loss, logprobs, given)
    value, _ = combine(out, weights, component_counts(weights))
    return value, torch.autograd.grad(value, logprobs)[0], out, weights


def test_each_component_acts_on_its_own_members():
    out = component_losses(IPO(), LOGPROBS, streams())
    rl = ipo(LOGPROBS, streams()["inference_logprobs"], streams()["advantages"]).per_token
    torch.testing.assert_close(out["rl"].per_token, torch.where(streams()["rl_weights"] != 0, rl, 0.0))
    assert out["ce"].per_token.tolist() == [0, 0, 0, 3, 0, 0]
    # -(-0.75 + 1.25) e^(-1.25 + 1), moved by e^-1.25 - e^-1 = -0.08
    assert out["ref_kl"].per_token.tolist() == pytest.approx([0, 0, 0, 0, 0, -0.5 * 0.778801], abs=1e-6)
    assert [out[c].kept.sum().item() for c in out] == [4, 1, 1]  # the largest rl move is e^-0.5 - e^-0.9 = 0.2


def test_mismatch_kl_covers_dropped_tokens_too():
    out = component_losses(IPO(eps=1e-9), LOGPROBS, streams())["rl"]
    gaps = LOGPROBS - streams()["inference_logprobs"]
    assert not out.kept.any()
    want = torch.where(streams()["rl_weights"] != 0, gaps.exp() - 1 - gaps, 0.0)
    torch.testing.assert_close(out.metrics["mismatch_kl"], want)


@pytest.mark.parametrize("bad", [NAN, float("inf"), 1e9])
@pytest.mark.parametrize(
    "loss", [IPO(), IcePop(), clipped, clipped_tokens, gspo], ids=["ipo", "icepop", "sequence", "tokens", "gspo"]
)
def test_what_a_component_does_not_train_cannot_reach_it(loss, bad):
    clean = streams()
    rl, ref = clean["rl_weights"] != 0, clean["ref_kl_weights"] != 0
    dirty = streams(
        inference_logprobs=torch.where(rl | ref, clean["inference_logprobs"], bad),
        advantages=torch.where(rl, clean["advantages"], bad),
        ref_logprobs=torch.where(ref, clean["ref_logprobs"], bad),
    )
    (value, gradient, out, _), (want, wanted, expected, _) = total(loss, dirty), total(loss, clean)
    assert torch.equal(value, want) and torch.equal(gradient, wanted)
    for name in out:
        for key, stream in out[name].metrics.items():
            assert torch.equal(stream, expected[name].metrics[key])


def test_mismatch_kl_of_a_rare_token_is_finite_in_float32():
    # e^89 is above the float32 maximum; the mean over 4 tokens is e^89 / 4.
    given = {name: s.float() if s.is_floating_point() else s for name, s in streams().items()}
    given["inference_logprobs"][2] = -90.5
    logprobs = LOGPROBS.float()
    out = component_losses(IPO(), logprobs, given)
    means = token_means(out, {"rl": given["rl_weights"], "ce": given["ce_weights"], "ref_kl": given["ref_kl_weights"]})
    assert means["rl/mismatch_kl"].item() == pytest.approx(math.exp(89) / 4, rel=1e-6)
    given["rl_weights"][2] = 0.0  # a filtered token leaves the mean too
    out = component_losses(IPO(), logprobs, given)
    gaps = [-0.1, 0.1, -0.4]
    want = sum(math.exp(g) - 1 - g for g in gaps) / 3
    assert token_means({"rl": out["rl"]}, {"rl": given["rl_weights"]})["rl/mismatch_kl"].item() == pytest.approx(want)


def test_an_equal_reward_group_leaves_rl_and_ce_stays():
    given = streams(rl_weights=torch.zeros(6, dtype=torch.float64))
    value, gradient, out, _ = total(IPO(), given)
    assert not out["rl"].per_token.any() and out["rl"].metrics == {}
    # 0.5 * 3 / 1 for the ce token and -0.389400 for the ref_kl token
    assert value.item() == pytest.approx(1.5 - 0.3894004)
    assert gradient[:3].tolist() == [0, 0, 0] and gradient[3] == -0.5


@pytest.mark.parametrize("weights", [[1, 1, 1, 0, 1, 0], [0, 1, 1, 0, 1, 0]])
def test_the_page_style_loss_equals_its_token_wise_form(weights):
    given = streams(rl_weights=tensor(*weights))
    (a, gradient, _, _), (b, wanted, _, _) = total(clipped, given), total(clipped_tokens, given)
    torch.testing.assert_close(a, b, rtol=1e-14, atol=0)
    torch.testing.assert_close(gradient, wanted, rtol=1e-14, atol=0)


def test_the_pages_own_loss_equals_ppo_clip():
    # Sample 0 clips 1 of 3 tokens, sample 4 its only one.
    (a, gradient, out, weights), (b, wanted, _, _) = total(ppo_clip_loss, streams()), total(ppo_clip, streams())
    torch.testing.assert_close(a, b, rtol=1e-14, atol=0)
    torch.testing.assert_close(gradient, wanted, rtol=1e-14, atol=0)
    means = sequence_means(ppo_clip_loss, out["rl"], weights["rl"], streams()["sample"])
    assert {name: value.item() for name, value in means.items()} == pytest.approx({"rl/clip_frac": 2 / 3})
    wide, _, _, _ = total(partial(ppo_clip_loss, clip_eps=0.9), streams())
    torch.testing.assert_close(wide, total(partial(ppo_clip, eps_low=0.9, eps_high=0.9), streams())[0])


def test_gspo_sees_each_sample_as_one_sequence():
    # Two sequences whose tokens come mixed, one with a token of another component in it.
    given = {name: stream[[4, 0, 3, 1, 5, 2]] for name, stream in streams().items()}
    logprobs = LOGPROBS[[4, 0, 3, 1, 5, 2]].requires_grad_()
    wide = partial(gspo, eps_low=0.5, eps_high=0.5)
    out = component_losses(wide, logprobs, given)["rl"]
    # s of sample 0: mean log ratio (-.1 + .1 + .5) / 3, A = 2; of sample 4: -.4, A = -1.
    first, second = -2 * math.exp(0.5 / 3), math.exp(-0.4)
    assert out.per_token.tolist() == pytest.approx([second, first, 0, first, 0, first])
    assert out.kept.tolist() == [True, True, False, True, False, True]
    assert torch.autograd.grad(out.per_token.sum(), logprobs)[0].tolist() == pytest.approx(out.per_token.tolist())
    assert out.metrics["clamped"].shape == (6,)
    assert component_losses(gspo, logprobs, given)["rl"].kept.sum() == 0


def test_a_page_style_loss_is_divided_by_the_component_count_only():
    # The function ignores the weights 0.5 and 0.25: its own sums over the samples, over N = 0.5 * 3 + 0.25.
    given = streams(rl_weights=tensor(0.5, 0.5, 0.5, 0, 0.25, 0))
    out = component_losses(clipped, LOGPROBS, given)["rl"]
    tokens = clipped_tokens(LOGPROBS, given["inference_logprobs"], given["advantages"]).per_token
    whole = tokens[:3].sum() + tokens[4]
    term = combine({"rl": out}, {"rl": given["rl_weights"]}, component_counts({"rl": given["rl_weights"]}))[0]
    torch.testing.assert_close(term, whole / 1.75)


def test_page_style_metrics_are_averaged_over_sequences():
    # Sample 0: ratios e^-.1, e^.1, e^.5, one of three outside; sample 4: e^-.4 is outside. (1/3 + 1) / 2, not 2/4.
    _, _, out, weights = total(clipped, streams())
    means = sequence_means(clipped, out["rl"], weights["rl"], streams()["sample"])
    assert {name: value.item() for name, value in means.items()} == pytest.approx({"rl/outside": 2 / 3})
    for other in (IPO(), clipped_tokens):
        assert sequence_means(other, out["rl"], weights["rl"], streams()["sample"]) == {}


def test_loss_inputs_are_one_sequence():
    seen = []

    def look(inputs: LossInputs) -> LossOutputs:
        seen.append(inputs)
        return LossOutputs(inputs.trainer_logprobs.sum(), {})

    component_losses(look, LOGPROBS, streams())
    first, second = seen
    assert first.loss_mask.tolist() == [False, False, True, True, False, True]
    assert first.trainer_logprobs.tolist() == [0, 0, -1.1, -1.4, 0, -1.5]
    assert first.advantages.tolist() == [0, 0, 2, 2, 0, 2]
    assert first.loss_weights.tolist() == [0, 0, 1, 1, 0, 1]
    assert second.inference_logprobs.tolist() == [0, -0.5]
    assert first.ref_logprobs is None and second.ref_logprobs is None  # nothing scored the rl tokens
    component_losses(look, LOGPROBS, streams(ref_logprobs=tensor(-1, -2, -3, 0, -4, -5)))
    assert seen[2].ref_logprobs.tolist() == [0, 0, -1, -2, 0, -3]


def test_settings_and_keyword_defaults_are_used():
    given, narrow = streams(), {"ratio_low": 0.95, "ratio_high": 1.2, "adv_tau": 3.0}
    for loss, fn in [
        (IPO(eps=0.05, adv_tau=3.0), partial(ipo, eps=0.05, adv_tau=3.0)),
        (IcePop(**narrow), partial(icepop, **narrow)),
        (ipo, ipo),
        (partial(ipo, eps=0.05), partial(ipo, eps=0.05)),
    ]:
        got = rl_loss(loss)(LOGPROBS, given)
        want = fn(LOGPROBS, given["inference_logprobs"], given["advantages"])
        assert torch.equal(got.per_token, want.per_token) and torch.equal(got.kept, want.kept)


@pytest.mark.parametrize(
    ("loss", "n"), [(lambda a, b: a, 2), (lambda a, b, c, d: a, 4), (lambda *, a=1: a, 0)], ids=["2", "4", "0"]
)
def test_other_numbers_of_arguments_are_refused(loss, n):
    with pytest.raises(ConfigError, match=rf"loss '<lambda>': has {n} required positional arguments; need 3 .* or 1 "):
        rl_loss(loss)


def test_no_function_at_all_is_refused():
    with pytest.raises(ConfigError, match=r"loss: got 'ipo'; need a loss config such as IPO\(\), or a function"):
        inspect.unwrap(rl_loss)("ipo")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda lp: TokenLoss(lp.mean(), torch.tensor(True), {}), r"returned per_token of shape \[\]"),
        (lambda lp: TokenLoss(lp, torch.tensor(True), {}), r"returned kept of shape \[\]"),
        (lambda lp: TokenLoss(lp, lp < 0, {"kl": lp.mean()}), r"returned kl of shape \[\]"),
        (lambda lp: lp.mean(), "returned Tensor"),
    ],
    ids=["scalar", "kept", "metric", "tensor"],
)
def test_a_reduced_loss_is_refused(result, text):
    def mean_loss(trainer, inference, advantages):
        return result(trainer)

    with pytest.raises(DataError, match=rf"loss 'mean_loss': {text}; need TokenLoss\(.*of shape \[4\], unreduced"):
        component_losses(mean_loss, LOGPROBS, streams())


def test_a_page_style_loss_returns_one_number_per_sequence():
    def vector(inputs: LossInputs) -> LossOutputs:
        out = clipped(inputs)
        out.loss = inputs.trainer_logprobs
        return out

    def listed(inputs: LossInputs) -> LossOutputs:
        return dataclasses.replace(clipped(inputs), metrics={"ratio": inputs.trainer_logprobs})

    for loss in (vector, listed, lambda inputs: inputs.trainer_logprobs.sum()):
        with pytest.raises(DataError, match="returns LossOutputs.*one number per sequence"):
            component_losses(loss, LOGPROBS, streams())
