"""Each law of advantages: a small wrong function breaks it, and no other, and is told how."""

import functools
from functools import partial

import pytest
import torch

from prl.advantages import group_norm
from prl.errors import ConfigError
from prl.testing import check_advantage
from prl.testing.advantage_laws import LAWS
from prl.testing.subject import unchecked


def centred(r):
    moved = r - r[..., :1]
    return moved - moved.mean(-1, keepdim=True)


def alone(r):
    return r if r.shape[-1] == 1 else centred(r)


def no_inner_where(r):
    std = centred(r).square().mean().sqrt()
    return torch.where(std > 0, centred(r) / std, 0.0)


def written(r):
    out = torch.zeros(len(r), dtype=r.dtype)
    out[:] = centred(r)
    return out


def one_baseline(r):
    moved = r - r.reshape(-1)[0]
    return moved - moved.mean()


def multiplied(r, valid=None):
    valid = torch.ones_like(r) if valid is None else valid
    moved = (r - r[..., :1]) * valid
    return (moved - moved.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)) * valid


def counted_as_zero(r, valid=None):
    valid = torch.ones_like(r, dtype=torch.bool) if valid is None else valid
    return torch.where(valid, centred(torch.where(valid, r, 0.0)), 0.0)


def in_place(r):
    r.sub_(r[:1].clone())
    return centred(r)


def draws(r):
    torch.rand(1)
    return centred(r)


def remembers(r, calls=[]):  # noqa: B006
    calls.append(1)
    return centred(r) * (1 + 1e-12 * len(calls))


def broken_graph(r):
    torch._dynamo.graph_break()
    return centred(r)


def looks(r):
    return centred(r) if r.max().item() > 0 else centred(r)


WRONG = {  # what it does: (function, settings, laws it breaks, part of the sentence)
    "a number for the group": (
        lambda r: r.mean(), {}, {"returns"},
        "rewards=[1] of float64 gave shape [] of torch.float64. It must give a tensor with one number per rollout",
    ),
    "a list": (lambda r: r.tolist(), {}, {"returns"}, "rewards=[1] gave a list. It must"),
    "another dtype": (lambda r: centred(r).float(), {}, {"returns"}, "of float64 gave shape [1] of torch.float32"),
    "the first is the baseline": (
        lambda r: r - r[:1], {}, {"permutation"},
        "rewards=[0.25, 2] taken in the order [1, 0]: advantages[0] is 0, not 1.75.",
    ),
    "rounding residue": (
        lambda r: r - r.mean(), {}, {"constant group"}, "rewards=[0.3, 0.3, 0.3, 0.3, 0.3, 0.3] of float32 gave [2.98",
    ),
    "no baseline for one": (alone, {}, {"single rollout"}, "rewards=[1] gave [1]; need exactly 0."),
    "an exp that overflows": (lambda r: centred(r) * centred(r).exp(), {}, {"finite"}, " of float64 gave [inf"),
    "a where around a division only": (no_inner_where, {}, {"gradient"}, "rewards=[1]: the gradient is [nan]."),
    "writes into a new tensor": (written, {}, {"vmap"}, "1 rollout: it raised RuntimeError: vmap: inplace arithmetic"),
    "one baseline for all groups": (one_baseline, {"batch": True}, {"batch axis"}, "Three rows at once, rewards=[["),
    "a difference of large numbers": (
        lambda r: (centred(r) + 1e4) - 1e4, {}, {"float32"}, "in float32: advantages[0] is",
    ),
    "multiplies by valid": (
        multiplied, {}, {"valid leak"}, "valid=[False]: advantages[0] is nan, not 0 as with harmless numbers there.",
    ),
    "an invalid rollout is a zero": (counted_as_zero, {}, {"left out"}, "among those left, advantages[0] is"),
    "writes into its input": (in_place, {}, {"purity", "compile"}, "it wrote into rewards, which now is [0]."),
    "draws": (draws, {}, {"purity"}, "rewards=[1]: it drew from torch's global generator."),
    "remembers": (remembers, {}, {"purity"}, "a second call gave another result, advantages[0] is -0.5, not -0.5 (off"),
    "breaks the graph": (broken_graph, {}, {"compile"}, "4 rollouts: it raised Unsupported: Call to `torch._dynamo."),
    "looks at values": (looks, {}, {"vmap", "compile"}, "it raised RuntimeError: vmap: It looks like you're calling"),
}  # fmt: skip


@functools.cache
def report_of(name):
    fn, settings, _, _ = WRONG[name]
    with unchecked():
        return check_advantage(fn, **settings)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_breaks_its_law(name):
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


def test_a_right_function_breaks_none():
    report = check_advantage(centred, batch=True)
    assert report.ok
    results = {finding.law: finding.result for finding in report.findings}
    assert results.pop("valid leak") == results.pop("left out") == "not applicable"
    assert set(results.values()) == {"passed"}


def test_what_does_not_apply_says_why():
    findings = {finding.law: finding for finding in check_advantage(lambda r: centred(r.detach())).findings}
    assert findings["batch axis"].why == "pass batch=True if it takes [*batch, group]"
    assert findings["left out"].why == "<lambda> takes no `valid`"
    assert findings["gradient"].why == "the result does not depend on the rewards by a gradient"


def test_after_a_wrong_result_nothing_else_is_run():
    first, *rest = check_advantage(lambda r: None).findings
    assert first.result == "FAILED"
    assert {(finding.result, finding.why) for finding in rest} == {("not run", "needs `returns`")}


def test_a_waived_law_is_shown_and_not_run():
    report = check_advantage(lambda r: r - r[:1], without={"permutation": "the first rollout is the greedy one"})
    assert report.ok
    assert ("permutation", "waived", "the first rollout is the greedy one") in report.findings


def test_streams_come_from_the_signature_or_by_name():
    def keyword(r, *, turns):
        return centred(r / turns)

    unfair = {"constant group": "long rollouts earn less"}
    with unchecked():
        assert check_advantage(keyword, without=unfair).subject == "keyword(rewards, turns)"
        weighted = check_advantage(partial(group_norm, std=False), streams=["rewards", "lengths"])
    assert weighted.ok and weighted.subject == "group_norm(rewards, lengths, valid=, std=False)"
    assert check_advantage(group_norm).subject == "group_norm(rewards, valid=)"  # with the type hook on


def test_a_parameter_that_is_no_stream_names_those_that_are():
    need = r"check_advantage: <lambda> takes agents\. Name what it takes, in order: streams=\(\.\.\.\), of rewards,"
    with pytest.raises(ConfigError, match=need):
        check_advantage(lambda r, agents: r)
    with pytest.raises(ConfigError, match=r"<lambda>\(rewards, turns\) is no possible call: too many positional"):
        check_advantage(lambda r: r, streams=("rewards", "turns"))


def test_waivers_name_laws_and_reasons():
    with pytest.raises(ConfigError, match="without names no law 'permutations'; did you mean 'permutation'?"):
        check_advantage(centred, without={"permutations": "no order"})
    with pytest.raises(ConfigError, match=r"without\['vmap'\] needs a reason"):
        check_advantage(centred, without={"vmap": " "})
    with pytest.raises(ConfigError, match="'returns' cannot be waived"):
        check_advantage(centred, without={"returns": "it is a list"})


def test_the_report_is_always_the_same_and_the_caller_keeps_its_randomness():
    def noisy(r):
        return centred(r) + torch.rand(len(r), dtype=r.dtype)

    state = torch.random.get_rng_state()
    first = check_advantage(noisy)
    assert len(first.failed) > 3 and torch.equal(torch.random.get_rng_state(), state)
    torch.rand(1)
    assert check_advantage(noisy) == first


def test_it_works_inside_no_grad():
    with torch.no_grad():
        assert check_advantage(centred).ok
