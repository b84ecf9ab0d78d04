"""The linear length penalty: rows by hand, golden numbers, then laws."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantages import group_norm, linear_length_penalty
from tests.unhooked import bare

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "advantages.json").read_text())
LAW = settings(deadline=None, max_examples=50)


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


@st.composite
def groups(draw):
    """(rewards, output tokens, input tokens, turns, valid) of one group."""
    n = draw(st.integers(1, 10))
    rewards = draw(st.lists(st.sampled_from([0.0, 0.1, 1.0, -3.0]), min_size=n, max_size=n))
    counts = [draw(st.lists(st.integers(0, 500), min_size=n, max_size=n)) for _ in range(3)]
    valid = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return tensor(rewards), *map(tensor, counts), torch.tensor(valid)


def close(got, expected):
    torch.testing.assert_close(got, tensor(expected), rtol=0, atol=6e-5)


def test_worked_example():
    # Fractions: .25/4 + .1/2 + .1/4 = .1375; .25/2 + .1/4 + .1/2 = .2; .25 + .1 + .1 = .45. Pass rate 2/3.
    rewards, lengths = tensor([1, 1, 0]), tensor([10, 20, 40])
    shaped = linear_length_penalty(rewards, tensor([10, 20, 40]), tensor([20, 10, 40]), tensor([1, 2, 4]))
    close(shaped, [1 - 0.1375 * 2 / 3, 1 - 0.2 * 2 / 3, -0.45 * 2 / 3])
    close(group_norm(shaped), [0.4167, 0.3750, -0.7917])
    close(group_norm(shaped, lengths), [0.7024, 0.6607, -0.5060])  # b = (10*.90833 + 20*.86667 - 40*.3) / 70 = .205952


def test_the_baseline_is_that_of_the_shaped_rewards():
    # Tokens 100, 200, 400; equal input and turns. The unshaped mean 2/3 as baseline would leave a sum of -.6917.
    rewards, ones = tensor([1, 1, 0]), torch.ones(3, dtype=torch.float64)
    advantages = group_norm(linear_length_penalty(rewards, tensor([100, 200, 400]), ones, ones))
    torch.testing.assert_close(advantages, tensor([0.388889, 0.347222, -0.736111]), rtol=0, atol=1e-6)
    assert abs(advantages.sum()) < 1e-12


TURNS = {"num_output_tokens_weight": 0.0, "num_input_tokens_weight": 0.0, "num_turns_weight": 1.0}
ROWS = {  # name: (rewards, output, input, turns, settings, expected)
    "nobody passes: nobody is made shorter": ([0, 0], [9, 1], [9, 1], [9, 1], {}, [0, 0]),
    "a negative mean never pays for length": ([-1, -3], [9, 1], [9, 1], [9, 1], {}, [-1, -3]),
    "maxima of 0 add nothing": ([1, 0], [0, 0], [0, 0], [0, 0], {}, [1, 0]),
    "a maximum below 1 still normalises": ([1, 0], [0.5, 0.25], [0, 0], [0, 0], {}, [0.875, -0.0625]),
    "turns alone, pass rate 1/2": ([1, 0], [9, 1], [9, 1], [2, 4], TURNS, [1 - 0.5 / 2, -0.5]),
    "a single rollout pays in full": ([1], [7], [7], [7], {}, [0.55]),
    "a rejected sibling: pass rate 1, maxima 10, 10, 2": (
        [1, 1, 0], [5, 10, 99], [10, 5, 99], [1, 2, 99], {"valid": torch.tensor([True, True, False])},
        [1 - 0.125 - 0.1 - 0.05, 1 - 0.25 - 0.05 - 0.1, 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rewards", "output", "input", "turns", "options", "expected"), ROWS.values(), ids=ROWS)
def test_row(rewards, output, input, turns, options, expected):
    got = linear_length_penalty(*map(tensor, (rewards, output, input, turns)), **options)
    torch.testing.assert_close(got, tensor(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_golden(dtype, tolerance):
    for row in GOLDEN:
        names = ("rewards", "output_tokens", "input_tokens", "turns")
        got = linear_length_penalty(*(tensor(row[name], dtype) for name in names))
        torch.testing.assert_close(got, tensor(row["shaped_rewards"], dtype), rtol=tolerance, atol=tolerance)


@LAW
@given(groups())
def test_only_fractions_of_the_maximum_count(group):
    rewards, output, input, turns, valid = group
    got = linear_length_penalty(rewards, output, input, turns, valid=valid)
    assert torch.equal(linear_length_penalty(rewards, 8 * output, input / 2, 2 * turns, valid=valid), got)
    moved = (rewards - got)[valid]
    assert (moved >= 0).all() and (moved <= 0.45 * rewards[valid].mean().clamp(min=0) + 1e-12).all()


@LAW
@given(groups(), st.sampled_from([math.nan, math.inf, -math.inf, 1e9]))
def test_rollouts_that_do_not_count_equal_rollouts_left_out(group, bad):
    *streams, valid = group
    dirty = [torch.where(valid, stream, bad).requires_grad_() for stream in streams]
    got = linear_length_penalty(*dirty, valid=valid)
    assert (got[~valid] == 0).all()
    if valid.any():
        torch.testing.assert_close(got[valid], linear_length_penalty(*(stream[valid] for stream in streams)))
    got.square().sum().backward()
    assert all(stream.grad.isfinite().all() and (stream.grad[~valid] == 0).all() for stream in dirty)


def test_vmap_batches_a_loop_and_the_compiled_function_agree():
    generator = torch.Generator().manual_seed(0)
    streams = [torch.randint(0, 5, (6, 4), generator=generator).double() for _ in range(4)]
    valid = torch.rand(6, 4, generator=generator) < 0.6
    loop = torch.stack([linear_length_penalty(*row[:4], valid=row[4]) for row in zip(*streams, valid, strict=True)])
    mapped = torch.func.vmap(lambda *row: linear_length_penalty(*row[:4], valid=row[4]))(*streams, valid)
    compiled = torch.compile(bare(linear_length_penalty), fullgraph=True, backend="aot_eager")
    for got in (mapped, linear_length_penalty(*streams, valid=valid), compiled(*streams, valid=valid)):
        torch.testing.assert_close(got, loop, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("rewards", [[0.0, 0.0], [1.0, -1.0], [1.0, 1.0]])
def test_the_gradient_is_finite(rewards):
    streams = [tensor(rewards).requires_grad_(), *(torch.zeros(2, dtype=torch.float64).requires_grad_() for _ in "abc")]
    linear_length_penalty(*streams).square().sum().backward()
    assert all(stream.grad.isfinite().all() for stream in streams)


def test_an_empty_group_names_the_argument():
    with pytest.raises(ValueError, match="linear_length_penalty: `rewards` is empty"):
        linear_length_penalty(*(torch.zeros(0) for _ in range(4)))
