"""fused_loss trains the same objective as the plain formulas, for every loss and every chunk."""

import math
import subprocess
import sys

import pytest
import torch

from prl.losses import ce, combine, component_counts, icepop, icepop_centered, ipo, ref_kl
from prl.ops import fused_loss, linear_logprobs
from tests.ops.head_cases import TOKENS, VOCAB, case, close, eager, gradients

EVERY_CHUNK = pytest.mark.parametrize("chunk", [1, 2, 7, TOKENS, 100, None])


def summed(logprobs, streams):
    """A linear objective with aux of both kinds."""
    found = {"logprobs": logprobs, **{k: streams[k] for k in ("topk_trainer_logprobs", "entropy")}}
    loss = torch.stack([(streams[f"pull_{name}"] * x).sum() for name, x in found.items()]).sum()
    return loss, {"seen": (logprobs, found["topk_trainer_logprobs"]), "sum": logprobs.sum()}


@EVERY_CHUNK
def test_value_gradient_and_aux_equal_the_plain_formulas(chunk):
    c = case()
    streams = {f"pull_{name}": pull for name, pull in c.pulls.items()}
    hidden, weight = c.hidden.clone().requires_grad_(), c.weight.clone().requires_grad_()
    loss, aux = fused_loss(
        hidden, weight, c.targets, streams, summed,
        temperature=c.temperature, topk_ids=c.topk_ids, entropy=True, chunk_tokens=chunk,
    )  # fmt: skip
    (3 * loss).backward()
    want = gradients(lambda h, w: eager(c, h, w), c)
    close((loss.detach(), hidden.grad / 3, weight.grad / 3), want, 1e-12)
    torch.testing.assert_close(aux["seen"], tuple(eager(c)[k] for k in ("logprobs", "topk_trainer_logprobs")))
    torch.testing.assert_close(aux["sum"], eager(c)["logprobs"].sum())
    assert not any(x.requires_grad for x in (*aux["seen"], aux["sum"]))


def three_components(c):
    """(streams, objective): rl by IPO, ce and ref_kl on overlapping tokens, each over its own N."""
    g = torch.Generator().manual_seed(5)
    weights = {k: (torch.rand(TOKENS, generator=g) < 0.6).double() for k in ("rl", "ce", "ref_kl")}
    weights["ce"] = 0.1 * weights["ce"]
    counts = component_counts(weights)
    near = eager(c)["logprobs"] + 0.1 * torch.randn(TOKENS, generator=g, dtype=torch.float64)
    streams = {"inference": near, "ref": near - 0.3, "advantages": c.pulls["logprobs"], **weights}

    def objective(lp, s):
        losses = {
            "rl": ipo(lp, s["inference"], s["advantages"], eps=1e-3),
            "ce": ce(lp),
            "ref_kl": ref_kl(lp, s["inference"], s["ref"]),
        }
        total, terms = combine(losses, {k: s[k] for k in losses}, counts)
        return total, (losses["rl"].kept, terms)

    return streams, objective


@EVERY_CHUNK
def test_three_components_in_one_pass(chunk):
    c = case()
    streams, objective = three_components(c)
    results = []
    for fused in (False, True):
        hidden, weight = c.hidden.clone().requires_grad_(), c.weight.clone().requires_grad_()
        if fused:
            loss, (kept, terms) = fused_loss(
                hidden, weight, c.targets, streams, objective, temperature=c.temperature, chunk_tokens=chunk
            )
        else:
            loss, (kept, terms) = objective(eager(c, hidden, weight)["logprobs"], streams)
        results.append((loss.detach(), *torch.autograd.grad(loss, (hidden, weight)), *terms.values(), kept))
    close(results[1][:-1], results[0][:-1], 1e-12)
    assert torch.equal(results[0][-1], results[1][-1]) and 0 < results[0][-1].sum() < TOKENS


def centred(c):
    streams = {
        "inference": eager(c)["logprobs"].detach() + 0.2 * c.pulls["logprobs"],
        "advantages": c.pulls["entropy"],
        "topk_inference": (eager(c)["topk_trainer_logprobs"] + 0.3 * c.pulls["topk_trainer_logprobs"]).clamp(max=-2.0),
    }

    def objective(lp, s):
        out = icepop_centered(
            lp, s["inference"], s["advantages"], s["topk_trainer_logprobs"], s["topk_inference"], ratio_high=1.2
        )
        return out.per_token.sum() / TOKENS, out.metrics

    return streams, objective


def test_a_loss_over_the_head_of_the_distribution():
    c = case()
    streams, objective = centred(c)
    results = []
    for chunk in (None, 3):
        hidden, weight = c.hidden.clone().requires_grad_(), c.weight.clone().requires_grad_()
        given = dict(temperature=c.temperature, topk_ids=c.topk_ids, chunk_tokens=chunk)
        loss, aux = fused_loss(hidden, weight, c.targets, streams, objective, **given)
        results.append((loss.detach(), *torch.autograd.grad(loss, (hidden, weight)), *aux.values()))
    hidden, weight = c.hidden.clone().requires_grad_(), c.weight.clone().requires_grad_()
    found = eager(c, hidden, weight)
    loss, aux = objective(found.pop("logprobs"), {**streams, **found})
    want = (loss.detach(), *torch.autograd.grad(loss, (hidden, weight)), *aux.values())
    for got in results:
        close(got, want, 1e-12)


def test_agrees_with_linear_logprobs_in_float32():
    c = case(dtype=torch.float32)
    inference, advantages = eager(c)["logprobs"] - 0.1, c.pulls["logprobs"]

    def objective(lp, s):
        return icepop(lp, s["inference"], s["advantages"]).per_token.sum(), None

    streams = {"inference": inference, "advantages": advantages}
    results = []
    for fused in (False, True):
        hidden, weight = c.hidden.clone().requires_grad_(), c.weight.clone().requires_grad_()
        if fused:
            loss = fused_loss(hidden, weight, c.targets, streams, objective)[0]
        else:
            loss = objective(linear_logprobs(hidden, weight, c.targets)[0], streams)[0]
        results.append((loss.detach(), *torch.autograd.grad(loss, (hidden, weight))))
    close(results[1], results[0], 1e-6)


def test_grad_and_vmap():
    c = case()
    streams, objective = three_components(c)

    def loss(hidden, weight):
        return fused_loss(hidden, weight, c.targets, streams, objective, temperature=c.temperature, chunk_tokens=5)[0]

    def plain(hidden, weight):
        return objective(eager(c, hidden, weight)["logprobs"], streams)[0]

    many = torch.stack([c.hidden, c.hidden * 0.9])
    got, want = (torch.func.vmap(torch.func.grad(f), in_dims=(0, None))(many, c.weight) for f in (loss, plain))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_without_gradient_it_only_measures():
    c = case()
    streams, objective = three_components(c)
    with torch.no_grad():
        loss, _ = fused_loss(c.hidden.requires_grad_(), c.weight, c.targets, streams, objective)
    assert not loss.requires_grad
    assert math.isclose(loss.item(), fused_loss(c.hidden, c.weight, c.targets, streams, objective)[0].item())


def test_no_tokens_is_an_error():
    with pytest.raises(ValueError, match="no tokens; leave out a batch in which nothing trains"):
        fused_loss(torch.zeros(0, 2), torch.zeros(VOCAB, 2), torch.zeros(0, dtype=torch.long), {}, summed)


def test_inside_torch_compile_the_graph_breaks_and_the_loss_is_the_same():
    """In a process without the type hook."""
    script = """
import torch
from prl.ops import fused_loss
from tests.ops.head_cases import case

c = case()
loss = lambda h: 3 * fused_loss(2 * h, c.weight, c.targets, {}, lambda lp, s: (lp.sum(), None))[0]
assert torch.equal(torch.compile(loss, backend="aot_eager")(c.hidden), loss(c.hidden))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("pull", [1.0, -2.5])
def test_a_kept_graph_can_be_walked_again(pull):
    c = case()
    hidden, weight = c.hidden.clone().requires_grad_(), c.weight.clone().requires_grad_()
    loss = pull * fused_loss(hidden, weight, c.targets, {}, lambda lp, _: (lp.square().sum(), None))[0]
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    again = torch.autograd.grad(loss, weight, retain_graph=True)
    loss.backward()
    assert torch.equal(again[0], first[1]) and torch.equal(weight.grad, first[1]) and torch.equal(hidden.grad, first[0])


def test_jacrev():
    c = case()
    loss = lambda h: 3 * fused_loss(h, c.weight, c.targets, {}, lambda lp, _: (lp.sum(), None))[0]  # noqa: E731
    torch.testing.assert_close(torch.func.jacrev(loss)(c.hidden), torch.func.grad(loss)(c.hidden))


def test_backward_makes_no_second_weight_gradient():
    hidden, weight = torch.randn(3, 64), torch.randn(5000, 64, requires_grad=True)
    loss, _ = fused_loss(hidden, weight, torch.tensor([1, 2, 3]), {}, lambda lp, _: (lp.sum(), None))
    with torch.profiler.profile(profile_memory=True) as seen:
        (2 * loss).backward()
    taken = sum(max(event.cpu_memory_usage, 0) for event in seen.events())
    assert weight.grad is not None and taken < weight.nbytes / 2
