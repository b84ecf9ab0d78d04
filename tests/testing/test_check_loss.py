"""Each law of losses: a small wrong function breaks it, and no other, and is told how."""

import functools
import math
from functools import partial

import pytest
import torch

from prl.errors import ConfigError
from prl.losses import TokenLoss, ce, ipo, ref_kl
from prl.losses.ratios import probability_move, same_shape
from prl.testing import check_loss
from prl.testing.loss_laws import LAWS
from prl.testing.subject import unchecked

CAP = math.log(1e4)


def right(lp, mu, a):
    """A band on |pi - mu| without a mask, the base of the wrong ones below."""
    return ipo(lp, mu, a)


def metric(name, stream):
    """The right loss with a metric of its own."""

    def loss(lp, mu, a):
        return right(lp, mu, a)._replace(metrics={name: stream(lp)})

    return loss


def changed(change):
    """The right loss with another per_token."""

    def loss(lp, mu, a):
        out = right(lp, mu, a)
        return out._replace(per_token=change(out.per_token, lp, mu, out.kept))

    return loss


def batch_normalised(lp, mu, a):
    return right(lp, mu, a - a.mean(-1, keepdim=True))


def first_axis(lp, mu, a):
    return right(lp, mu, a)._replace(kept=torch.ones(len(lp), dtype=torch.bool))


def written(lp, mu, a):
    out, per_token = right(lp, mu, a), torch.zeros(lp.shape, dtype=lp.dtype)
    per_token[...] = out.per_token
    return out._replace(per_token=per_token)


def multiplied(lp, mu, a, mask=None):
    mask = torch.ones_like(lp, dtype=torch.bool) if mask is None else mask
    same_shape("multiplied", lp=lp, mask=mask)
    out = right(lp, mu, a)
    return TokenLoss(out.per_token * mask, out.kept & mask, {})


def masked_share(lp, mu, a, mask=None):
    on = torch.ones_like(lp) if mask is None else mask.to(lp.dtype)
    return ipo(lp, mu, a, mask=mask)._replace(metrics={"share": on.mean(-1, keepdim=True).expand(lp.shape)})


def only_moved(lp, mu, a):
    out = right(lp, mu, a)
    moved = lp != mu
    return out._replace(per_token=torch.where(moved, out.per_token, 0.0), kept=out.kept & moved)


def unbounded(lp, mu, a):
    same_shape("unbounded", lp=lp, mu=mu, a=a)
    return TokenLoss(-a * (lp - mu.detach()).exp(), torch.ones_like(lp, dtype=torch.bool), {})


def says_what_is_dropped(lp, mu, a):
    same_shape("says_what_is_dropped", lp=lp, mu=mu, a=a)
    kept = ~(probability_move(lp, mu).abs() > 0.3)
    ratio = torch.where(kept, lp - mu.detach(), 0.0).clamp(max=CAP).exp()
    return TokenLoss(-torch.where(kept, a, 0.0) * ratio, kept, {})


def selects_last(lp, mu, a):
    kept, log_ratio = right(lp, mu, a).kept, lp - mu.detach()
    return TokenLoss(torch.where(kept, -a * (log_ratio + log_ratio.square() / 2), 0.0), kept, {})


def attached(stream):
    """0 with the gradient of the stream."""
    stream = stream.nan_to_num()
    return stream - stream.detach()


def shifted(lp, mu, a):
    same_shape("shifted", lp=lp, mu=mu, a=a)
    ratio = ((lp + 1e4) - (mu.detach() + 1e4)).clamp(max=CAP).exp()
    return TokenLoss(-a * ratio, torch.ones_like(lp, dtype=torch.bool), {})


def broadcasts(lp, mu, a):
    ratio = (lp - mu.detach()).clamp(max=CAP).exp()
    return TokenLoss(-a * ratio, torch.ones_like(ratio, dtype=torch.bool), {})


def in_place(lp, mu, a):
    out = right(lp, mu, a.clone())
    a.zero_()
    return out


def broken_graph(lp, mu, a):
    torch._dynamo.graph_break()
    return right(lp, mu, a)


def looks(lp, mu, a):
    return right(lp, mu, a) if a.sum().item() > 0 else right(lp, mu, a)


def places(lp):
    return torch.arange(lp.shape[-1], dtype=lp.dtype).expand(lp.shape)


CENTRED = {"on_policy_slope": lambda s: s["advantages"].mean() - s["advantages"]}

WRONG = {  # what it does: (function, settings, laws it breaks, part of the sentence)
    "a bare tensor": (
        lambda lp, mu, a: right(lp, mu, a).per_token, {}, {"returns"},
        "advantages=[2] gave a Tensor. It must give TokenLoss(per_token, kept, metrics)",
    ),
    "reduced": (
        changed(lambda loss, lp, mu, kept: loss.sum()), {}, {"returns"},
        "per_token has shape [] of torch.float64; need [1] of torch.float64.",
    ),
    "kept is a number": (
        lambda lp, mu, a: right(lp, mu, a)._replace(kept=torch.ones_like(lp)), {}, {"returns"},
        "kept has shape [1] of torch.float64; need [1] of torch.bool.",
    ),
    "a metric for all": (metric("pi", lambda lp: lp.detach().mean()), {}, {"returns"}, "metrics['pi'] has shape []"),
    "a metric that is no tensor": (metric("n", len), {}, {"returns"}, "metrics['n'] is no tensor but a int."),
    "says where a token stands": (
        metric("place", places), {}, {"permutation", "split"},
        "taken in the order [1, 0]: metrics['place'][0] is 0, not 1.",
    ),
    "normalises over the batch": (batch_normalised, CENTRED, {"split"}, "cut before token 1: per_token["),
    "counts the first axis": (first_axis, {}, {"batch axis"}, "kept has shape [3], not [3, 1]."),
    "writes into a new tensor": (written, {}, {"vmap"}, "1 token: it raised RuntimeError: vmap: inplace arithmetic"),
    "multiplies by the mask": (multiplied, {}, {"mask leak"}, "is nan, not 0 as with harmless numbers there."),
    "counts masked tokens": (masked_share, {}, {"left out"}, "among those left, metrics['share'][0] is 0.5, not 1 as"),
    "a loss where nothing is kept": (
        changed(lambda loss, lp, mu, kept: torch.where(kept, loss, 1.0)), {}, {"dropped loss"},
        "kept is [True, False, False], and per_token is [",
    ),
    "a slope where nothing is kept": (
        changed(lambda loss, lp, mu, kept: torch.where(kept, loss, attached(lp))), {}, {"dropped gradient"},
        "kept is [True, False, False], and gradient is [",
    ),
    "twice the slope": (
        changed(lambda loss, lp, mu, kept: 2 * loss), {}, {"on-policy"}, "advantages=[2]: gradient[0] is -4, not -2.",
    ),
    "drops what did not move": (only_moved, {}, {"on-policy"}, "kept is [False]."),
    "trains the sampler": (
        changed(lambda loss, lp, mu, kept: loss * (1 + attached(mu))), {}, {"gradient"},
        "advantages=[2]: the gradient with respect to inference_logprobs is [-2.12367].",  # -2 e^0.06
    ),
    "trains nothing": (changed(lambda loss, lp, mu, kept: loss.detach()), {}, {"gradient", "on-policy"}, "not -2."),
    "a metric that trains": (metric("pi", lambda lp: lp * 1), {}, {"gradient"}, "a gradient hangs on metrics pi."),
    "an unbounded ratio": (
        unbounded, {}, {"finite"},
        "trainer_logprobs=[-2], inference_logprobs=[-91], advantages=[-1] of float32: per_token is [inf].",
    ),
    "a band that NaN passes": (says_what_is_dropped, {}, {"nan"}, "trainer_logprobs=[nan, -0.05, -5]"),
    "a slope of NaN": (selects_last, {}, {"nan"}, "gradient is [nan, "),
    "a difference of large numbers": (shifted, {}, {"float32"}, "in float32: per_token[0] is"),
    "broadcasts": (
        broadcasts, {}, {"shapes"},
        "2 tokens, and a single entry is taken of trainer_logprobs, inference_logprobs, advantages.",
    ),
    "writes into its input": (in_place, {}, {"purity"}, "it wrote into advantages, which now is [0]."),
    "breaks the graph": (broken_graph, {}, {"compile"}, "4 tokens: it raised Unsupported"),
    "looks at values": (looks, {}, {"vmap", "compile"}, "it raised RuntimeError: vmap: It looks like you're calling"),
}  # fmt: skip


@functools.cache
def report_of(name):
    fn, settings, _, _ = WRONG[name]
    with unchecked():
        return check_loss(fn, **settings)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loss_breaks_its_law(name):
    report, (_, _, laws, sentence) = report_of(name), WRONG[name]
    assert {finding.law for finding in report.failed} == laws, report
    assert sentence in report.failed[0].why
    assert not report.ok


def test_every_law_is_broken_by_one():
    assert {law.name for law in LAWS} == set().union(*(laws for _, _, laws, _ in WRONG.values()))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_sentence_ends_with_what_to_do(law):
    name = next(name for name, (_, _, laws, _) in WRONG.items() if law.name in laws)
    why = {finding.law: finding.why for finding in report_of(name).failed}[law.name]
    assert why.endswith(f" {law.advice}") and law.advice.endswith(".")


def test_a_right_loss_breaks_none():
    report = check_loss(right)  # with the type hook on
    assert report.ok and report.subject == "right(trainer_logprobs, inference_logprobs, advantages)"
    results = {finding.law: finding.result for finding in report.findings}
    assert results.pop("mask leak") == results.pop("left out") == "not applicable"
    assert set(results.values()) == {"passed"}


def test_what_does_not_apply_says_why():
    with unchecked():
        report = check_loss(lambda trainer_logprobs: ce(trainer_logprobs))
    findings = {finding.law: finding for finding in report.findings}
    assert findings["on-policy"].why == "pass on_policy_slope= to say what the gradient is at pi = mu"
    assert findings["mask leak"].why == "<lambda> takes no `mask`"
    assert findings["nan"].why == findings["dropped loss"].why == "it keeps every token"
    assert findings["shapes"].why == "only one stream"


def test_a_waived_law_is_shown_and_not_run():
    with unchecked():
        report = check_loss(broadcasts, without={"shapes": "the Runner passes equal ones"})
    assert report.ok and ("shapes", "waived", "the Runner passes equal ones") in report.findings


def test_streams_come_from_the_signature_or_by_name():
    slope = {"on_policy_slope": lambda s: s["trainer_logprobs"] - s["ref_logprobs"]}
    named = {"streams": ("trainer_logprobs", "inference_logprobs", "ref_logprobs"), **slope}
    with unchecked():
        report = check_loss(partial(ref_kl, max_drop=0.1), **slope)
        assert report.ok and check_loss(lambda lp, mu, ref: ref_kl(lp, mu, ref), **named).ok, report
    assert report.subject == "ref_kl(trainer_logprobs, inference_logprobs, ref_logprobs, mask=, max_drop=0.1)"


def test_a_parameter_that_is_no_stream_names_those_that_are():
    with pytest.raises(
        ConfigError, match=r"check_loss: <lambda> takes inputs\. Name what it takes, in order: streams="
    ) as e:
        check_loss(lambda inputs: inputs)  # a loss over LossInputs is summed, and has no loss per token
    assert "of trainer_logprobs, inference_logprobs, advantages, ref_logprobs, topk_trainer_logprobs" in str(e.value)
    with pytest.raises(ConfigError, match="did you mean 'split'"):
        check_loss(right, without={"splits": "one ratio per sequence"})
