"""linear_logprobs equals log_softmax over the whole vocabulary, in value and gradient, however it is cut."""

import subprocess
import sys

import pytest
import torch

from prl.ops import linear_logprobs, next_token_logprobs
from prl.ops.head import CHUNK_NUMBERS, chunks
from tests.ops.head_cases import TOKENS, case, close, eager, gradients, pulled

EVERY_CHUNK = pytest.mark.parametrize("chunk", [1, 2, 7, TOKENS, 100, None])


def linear(c, chunk=None):
    def call(hidden, weight):
        target, topk, entropy = linear_logprobs(
            hidden, weight, c.targets, temperature=c.temperature, topk_ids=c.topk_ids, entropy=True, chunk_tokens=chunk
        )
        return {"logprobs": target, "topk_trainer_logprobs": topk, "entropy": entropy}

    return call


def test_two_tokens_by_hand():
    # Logits (ln 3, 0): p = (3/4, 1/4). At temperature 0.5 they are (2 ln 3, 0): p = (9/10, 1/10).
    hidden, weight = torch.tensor([[3.0], [3.0]]).log().double(), torch.tensor([[1.0], [0.0]]).double()
    given = dict(temperature=torch.tensor([1.0, 0.5]).double(), topk_ids=torch.tensor([[1], [1]]), entropy=True)
    target, topk, entropy = linear_logprobs(hidden, weight, torch.tensor([0, 0]), **given)
    assert target.exp().tolist() == pytest.approx([0.75, 0.9])
    assert topk.exp().flatten().tolist() == pytest.approx([0.25, 0.1])
    assert entropy.tolist() == pytest.approx([0.5623351, 0.3250830])  # -.75 ln .75 - .25 ln .25; -.9 ln .9 - .1 ln .1


@EVERY_CHUNK
def test_equals_the_whole_vocabulary(chunk):
    c = case()
    for got, want in zip(linear(c, chunk)(c.hidden, c.weight).values(), eager(c).values(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    close(gradients(linear(c, chunk), c), gradients(lambda h, w: eager(c, h, w), c), 1e-12)


def test_float32_and_bfloat16_are_measured_in_float32():
    exact = case()
    want = gradients(lambda h, w: eager(exact, h, w), exact)
    single = case(dtype=torch.float32)
    close(gradients(linear(single), single), want, 1e-5)
    half = exact._replace(hidden=exact.hidden.bfloat16(), weight=exact.weight.bfloat16())
    values = linear(half, 4)(half.hidden, half.weight)
    assert {x.dtype for x in values.values()} == {torch.float32}
    rounded = exact._replace(hidden=half.hidden.double(), weight=half.weight.double())
    close(values.values(), eager(rounded).values(), 1e-2)
    _, hidden, weight = gradients(linear(half, 4), half)
    assert (hidden.dtype, weight.dtype) == (torch.bfloat16, torch.bfloat16)
    close((hidden, weight), gradients(lambda h, w: eager(rounded, h, w), rounded)[1:], 3e-2)


def test_agrees_with_next_token_logprobs():
    c = case(tokens=5)
    logits = torch.nn.functional.pad((c.hidden @ c.weight.T)[None], (0, 0, 0, 1))
    ids = torch.cat([torch.zeros(1, dtype=torch.long), c.targets])[None]
    target, topk, entropy = linear_logprobs(c.hidden, c.weight, c.targets)
    torch.testing.assert_close(next_token_logprobs(logits, ids)[0, 1:], target)
    assert (topk, entropy) == (None, None)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_one_temperature_for_all(temperature):
    c = case()
    c = c._replace(temperature=torch.full_like(c.temperature, temperature))
    got = linear_logprobs(c.hidden, c.weight, c.targets, temperature=temperature)[0]
    torch.testing.assert_close(got, eager(c)["logprobs"], rtol=1e-12, atol=1e-12)


def test_token_axes_of_any_shape_and_none_at_all():
    c = case(tokens=12)
    shaped = c.targets.view(3, 4), c.topk_ids.view(3, 4, -1), c.temperature.view(3, 4)
    target, topk, entropy = linear_logprobs(
        c.hidden.view(3, 4, -1), c.weight, shaped[0], temperature=shaped[2], topk_ids=shaped[1], entropy=True
    )
    want = eager(c)
    torch.testing.assert_close(target.flatten(), want["logprobs"])
    torch.testing.assert_close(topk.flatten(0, 1), want["topk_trainer_logprobs"])
    torch.testing.assert_close(entropy.flatten(), want["entropy"])


def test_a_logit_that_is_minus_infinity_has_no_part():
    hidden, weight = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[0.0], [0.0], [-torch.inf]]).double()
    target, _, entropy = linear_logprobs(hidden, weight, torch.tensor([0]), entropy=True)
    assert target.exp().item() == pytest.approx(0.5) and entropy.item() == pytest.approx(0.6931472)


def test_vmap_and_grad_in_any_order():
    c = case()
    many = torch.stack([c.hidden, c.hidden * 0.5, -c.hidden])

    def loss(fn):
        return lambda hidden, weight: pulled(fn(hidden, weight), c.pulls)

    def plain(hidden, weight):
        return eager(c, hidden, weight)

    for which in (0, 1):
        got, want = (
            torch.func.vmap(torch.func.grad(loss(fn), argnums=which), in_dims=(0, None))(many, c.weight)
            for fn in (linear(c, 5), plain)
        )
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)
    mapped = torch.func.vmap(linear(c, 5), in_dims=(0, None))(many, c.weight)["logprobs"]
    torch.testing.assert_close(mapped[2], linear(c)(many[2], c.weight)["logprobs"])


COMPILED = """
import torch
from prl.ops import linear_logprobs
from tests.ops.head_cases import case, close, gradients
from tests.ops.test_linear import linear

c = case()
compiled = torch.compile(linear(c, 7), fullgraph=True, backend="aot_eager")
close(gradients(compiled, c), gradients(linear(c, 7), c), 1e-12)
"""


def test_compiles_without_a_graph_break():
    """In a process without the type hook, which torch.compile cannot trace through."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_frozen_head_and_frozen_hidden_states():
    c = case()
    want = gradients(linear(c), c)
    for i in (0, 1):
        inputs = [c.hidden.clone(), c.weight.clone()]
        inputs[i].requires_grad_()
        pulled(linear(c)(*inputs), c.pulls).backward()
        torch.testing.assert_close(inputs[i].grad, want[i + 1])
        assert inputs[1 - i].grad is None


def test_its_gradient_has_no_gradient_and_says_so():
    c = case()
    hidden = c.hidden.requires_grad_()
    (slope,) = torch.autograd.grad(linear(c)(hidden, c.weight)["logprobs"].sum(), hidden, create_graph=True)
    with pytest.raises(NotImplementedError, match="its gradient has no gradient; use next_token_logprobs"):
        slope.sum().backward()


def test_chunks_cover_every_token_once_and_bound_the_logits():
    assert [range(10)[s] for s in chunks(10, 5, 4)] == [range(0, 4), range(4, 8), range(8, 10)]
    assert [s.stop - s.start for s in chunks(1000, CHUNK_NUMBERS // 300, None)] == [300, 300, 300, 100]
    assert [s.stop - s.start for s in chunks(2, CHUNK_NUMBERS * 2, None)] == [1, 1]
