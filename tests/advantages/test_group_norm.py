"""Group-relative credit: rows by hand, golden numbers, closed forms; the general laws are in `tests/conformance`."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantages import group_norm

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "advantages.json").read_text())
VARIANTS = {"mean": {}, "lengths": {"lengths": True}, "std": {"std": True}, "both": {"lengths": True, "std": True}}
LAW = settings(deadline=None, max_examples=50)


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


@st.composite
def groups(draw, *, values=(0.0, 0.1, 0.25, 1.0, -3.0)):
    """(rewards, lengths, valid) of one group."""
    n = draw(st.integers(1, 12))
    rewards = draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))
    lengths = draw(st.lists(st.integers(1, 50), min_size=n, max_size=n))
    valid = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return tensor(rewards), tensor(lengths), torch.tensor(valid)


def credit(variant, rewards, lengths, valid=None):
    options = dict(VARIANTS[variant])
    if options.pop("lengths", False):
        options["lengths"] = lengths
    return group_norm(rewards, valid=valid, **options)


ROWS = {  # name: (rewards, settings, expected)
    "a pair": ([1, 3], {}, [-1, 1]),
    "a single rollout": ([5], {}, [0]),
    "one success of four": ([1, 0, 0, 0], {}, [0.75, -0.25, -0.25, -0.25]),
    "equal rewards": ([0.3, 0.3, 0.3], {}, [0, 0, 0]),
    "lengths 1 and 3: baseline (1*1 + 3*0) / 4": ([1, 0], {"lengths": [1, 3]}, [0.75, -0.25]),
    "std: variance 3/16, so 0.75 / (sqrt(3)/4) = sqrt(3)": (
        [1, 0, 0, 0], {"std": True}, [math.sqrt(3), -1 / math.sqrt(3), -1 / math.sqrt(3), -1 / math.sqrt(3)],
    ),
    "std is the population's: [0, 2] has std 1, not sqrt(2)": ([0, 2], {"std": True}, [-1, 1]),
    "std with lengths divides by the plain std 1/2": ([1, 0], {"lengths": [1, 3], "std": True}, [1.5, -0.5]),
    "a rejected sibling leaves the baseline alone": ([1, 0, 5], {"valid": [True, True, False]}, [0.5, -0.5, 0]),
    "a rejected first rollout": ([5, 1, 0], {"valid": [False, True, True]}, [0, 0.5, -0.5]),
    "nobody valid": ([1, 0], {"valid": [False, False]}, [0, 0]),
    "one valid": ([1, 7, 0], {"valid": [False, True, False]}, [0, 0, 0]),
}  # fmt: skip


@pytest.mark.parametrize(("rewards", "options", "expected"), ROWS.values(), ids=ROWS)
def test_row(rewards, options, expected):
    options = {k: tensor(v) if k == "lengths" else torch.tensor(v) if k == "valid" else v for k, v in options.items()}
    torch.testing.assert_close(group_norm(tensor(rewards), **options), tensor(expected), rtol=0, atol=1e-12)


def test_groups_are_apart():
    # One baseline over all of [1, 3] and [5] would give -2, 0 and 2.
    both = tensor([[1, 3], [5, 5]])
    assert group_norm(both).tolist() == [[-1, 1], [0, 0]]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_golden(dtype, tolerance):
    for row in GOLDEN:
        rewards, lengths = tensor(row["rewards"], dtype), tensor(row["lengths"], dtype)
        got = {
            "group_norm": group_norm(rewards),
            "group_norm_length_weighted": group_norm(rewards, lengths),
            "group_norm_std": group_norm(rewards, std=True),
        }
        for name, advantages in got.items():
            torch.testing.assert_close(advantages, tensor(row[name], dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("p", "n", "std", "weight"),
    [
        (0.01, 8, False, 0.875), (0.5, 8, False, 0.875), (0.1, 4, False, 0.75),  # (N - 1) / N at every p
        (0.01, 8, True, 2.6089), (0.1, 8, True, 2.3277), (0.9, 8, True, 2.3277), (0.5, 8, True, 1.8557),
        (0.01, 128, True, 8.2628), (0.3, 2, True, 1.0),
    ],
)  # fmt: skip
def test_expected_update_is_a_known_multiple_of_the_gradient(p, n, std, weight):
    # For rewards of 0 and 1 with success rate p, E[mean_i A_i grad log pi(y_i)] = w(p) grad p, where a success
    # has grad log pi = grad p / p and a failure -grad p / (1 - p). Summed over the binomial K exactly.
    total = 0.0
    for k in range(n + 1):
        advantages = group_norm(tensor([1.0] * k + [0.0] * (n - k)), std=std)
        update = (advantages[:k].sum() / p - advantages[k:].sum() / (1 - p)) / n
        total += math.comb(n, k) * p**k * (1 - p) ** (n - k) * update.item()
    assert total == pytest.approx(weight, abs=6e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@LAW
@given(st.floats(-1e4, 1e4, width=32), st.integers(1, 64), st.data())
def test_equal_rewards_give_exactly_zero_in_float32(variant, reward, n, data):
    lengths = tensor(data.draw(st.lists(st.integers(1, 4000), min_size=n, max_size=n)), torch.float32)
    assert (credit(variant, torch.full((n,), reward), lengths) == 0).all()


def test_a_difference_of_a_millionth_survives_in_float32():
    rewards = tensor([0.1, 0.1 + 1e-6, 0.1], torch.float32)
    got = group_norm(rewards)
    torch.testing.assert_close(got, (rewards.double() - rewards.double().mean()).float(), rtol=1e-4, atol=0)
    assert got[1] > 0 > got[0]


@pytest.mark.parametrize("variant", VARIANTS)
@LAW
@given(groups())
def test_zero_sum_over_rollouts_or_tokens(variant, group):
    rewards, lengths, valid = group
    weights = lengths if "lengths" in VARIANTS[variant] else torch.ones_like(lengths)
    assert abs((weights * credit(variant, rewards, lengths, valid)).sum()) < 1e-9


def test_an_empty_group_names_the_argument():
    with pytest.raises(ValueError, match="`rewards` is empty; a group has at least 1 rollout"):
        group_norm(torch.zeros(0))
