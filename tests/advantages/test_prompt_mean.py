"""Prompt-mean weights: closed forms of the loss they make, then laws."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantages import group_norm, prompt_mean_weights
from prl.losses import combine
from tests.unhooked import bare

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "advantages.json").read_text())
LAW = settings(deadline=None, max_examples=50)


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


ROWS = {  # name: (lengths, valid, expected)
    "8 tokens": ([2, 6], None, [1 / 8, 1 / 8]),
    "a rejected sibling's tokens do not count": ([2, 6, 100], [1, 1, 0], [1 / 8, 1 / 8, 0]),
    "no tokens": ([0, 0], None, [0, 0]),
    "nobody counts": ([2, 6], [0, 0], [0, 0]),
    "a rollout without tokens": ([4, 0], None, [1 / 4, 1 / 4]),
}


@pytest.mark.parametrize(("lengths", "valid", "expected"), ROWS.values(), ids=ROWS)
def test_row(lengths, valid, expected):
    valid = None if valid is None else torch.tensor(valid, dtype=torch.bool)
    assert torch.equal(prompt_mean_weights(tensor(lengths), valid=valid), tensor(expected))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_golden(dtype, tolerance):
    for row in GOLDEN:
        got = prompt_mean_weights(tensor(row["lengths"], dtype))
        expected = torch.full_like(got, row["prompt_mean_weight"])
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def loss_of(groups):
    """The rl loss of groups of rollouts, each rollout a list of token losses, weighted by 1 / T_q."""
    losses, weights = [], []
    for group in groups:
        per_rollout = prompt_mean_weights(tensor([len(rollout) for rollout in group]))
        for rollout, weight in zip(group, per_rollout, strict=True):
            losses.append(tensor(rollout))
            weights.append(weight.expand(len(rollout)))
    weights = torch.cat(weights)
    return combine({"rl": torch.cat(losses)}, {"rl": weights}, {"rl": weights.sum()})[0].item()


def test_every_prompt_weighs_the_same():
    # A: 4 tokens of loss 1; B: 12 tokens of loss 3. (1 + 3) / 2 = 2; the token mean is 40 / 16 = 2.5.
    assert loss_of([[[1.0] * 4], [[3.0] * 12]]) == pytest.approx(2.0)


def test_groups_of_equal_length_give_the_token_mean():
    assert loss_of([[[1.0, 2], [3, 4, 5]], [[7.0] * 4, [1]]]) == pytest.approx((1 + 2 + 3 + 4 + 5 + 28 + 1) / 10)


def test_two_copies_of_every_rollout_weigh_as_much_as_one():
    group = [[1.0, 2], [3, 4, 5]]
    assert loss_of([group + group, [[9.0]]]) == pytest.approx(loss_of([group, [[9.0]]]))


def test_it_is_not_zero_mean_over_tokens_but_the_length_weighted_baseline_makes_it_so():
    # Lengths 2 and 6, credit .5 and -.5: (2 * .5 - 6 * .5) / 8 = -.25.
    lengths, rewards = tensor([2, 6]), tensor([1, 0])
    tokens = lengths * prompt_mean_weights(lengths)
    assert (tokens * group_norm(rewards)).sum().item() == pytest.approx(-0.25)
    assert (tokens * group_norm(rewards, lengths)).sum().item() == pytest.approx(0.0, abs=1e-15)


def test_a_dropped_rollout_takes_its_weight_along():
    # Lengths 2, 6 and 4, the third of zero advantage: 8 of 12 tokens stay, at 1/12 each.
    weights = prompt_mean_weights(tensor([2, 6, 4]))
    assert (weights * tensor([2, 6, 0])).sum().item() == pytest.approx(8 / 12)


@LAW
@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), min_size=1, max_size=16))
def test_the_weights_of_a_group_s_tokens_sum_to_one(rollouts):
    lengths, valid = tensor([n for n, _ in rollouts]), torch.tensor([v for _, v in rollouts])
    dirty = torch.where(valid, lengths, math.nan)
    got = prompt_mean_weights(dirty, valid=valid)
    total = lengths[valid].sum().item()
    assert (got * lengths).sum().item() == pytest.approx(float(total > 0))
    assert (got[~valid] == 0).all()
    assert torch.equal(got, prompt_mean_weights(lengths, valid=valid))


def test_vmap_batches_a_loop_and_the_compiled_function_agree():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, 9, (6, 4), generator=generator).double()
    valid = torch.rand(6, 4, generator=generator) < 0.6
    loop = torch.stack([prompt_mean_weights(n, valid=v) for n, v in zip(lengths, valid, strict=True)])
    assert torch.equal(torch.func.vmap(lambda n, v: prompt_mean_weights(n, valid=v))(lengths, valid), loop)
    compiled = torch.compile(bare(prompt_mean_weights), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(lengths, valid=valid), loop)


def test_an_empty_group_names_the_argument():
    with pytest.raises(ValueError, match="prompt_mean_weights: `lengths` is empty"):
        prompt_mean_weights(torch.zeros(0))
