"""Tensor helpers: numbers by hand, then agreement with the plain formulas."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.ops import component_counts, masked_mean, next_token_logprobs, target_logprobs
from tests.unhooked import bare

TEMPERATURES = st.sampled_from([0.5, 1.0, 2.0])


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("weights", "mean"),
    [
        ([1, 1, 0], 1.5),  # (1 + 2) / 2
        ([1, 3, 0], 1.75),  # (1 + 6) / 4
        ([0.25, 0.25, 0], 1.5),  # 0.75 / 0.5: weights that sum to less than 1 are not clamped
        ([0, 0, 0], 0.0),
    ],
)
def test_masked_mean(weights, mean):
    assert masked_mean(tensor(1, 2, 5), tensor(*weights)).tolist() == [mean]


def test_masked_mean_takes_booleans_and_batches():
    values, mask = tensor([1, 3], [5, 7]), torch.tensor([[True, True], [False, True]])
    assert masked_mean(values, mask).tolist() == [[2.0], [7.0]]


def test_the_logits_of_a_row_belong_to_the_next_token():
    # Row i predicts token i + 1. Ids 1..3 have logit 0 in a row of one 2 and two 0s: -ln(e^2 + 2) = -2.239545.
    # Without the shift they would be -0.239545, -0.239545, -1.098612.
    logits = tensor([2, 0, 0], [0, 2, 0], [0, 0, 2], [1, 1, 1])[None]
    got = next_token_logprobs(logits, torch.tensor([[0, 1, 2, 0]]))
    assert got[0, 0] == 0.0
    torch.testing.assert_close(got[0, 1:], torch.full((3,), -math.log(math.e**2 + 2), dtype=torch.float64))


def test_temperature_is_part_of_the_distribution():
    # logits [2, 0] at T 0.5 are [4, 0]: -ln(1 + e^-4) = -0.018150, and not the -0.126928 of T = 1.
    got = target_logprobs(tensor(2, 0), torch.tensor(0), temperature=0.5)
    assert got.item() == pytest.approx(-0.0181499, abs=1e-7)


def test_a_tensor_of_temperatures_belongs_to_each_token():
    logits = tensor([2, 0], [2, 0], [7, 7])[None]
    temperature = tensor(9, 0.5, 1)[None]  # the first predicts nothing
    got = next_token_logprobs(logits, torch.tensor([[1, 0, 0]]), temperature=temperature)
    assert got[0].tolist() == pytest.approx([0.0, -0.0181499, -0.1269280], abs=1e-7)


def test_half_precision_is_reckoned_in_float32():
    logits = torch.randn(2, 5, 11, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids = torch.arange(10).reshape(2, 5)
    got = next_token_logprobs(logits, ids)
    assert got.dtype == torch.float32
    assert torch.equal(got, next_token_logprobs(logits.float(), ids))


def test_huge_logits_stay_finite():
    assert target_logprobs(torch.tensor([1e4, 0.0]), torch.tensor(1)).item() == -1e4


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), TEMPERATURES)
def test_equals_log_softmax_and_gather_with_its_gradient(seed, temperature):
    logits = torch.randn(2, 4, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logits.requires_grad_()
    ids = torch.randint(7, (2, 4), generator=torch.Generator().manual_seed(seed))
    plain = (logits[:, :-1] / temperature).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    got = next_token_logprobs(logits, ids, temperature=temperature)
    torch.testing.assert_close(got[:, 1:], plain)
    (wanted,) = torch.autograd.grad(plain.square().sum(), logits)
    torch.testing.assert_close(torch.autograd.grad(got.square().sum(), logits)[0], wanted)


def test_compiles_without_a_graph_break():
    logits = torch.randn(1, 4, 7, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[0, 3, 6, 1]])
    compiled = torch.compile(bare(next_token_logprobs), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits, ids), next_token_logprobs(logits, ids))


def test_rl_counts_weight_and_the_others_count_tokens():
    weights = {"rl": tensor(0.25, 0.25, 0), "ce": tensor(0.1, 0, 0.1), "ref_kl": tensor(0, 0, 0)}
    assert {k: n.item() for k, n in component_counts(weights).items()} == {"rl": 0.5, "ce": 2.0, "ref_kl": 0.0}


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=8), st.integers(0, 8))
def test_counts_of_parts_add_up(weights, cut):
    whole, parts = tensor(*weights), (tensor(*weights[:cut]), tensor(*weights[cut:]))
    for name in ("rl", "ce"):
        assert component_counts({name: whole})[name] == sum(component_counts({name: p})[name] for p in parts)
