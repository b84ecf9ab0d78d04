"""Score centering: golden numbers, the full-vocabulary definition by autograd, exact expectations."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.errors import DataError
from prl.losses import icepop, icepop_centered
from tests.unhooked import bare

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "score_centering.json").read_text())
LAW = settings(deadline=None, max_examples=40)
LOW, HIGH = 0.2, 5.0


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def gradient(logits, action, action_inference, advantage, ids, head_inference, **options):
    """(d loss / d logits, output) of one token whose trainer is softmax(logits)."""
    logits = logits.detach().clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    out = icepop_centered(
        logprobs[action], action_inference, advantage, logprobs[ids], head_inference, **options
    )  # fmt: skip
    return torch.autograd.grad(out.per_token, logits)[0], out


def accepted(ratio):
    return (ratio >= LOW) & (ratio <= HIGH)


def modelled_sampler(p, q, ids):
    """The sampler with the mass outside the head spread as the trainer's is."""
    tail = torch.ones_like(q, dtype=torch.bool).index_fill(0, ids, False)
    scale = (1 - q[ids].sum()).clamp(min=1e-6) / (1 - p[ids].sum()).clamp(min=1e-6)
    return torch.where(tail, scale * p, q)


def by_definition(logits, action, action_inference, advantage, q):
    """-A (sg(w_a) log p_a - sum_v sg(q_v w_v) log p_v) over the whole vocabulary, by autograd."""
    logits = logits.detach().clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    p = logprobs.detach().exp()
    w = torch.where(accepted(p / q), p / q, 0.0)
    own = p[action] / action_inference.exp()
    own = torch.where(accepted(own), own, 0.0)
    loss = -advantage * (own * logprobs[action] - (q * w * logprobs).sum())
    return torch.autograd.grad(loss, logits)[0]


def distributions(seed, vocab=12, spread=1.5):
    """(trainer logits, sampler log-probabilities) that differ a lot, in float64."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(vocab, generator=g, dtype=torch.float64)
    return logits, (logits + spread * torch.randn(vocab, generator=g, dtype=torch.float64)).log_softmax(-1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_golden(dtype, tolerance):
    for row in GOLDEN:
        got, out = gradient(
            tensor(row["logits"], dtype), row["action"], tensor(row["action_inference_logprob"], dtype),
            tensor(row["advantage"], dtype), torch.tensor(row["head_ids"]),
            tensor(row["head_inference_logprobs"], dtype),
        )  # fmt: skip
        assert got.tolist() == pytest.approx(row["grad_logits"], rel=tolerance, abs=tolerance)
        norm = out.metrics["score_centering/logit_correction_l1"].item()
        assert norm == pytest.approx(row["logit_correction_l1"], rel=tolerance, abs=tolerance)


def test_three_tokens_by_hand():
    # p = (.5, .3, .2), q = (.05, .75, .2): ratios 10 (rejected), 0.4, 1. The head is token 0 alone, so the tail has
    # p .5 and q .95, ratio .526: accepted. c_0 = .5 (0 - 1) = -.5, correction A c_0 log p_0, gradient A c_0 (e_0 - p)
    # = -(.25, -.15, -.1) A. The action, token 1, has w = .4: -A .4 (e_1 - p) = (.2, -.28, .08) A. A = 2.
    logits, q = tensor([0.5, 0.3, 0.2]).log(), tensor([0.05, 0.75, 0.2]).log()
    got, out = gradient(logits, 1, q[1], tensor(2.0), torch.tensor([0]), q[:1])
    assert got.tolist() == pytest.approx([2 * (0.2 - 0.25), 2 * (-0.28 + 0.15), 2 * (0.08 + 0.1)])
    metrics = {k.removeprefix("score_centering/"): v.item() for k, v in out.metrics.items()}
    # P = .3 + .2: L1 = 2 * .5 * .5; Q_head = .05; Q_tail / P_tail = .95 / .5.
    assert metrics == pytest.approx({"head_mass": 0.05, "tail_scale": 1.9, "logit_correction_l1": 0.5})


@LAW
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 11))
def test_equals_the_full_vocabulary_definition(seed, k, action):
    logits, q = distributions(seed)
    ids = q.topk(k).indices
    got, out = gradient(logits, action, q[action], tensor(1.7), ids, q[ids])
    p = logits.softmax(-1)
    want = by_definition(logits, action, q[action], 1.7, modelled_sampler(p, q.exp(), ids))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    uncentred = logits.clone().requires_grad_()
    loss = icepop(uncentred.log_softmax(-1)[action], q[action], tensor(1.7)).per_token
    correction = got - torch.autograd.grad(loss, uncentred)[0]
    norm = out.metrics["score_centering/logit_correction_l1"]
    torch.testing.assert_close(norm, correction.abs().sum() / 1.7, rtol=1e-10, atol=1e-10)


@LAW
@given(st.integers(0, 10**6))
def test_a_constant_advantage_moves_nothing_in_expectation_with_a_full_head(seed):
    logits, q = distributions(seed)
    ids = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    expected = sum(q[a].exp() * gradient(logits, a, q[a], tensor(1.0), ids, q[ids])[0] for a in range(12))
    assert expected.abs().max() < 1e-15
    plain = logits.clone().requires_grad_()
    loss = (q.exp() * icepop(plain.log_softmax(-1), q, torch.ones(12, dtype=torch.float64)).per_token).sum()
    drift = torch.autograd.grad(loss, plain)[0].abs().sum()
    share = torch.where(accepted((logits.log_softmax(-1) - q).exp()), logits.softmax(-1), 0.0).sum()
    assert drift.item() == pytest.approx(2 * share.item() * (1 - share.item()), abs=1e-12)


def test_where_nothing_is_rejected_it_is_icepop():
    logits, _ = distributions(1)
    q = (logits + 0.1 * torch.linspace(-1, 1, 12, dtype=torch.float64)).log_softmax(-1)
    lp, ids = logits.log_softmax(-1), q.topk(5).indices
    out = icepop_centered(lp[3], q[3], tensor(0.7), lp[ids], q[ids])
    assert torch.equal(out.per_token, icepop(lp[3], q[3], tensor(0.7)).per_token)
    assert out.metrics["score_centering/logit_correction_l1"] < 1e-15


def test_the_correction_also_acts_when_the_sampled_token_is_rejected():
    logits, q = distributions(3)
    ratios = (logits.log_softmax(-1) - q).exp()
    action = int((~accepted(ratios)).nonzero()[0])
    got, out = gradient(logits, action, q[action], tensor(1.0), torch.arange(12), q)
    assert not out.kept and got.abs().sum().item() == pytest.approx(
        out.metrics["score_centering/logit_correction_l1"].item()
    )


def test_missing_entries_belong_to_the_tail():
    logits, q = distributions(4)
    ids = q.topk(4).indices
    padded = torch.cat([q[ids], tensor([-math.inf, -math.inf])])
    for junk in ([0, 0], [7, 11]):
        wide = torch.cat([ids, torch.tensor(junk)])
        got, want = (
            gradient(logits, 2, q[2], tensor(1.0), wide, padded),
            gradient(logits, 2, q[2], tensor(1.0), ids, q[ids]),
        )
        torch.testing.assert_close(got[0], want[0])
        torch.testing.assert_close(got[1].metrics, want[1].metrics)


def test_a_candidate_that_the_trainer_gives_no_mass_is_rejected_and_pulls_nothing():
    logits, q = tensor([0.0, 1.0, -math.inf]), tensor([0.5, 0.3, 0.2]).log()
    head = logits.log_softmax(-1).requires_grad_()
    out = icepop_centered(head[0], q[0], tensor(1.0), head, q)
    (slope,) = torch.autograd.grad(out.per_token, head)
    assert slope.isfinite().all() and slope[2] == 0


@pytest.mark.parametrize("bad", [float("nan"), math.inf, -math.inf, 1e9])
def test_what_stands_outside_the_mask_cannot_leak(bad):
    g = torch.Generator().manual_seed(0)
    trainer, inference, advantages = (-torch.rand(6, generator=g, dtype=torch.float64) for _ in range(3))
    heads = [torch.randn(6, 3, generator=g, dtype=torch.float64).log_softmax(-1) - 0.5 for _ in range(2)]
    mask = tensor([1, 0, 1, 1, 0, 1], torch.bool)
    results = []
    for junk in (0.0, bad):
        streams = [torch.where(mask, s, junk).requires_grad_() for s in (trainer, inference, advantages)]
        tops = [torch.where(mask[:, None], h, junk).requires_grad_() for h in heads]
        out = icepop_centered(*streams, *tops, mask=mask)
        slopes = torch.autograd.grad(out.per_token.sum(), (streams[0], tops[0]))
        assert not out.per_token[~mask].any() and not out.kept[~mask].any()
        assert all(not m[~mask].any() for m in out.metrics.values()) and not any(s[~mask].any() for s in slopes)
        results.append([out.per_token, *slopes, *out.metrics.values()])
    torch.testing.assert_close(*results, rtol=0, atol=0)


def batch(*shape):
    g = torch.Generator().manual_seed(1)
    three = [-0.1 - torch.rand(shape, generator=g, dtype=torch.float64) for _ in range(3)]
    tops = [torch.randn(*shape, 4, generator=g, dtype=torch.float64).log_softmax(-1) - 0.3 for _ in range(2)]
    return *three, *tops


def test_vmap_rows_and_a_loop_agree():
    streams = batch(3, 5)
    mapped, whole = torch.func.vmap(icepop_centered)(*streams), icepop_centered(*streams)
    for i in range(3):
        torch.testing.assert_close(mapped.per_token[i], icepop_centered(*(s[i] for s in streams)).per_token)
    torch.testing.assert_close(mapped.per_token, whole.per_token)
    torch.testing.assert_close(mapped.metrics, whole.metrics)


COMPILED = """
import torch
from prl.losses.score_centering import icepop_centered
from tests.losses.test_score_centering import batch

compiled = torch.compile(icepop_centered, fullgraph=True, backend="aot_eager")
for mask in (None, torch.tensor([True, False, True, True, False, True])):
    streams = [s.requires_grad_() for s in batch(6)]
    got, want = compiled(*streams, mask=mask), icepop_centered(*streams, mask=mask)
    torch.testing.assert_close(got.per_token, want.per_token, rtol=1e-13, atol=0)
    pair = [torch.autograd.grad(out.per_token.sum(), (streams[0], streams[3])) for out in (got, want)]
    torch.testing.assert_close(*pair, rtol=1e-13, atol=1e-15)
"""


def test_compiles_without_a_graph_break():
    """In a process without the type hook, which torch.compile cannot trace through."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_only_the_trainers_streams_get_a_gradient():
    streams = [s.requires_grad_() for s in batch(6)]
    icepop_centered(*streams).per_token.sum().backward()
    assert streams[0].grad is not None and streams[3].grad is not None
    assert streams[1].grad is None and streams[4].grad is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({3: (4, 4)}, r"streams differ in shape: .*'topk_trainer_logprobs': \[4, 4\]"),
        ({3: (4, 4), 4: (4, 4)}, r"topk_trainer_logprobs has shape \[4, 4\], trainer_logprobs \[6\]; .*\[6, 'topk'\]"),
        ({2: (1,)}, r"streams differ in shape: .*'advantages': \[1\]"),
    ],
)
def test_streams_of_unequal_shape_raise_also_without_the_type_hook(change, text):
    streams = list(batch(6))
    for i, shape in change.items():
        streams[i] = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(DataError, match=text):
        bare(icepop_centered)(*streams)
