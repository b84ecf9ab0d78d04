"""by_group against a loop over the groups, spread against its masks."""

import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantages import by_group, group_norm, linear_length_penalty, max_rl, prompt_mean_weights, spread
from prl.errors import DataError
from prl.types.arrays import frozen
from tests.unhooked import bare

LAW = settings(deadline=None, max_examples=50)
NAN = math.nan


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def centred(rewards):
    return rewards - rewards.mean()


def numbered_from_the_left(rewards):
    """Depends on the order within the group."""
    return torch.arange(1.0, len(rewards) + 1, dtype=rewards.dtype) * rewards


FUNCTIONS = {  # name: (function, streams it takes, settings)
    "a lambda": (centred, 1, {}),
    "order": (numbered_from_the_left, 1, {}),
    "group_norm": (group_norm, 1, {}),
    "group_norm std": (group_norm, 1, {"std": True}),
    "group_norm lengths": (group_norm, 2, {}),
    "max_rl": (max_rl, 1, {"all_fail": "minus_one"}),
    "prompt_mean_weights": (prompt_mean_weights, 1, {}),
    "linear_length_penalty": (linear_length_penalty, 4, {"num_turns_weight": 0.5}),
}


@st.composite
def batches(draw):
    """(ids, four streams, valid) of a batch of ragged groups in any order."""
    ids = draw(st.lists(st.integers(0, 5), min_size=1, max_size=24))
    columns = st.lists(st.sampled_from([0.0, 0.1, 1.0, 3.0]), min_size=len(ids), max_size=len(ids))
    valid = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    return ids, [tensor(draw(columns)) for _ in range(4)], torch.tensor(valid)


def one_by_one(fn, ids, *streams, valid, **kw):
    """What by_group stands for, as a loop."""
    members = defaultdict(list)
    for i in valid.nonzero().flatten().tolist():
        members[ids[i]].append(i)
    out = torch.zeros_like(streams[0])
    for rows in members.values():
        out[rows] = fn(*(stream[rows] for stream in streams), **kw)
    return out


@pytest.mark.parametrize("name", FUNCTIONS)
@LAW
@given(batches(), st.sampled_from(["tensor", "int32", "far apart", "negative", "strings", "tuples"]))
def test_it_equals_a_loop_over_the_groups(name, batch, kind):
    fn, n, kw = FUNCTIONS[name]
    ids, streams, valid = batch
    want = one_by_one(fn, ids, *streams[:n], valid=valid, **kw)
    named = {
        "tensor": torch.tensor(ids), "int32": torch.tensor(ids, dtype=torch.int32),
        "far apart": torch.tensor(ids) * 10**15, "negative": torch.tensor(ids) - 3,
        "strings": [f"env/{i}@0" for i in ids], "tuples": [("env", i) for i in ids],
    }[kind]  # fmt: skip
    dirty = [torch.where(valid, stream, NAN) for stream in streams[:n]]
    got = by_group(fn, named, *dirty, valid=valid, **kw)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert (got[~valid] == 0).all()
    if valid.all():
        assert torch.equal(by_group(fn, named, *streams[:n], **kw), got)


@LAW
@given(batches())
def test_marking_rows_equals_leaving_them_out(batch):
    ids, (rewards, *_), valid = batch
    if valid.any():
        kept = torch.tensor(ids)[valid]
        got = by_group(centred, torch.tensor(ids), rewards, valid=valid)[valid]
        assert torch.equal(by_group(centred, kept, rewards[valid]), got)


def test_a_baseline_for_each_prompt_wherever_its_rollouts_stand():
    # Groups of two by position would give [.5, -.5, .5, -.5]; one mean over [1, 3] and [5] would give [-2, 0, 2].
    assert by_group(group_norm, ["p1", "p2", "p1", "p2"], tensor([1, 0, 1, 0])).tolist() == [0, 0, 0, 0]
    assert by_group(group_norm, torch.tensor([0, 0, 1]), tensor([1, 3, 5])).tolist() == [-1, 1, 0]


def test_a_rejected_sibling_is_not_there():
    valid = torch.tensor([True, True, False])
    assert by_group(centred, ["p"] * 3, tensor([1, 0, NAN]), valid=valid).tolist() == [0.5, -0.5, 0]


def test_nobody_valid():
    got = by_group(centred, ["p", "q"], tensor([NAN, 1]), valid=torch.tensor([False, False]))
    assert got.tolist() == [0, 0]


def test_one_large_group_among_small_ones():
    generator = torch.Generator().manual_seed(0)
    ids = torch.cat([torch.full((20_000,), -1), torch.arange(4_000) // 8])[torch.randperm(24_000, generator=generator)]
    rewards = torch.rand(24_000, generator=generator, dtype=torch.float64)
    got = by_group(centred, ids, rewards)
    means = torch.stack([rewards[ids == i].mean() for i in range(-1, 500)])
    torch.testing.assert_close(got, rewards - means[ids + 1])


def test_equal_rewards_give_exactly_zero_and_gradients_go_through():
    rewards = torch.tensor([0.1, 0.7, 0.1, 0.7, 0.1, 0.7]).requires_grad_()
    got = by_group(group_norm, [0, 1, 0, 1, 0, 1], rewards)
    assert (got == 0).all() and got.dtype == torch.float32
    # d/dr of r_0 - mean(r_0, r_2, r_4), and nothing in the other group.
    (gradient,) = torch.autograd.grad(got[0], rewards)
    torch.testing.assert_close(gradient, torch.tensor([2 / 3, 0, -1 / 3, 0, -1 / 3, 0]))


def test_inputs_stay_as_they_were():
    ids, rewards = torch.tensor([1, 0, 1]), tensor([1, 2, 3])
    by_group(lambda r: r.sub_(r.mean()), ids, rewards)  # in place on its own group only
    assert ids.tolist() == [1, 0, 1] and rewards.tolist() == [1, 2, 3]


def looks(rewards):
    return rewards if rewards.std() > 0 else 0 * rewards


R = tensor([1, 0, 2])
REFUSED = {
    "no rows": ((centred, [], tensor([])), {}, "0 group ids and 1 streams; need at least one row and one stream"),
    "no stream": ((centred, [0, 0]), {}, "2 group ids and 0 streams"),
    "lengths": (
        (group_norm, [0, 0, 1], R, R[:2]), {"valid": torch.tensor([True])},
        r"3 group ids, but shapes {'stream 1': \[2\], 'valid': \[1\]}; need \[3\], one entry per row",
    ),
    "a list of tensors": ((centred, [*torch.tensor([0, 0, 1])], R), {}, "group_ids is a list of tensors; .*stack"),
    "one number per group": (
        (torch.mean, [0, 0, 0], R), {}, r"fn returned shape \[\] for a group of 3 rollouts; need .* shape \[3\]"
    ),
    "a number for a single rollout": ((torch.sum, [0, 1, 2], R), {}, r"returned shape \[\] for a group of 1 rollouts"),
    "no tensor": ((lambda r: [0.0] * 3, [0, 0, 0], R), {}, "fn returned list for a group of 3 rollouts"),
    "an if": ((looks, [0, 0, 0], R), {}, "fn failed on groups of 3 rollouts: .*control flow.* Use torch.where"),
    "item": ((lambda r: r - r.mean().item(), [0, 0, 1], R), {}, r"fn failed on groups of 1 rollouts: .*no \.item\(\)"),
    "boolean indexing": ((lambda r: r - r[r > 0].mean(), [0, 0, 0], R), {}, "no boolean indexing"),
    "random numbers": ((lambda r: r + torch.rand_like(r), [0, 0, 0], R), {}, "no random numbers"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "options", "text"), REFUSED.values(), ids=REFUSED)
def test_what_by_group_refuses(given, options, text):
    with pytest.raises(DataError, match=f"(?s)by_group: .*{text}"):
        by_group(*given, **options)


def test_an_error_of_the_function_itself_comes_through():
    def fails(rewards):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        by_group(fails, [0], tensor([1]))


MASK = torch.tensor([[False, True, True], [True, False, False], [False, False, False]])


def test_credit_on_trained_tokens_only_whatever_the_credit():
    got = spread(tensor([0.5, -2, NAN]), MASK)
    assert got.tolist() == [[0, 0.5, 0.5], [-2, 0, 0], [0, 0, 0]]
    leaked = spread(tensor([NAN, 1, 1]), MASK)
    assert leaked.isnan().tolist() == [[False, True, True], [False] * 3, [False] * 3]


@pytest.mark.parametrize("kind", [list, torch.tensor, lambda mask: frozen(mask, np.bool_)])
def test_masks_of_any_lengths_give_one_stream_each(kind):
    masks = [kind(mask) for mask in ([False, True], [True, True, False, True], [False])]
    got = spread(tensor([3, -1, NAN]), masks)
    assert [stream.tolist() for stream in got] == [[0, 3], [-1, -1, 0, -1], [0]]
    assert all(stream.dtype == torch.float64 for stream in got)


def test_no_traces_have_no_streams():
    assert spread(tensor([]), []) == []
    assert spread(tensor([]), torch.zeros(0, 4, dtype=torch.bool)).shape == (0, 4)


def test_the_gradient_of_a_trace_is_its_number_of_trained_tokens():
    for masks in (MASK, list(MASK)):
        advantages = tensor([1, 1, NAN]).requires_grad_()
        torch.cat([stream.flatten() for stream in spread(advantages, masks)]).sum().backward()
        assert advantages.grad.tolist() == [2, 1, 0]


def test_what_spread_refuses():
    text = "spread: 2 advantages and 3 masks; need one mask per trace"
    with pytest.raises(DataError, match=text):
        spread(tensor([1, 2]), list(MASK))
    with pytest.raises(DataError, match=text):
        bare(spread)(tensor([1, 2]), MASK)
    with pytest.raises(DataError, match=r"mask 1 is torch.int64 of shape \[2\]; need booleans, one per token"):
        spread(tensor([1, 2]), [[True], [0, 1]])
    with pytest.raises(DataError, match=r"mask 0 is torch.bool of shape \[3, 3\]"):
        spread(tensor([1]), [MASK])
    with pytest.raises(DataError, match=r"mask 0 is torch.float32 of shape \[2\]"):
        bare(spread)(tensor([1]), torch.ones(1, 2))
