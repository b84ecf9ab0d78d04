"""MaxRL: rows by hand, golden numbers, exact expectations, then laws that hold for every group."""

import json
import math
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantages import group_norm, max_rl
from prl.errors import DataError
from tests.unhooked import bare

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "advantages.json").read_text())
LAW = settings(deadline=None, max_examples=50)
every_variant = pytest.mark.parametrize("all_fail", ["zero", "minus_one"])


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


@st.composite
def groups(draw):
    """(rewards, valid) of one group."""
    n = draw(st.integers(1, 12))
    rewards = draw(st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0, -3.0]), min_size=n, max_size=n))
    valid = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return tensor(rewards), torch.tensor(valid)


ROWS = {  # name: (rewards, valid, with all_fail="zero", with all_fail="minus_one")
    "one success of four, mean 1/4": ([1, 0, 0, 0], None, [3, -1, -1, -1], None),
    "partial credit, mean 3/4": ([0.5, 1], None, [-1 / 3, 1 / 3], None),
    "a mean near 0 makes large credit, mean 1/40": ([1, -0.9, 0, 0], None, [39, -37, -1, -1], None),
    "all succeed": ([1, 1], None, [0, 0], None),
    "all fail": ([0, 0, 0], None, [0, 0, 0], [-1, -1, -1]),
    "a negative mean would reward the worse": ([-1, -3], None, [0, 0], None),
    "mean 0 without being all zeros": ([1, -1], None, [0, 0], None),
    "a single success": ([1], None, [0], None),
    "a single failure": ([0], None, [0], [-1]),
    "a rejected sibling leaves the mean alone": ([1, 0, 9], [1, 1, 0], [1, -1, 0], None),
    "all that count fail": ([0, 7, 0], [1, 0, 1], [0, 0, 0], [-1, 0, -1]),
    "one counts and fails": ([5, 0], [0, 1], [0, 0], [0, -1]),
    "nobody counts": ([1, 0], [0, 0], [0, 0], None),
}


@pytest.mark.parametrize(("rewards", "valid", "zero", "minus_one"), ROWS.values(), ids=ROWS)
def test_row(rewards, valid, zero, minus_one):
    valid = None if valid is None else torch.tensor(valid, dtype=torch.bool)
    for all_fail, expected in (("zero", zero), ("minus_one", minus_one or zero)):
        got = max_rl(tensor(rewards), valid=valid, all_fail=all_fail)
        torch.testing.assert_close(got, tensor(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_golden(dtype, tolerance):
    for row in GOLDEN:
        got = max_rl(tensor(row["rewards"], dtype))
        torch.testing.assert_close(got, tensor(row["max_rl"], dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rewards", [[0.1, 0.2, -0.3], [0.3, -0.1, -0.1, -0.1], [0.7, -0.4, -0.2, -0.1]])
def test_rewards_that_cancel_have_no_signal(rewards, dtype):
    # Their mean is 0 up to rounding: dividing by what is left would give credit of 1e7 and more.
    assert (max_rl(tensor(rewards, dtype)) == 0).all()


def expected_weight(p, n, all_fail):
    """w in E[mean_i A_i grad log pi(y_i)] = w grad p, by the binomial sum over the number of successes.

    A success has grad log pi = grad p / p, a failure -grad p / (1 - p).
    """
    total = 0.0
    for k in range(n + 1):
        advantages = max_rl(tensor([1.0] * k + [0.0] * (n - k)), all_fail=all_fail)
        update = (advantages[:k].sum() / p - advantages[k:].sum() / (1 - p)) / n
        total += math.comb(n, k) * p**k * (1 - p) ** (n - k) * update.item()
    return total


@pytest.mark.parametrize(("all_fail", "short_of_n"), [("zero", 1), ("minus_one", 0)])
@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 128])
@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_expected_update_is_the_truncated_log_likelihood_s(p, n, all_fail, short_of_n):
    # sum_{k<T} (1-p)^k = (1 - (1-p)^T) / p
    order = n - short_of_n
    assert expected_weight(p, n, all_fail) == pytest.approx((1 - (1 - p) ** order) / p, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize(("all_fail", "weight"), [("zero", 2.5442034710), ("minus_one", 3.1358048913)])
def test_all_81_groups_of_a_three_action_softmax(all_fail, weight):
    logits = tensor([-0.7, 0.4, 0.1]).requires_grad_()
    logp = logits.log_softmax(-1)
    (target,) = torch.autograd.grad(logp[0].exp(), logits, retain_graph=True)  # action 0 is right
    surrogate = 0.0
    for actions in product(range(3), repeat=4):
        chosen = logp[list(actions)]
        advantages = max_rl(tensor([float(a == 0) for a in actions]), all_fail=all_fail)
        surrogate = surrogate + chosen.sum().exp().detach() * (advantages * chosen).mean()
    (update,) = torch.autograd.grad(surrogate, logits)
    torch.testing.assert_close(update, weight * target, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("p", "n", "mass"), [(0.1, 8, 0.93906558), (0.5, 8, 0.9921875)])
def test_expected_credit_mass_is_twice_pass_at_n_minus_pass_at_1(p, n, mass):
    got = sum(
        math.comb(n, k) * p**k * (1 - p) ** (n - k) * max_rl(tensor([1.0] * k + [0.0] * (n - k))).abs().mean().item()
        for k in range(n + 1)
    )
    assert got == pytest.approx(mass, abs=1e-8) and got == pytest.approx(2 * (1 - (1 - p) ** n - p))


@LAW
@given(groups())
def test_it_is_group_norm_over_the_mean(group):
    rewards, valid = group
    got, mean = max_rl(rewards, valid=valid), rewards[valid].mean() if valid.any() else tensor(0.0)
    want = group_norm(rewards, valid=valid) / mean if mean > 1e-9 else torch.zeros_like(rewards)
    torch.testing.assert_close(got, want)
    assert abs(got.sum()) < 1e-9 * (1 + got.abs().max())


@LAW
@given(groups(), st.sampled_from([2.0**-20, 0.5, 8.0, 2.0**20]))
def test_the_scale_of_rewards_does_not_matter(group, scale):
    rewards, valid = group
    assert torch.equal(max_rl(scale * rewards, valid=valid), max_rl(rewards, valid=valid))


def test_equal_rewards_give_exactly_zero_in_38400_float32_groups():
    generator, count = torch.Generator().manual_seed(0), 0
    for n in range(1, 65):
        rewards = (torch.rand(600, 1, generator=generator) * 10).expand(600, n)
        assert (max_rl(rewards) == 0).all() and (max_rl(rewards, all_fail="minus_one") == 0).all()
        count += len(rewards)
    assert count == 38_400


def test_a_difference_of_a_millionth_survives_in_float32():
    rewards = tensor([0.1, 0.1 + 1e-6, 0.1], torch.float32)
    got, exact = max_rl(rewards), rewards.double()
    torch.testing.assert_close(got, ((exact - exact.mean()) / exact.mean()).float(), rtol=1e-4, atol=0)
    assert got[1] > 0 > got[0]


@every_variant
@LAW
@given(groups(), st.sampled_from([math.nan, math.inf, -math.inf, 1e9]))
def test_rollouts_that_do_not_count_equal_rollouts_left_out(all_fail, group, bad):
    rewards, valid = group
    dirty = torch.where(valid, rewards, bad).requires_grad_()
    got = max_rl(dirty, valid=valid, all_fail=all_fail)
    assert (got[~valid] == 0).all()
    if valid.any():
        torch.testing.assert_close(got[valid], max_rl(rewards[valid], all_fail=all_fail))
    got.square().sum().backward()
    assert dirty.grad.isfinite().all() and (dirty.grad[~valid] == 0).all()


@every_variant
def test_vmap_batches_and_a_loop_agree(all_fail):
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(-1, 3, (40, 4), generator=generator).double()
    valid = torch.rand(40, 4, generator=generator) < 0.7
    rewards[0], rewards[1] = 0.0, 1.0
    loop = torch.stack([max_rl(r, valid=v, all_fail=all_fail) for r, v in zip(rewards, valid, strict=True)])
    mapped = torch.func.vmap(lambda r, v: max_rl(r, valid=v, all_fail=all_fail))(rewards, valid)
    assert torch.equal(mapped, loop) and torch.equal(max_rl(rewards, valid=valid, all_fail=all_fail), loop)


@every_variant
@pytest.mark.parametrize("rewards", [[0.0, 0.0], [1.0, 1.0], [2.0], [0.0], [-1.0, 1.0], [0.1, 0.2, -0.3], [1.0, 0.0]])
def test_the_gradient_is_finite_where_the_mean_is_zero_too(all_fail, rewards):
    r = tensor(rewards).requires_grad_()
    (max_rl(r, all_fail=all_fail) * torch.arange(1.0, len(r) + 1)).sum().backward()
    assert r.grad.isfinite().all()


def test_the_gradient_is_that_of_the_formula():
    assert torch.autograd.gradcheck(max_rl, tensor([1.0, 0.25, 0.5, 0.0]).requires_grad_())


@every_variant
def test_compiles_without_a_graph_break(all_fail):
    rewards, valid = tensor([[1, 0, 2.0], [0, 0, 5.0]]), torch.tensor([True, True, False]).expand(2, 3)
    compiled = torch.compile(bare(max_rl), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        compiled(rewards, valid=valid, all_fail=all_fail), max_rl(rewards, valid=valid, all_fail=all_fail)
    )


def test_what_is_refused():
    with pytest.raises(ValueError, match="max_rl: `rewards` is empty; a group has at least 1 rollout"):
        max_rl(torch.zeros(0))
    with pytest.raises(DataError, match="got all_fail='minus-one'; need 'zero' or 'minus_one'"):
        bare(max_rl)(torch.zeros(2), all_fail="minus-one")
