"""Tabular policies: numbering by hand, then laws."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.errors import DataError
from prl.oracle import distribution, gradient_of, node, sequences, token_logprobs, vocab_logprobs

LAW = settings(deadline=None, max_examples=30)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def trees(draw, *, most=27):
    """Random logits of a complete tree with at most `most` sequences."""
    vocab, length = draw(st.sampled_from([(v, t) for v in range(2, 6) for t in range(1, 5) if v**t <= most]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    return torch.randn(sum(vocab**t for t in range(length)), vocab, generator=generator, dtype=torch.float64)


def test_two_tokens_of_two_by_hand():
    # Row 0 is the first token: 3/4, 1/4. Row 1 follows token 0: 1/2, 1/2. Row 2 follows token 1: 1/5, 4/5.
    logits = tensor([[3, 1], [1, 1], [1, 4]]).log()
    assert sequences(logits).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert distribution(logits).tolist() == pytest.approx([3 / 8, 3 / 8, 1 / 20, 4 / 20])
    assert token_logprobs(logits).exp().tolist() == [
        pytest.approx([3 / 4, 1 / 2]), pytest.approx([3 / 4, 1 / 2]),
        pytest.approx([1 / 4, 1 / 5]), pytest.approx([1 / 4, 4 / 5]),
    ]  # fmt: skip
    assert vocab_logprobs(logits)[3].exp().tolist() == [pytest.approx([3 / 4, 1 / 4]), pytest.approx([1 / 5, 4 / 5])]


def test_rows_are_numbered_breadth_first():
    # Row 0: nothing yet. Rows 1 to 3: after 0, 1, 2. Rows 4 to 12: after 00, 01, 02, 10, ...
    rows = {(): 0, (0,): 1, (2,): 3, (0, 0): 4, (1, 0): 7, (2, 2): 12}
    assert {prefix: node(prefix, 3) for prefix in rows} == rows


def test_a_bandit_is_a_tree_of_one_token():
    flat = tensor([0.3, -1, 2])
    assert torch.equal(distribution(flat), distribution(flat[None])) and sequences(flat).tolist() == [[0], [1], [2]]
    torch.testing.assert_close(distribution(flat), flat.softmax(-1))


def test_gradients_of_a_bandit_by_hand():
    # d p_a / dz = p_a (e_a - p) with p = (1/2, 1/4, 1/4).
    logits, reward = tensor([2, 1, 1]).log(), tensor([1, 0, 0])
    assert gradient_of(logits, lambda d: d @ reward).tolist() == pytest.approx([1 / 4, -1 / 8, -1 / 8])
    assert gradient_of(logits, lambda d: (d @ reward).log()).tolist() == pytest.approx([1 / 2, -1 / 4, -1 / 4])
    # pass@2 = 1 - (1 - p)^2 has slope 2 (1 - p) = 1 in p.
    assert gradient_of(logits, lambda d: 1 - (1 - d @ reward) ** 2).tolist() == pytest.approx([1 / 4, -1 / 8, -1 / 8])


@LAW
@given(trees())
def test_probabilities_sum_to_one_and_rows_belong_to_prefixes(logits):
    tokens, vocab = sequences(logits), logits.shape[-1]
    assert distribution(logits).sum().item() == pytest.approx(1)
    assert len({tuple(row) for row in tokens.tolist()}) == len(tokens)
    for row, logprobs in zip(tokens.tolist(), token_logprobs(logits).tolist(), strict=True):
        by_hand = [logits[node(row[:t], vocab)].log_softmax(-1)[token].item() for t, token in enumerate(row)]
        assert logprobs == pytest.approx(by_hand, rel=1e-12)


@LAW
@given(trees(), st.integers(0, 1000))
def test_the_gradient_is_the_slope_of_the_value(logits, seed):
    reward = torch.rand(len(sequences(logits)), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    at = (seed % logits.shape[0], seed % logits.shape[1])
    step = torch.zeros_like(logits)
    step[at] = 1e-5
    slope = (distribution(logits + step) @ reward - distribution(logits - step) @ reward) / 2e-5
    assert gradient_of(logits, lambda d: d @ reward)[at].item() == pytest.approx(slope.item(), abs=1e-9)


def test_float32_logits_are_computed_in_float64():
    got = gradient_of(torch.tensor([0.1, 0.2]), lambda d: d[0])
    assert got.dtype == torch.float64
    p = 1 / (1 + math.exp(torch.tensor(0.2).item() - torch.tensor(0.1).item()))
    assert got[0].item() == pytest.approx(p * (1 - p), rel=1e-14)


@pytest.mark.parametrize("shape", [(2, 3), (5, 3), (0, 3), (2, 2, 2)])
def test_a_tree_that_is_not_complete_is_refused(shape):
    with pytest.raises(DataError, match=r"need \[[23]\], or \[nodes, [23]\] .* 1, (3, 7|4, 13), ... nodes for 1, 2, 3"):
        sequences(torch.zeros(shape))
