"""Groups of 0/1 rewards: the weight w(p) of each advantage, and what a curriculum can expect of a group."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantages import group_norm, max_rl
from prl.errors import DataError
from prl.oracle import expect, expected_update, gradient_of, weight

LAW = settings(deadline=None, max_examples=30)
RATES = st.floats(0.01, 0.99)
SIZES = st.integers(1, 12)


def minus_one(rewards):
    return max_rl(rewards, all_fail="minus_one")


def std(rewards):
    return group_norm(rewards, std=True)


def sample_std(rewards):
    """Divides by torch.std of the group, with the usual 1e-6 against 0 / 0."""
    return group_norm(rewards) / (rewards.std() + 1e-6)


def raw(rewards):
    """The successes share 1 between them: the likelihood estimator without a baseline."""
    return rewards / torch.where(rewards.sum() > 0, rewards.mean(), torch.ones_like(rewards[0]))


TABLE = [  # p, N, mean, population std, MaxRL with zeros, MaxRL of order N, 1/p: to the digits shown
    (0.01, 8, 0.875, 2.6089, 6.7935, 7.7255, 100),
    (0.01, 128, 0.9922, 8.2628, 72.0958, 72.3748, 100),
    (0.1, 4, 0.75, 1.6903, 2.7100, 3.4390, 10),
    (0.1, 8, 0.875, 2.3277, 5.2170, 5.6953, 10),
    (0.1, 16, 0.9375, 2.8478, 7.9411, 8.1470, 10),
    (0.5, 8, 0.875, 1.8557, 1.9844, 1.9922, 2),
    (0.9, 8, 0.875, 2.3277, 1.1111, 1.1111, 1.1111),
    (0.3, 2, 0.5, 1.0, 1.0, 1.7, 3.3333),
]


@pytest.mark.parametrize(("p", "n", "mean", "deviation", "shipped", "order_n", "likelihood"), TABLE)
def test_weights_to_the_digits_of_the_table(p, n, mean, deviation, shipped, order_n, likelihood):
    got = [weight(p, n, fn) for fn in (group_norm, std, max_rl, minus_one)]
    assert got == pytest.approx([mean, deviation, shipped, order_n], abs=5.1e-5)
    assert 1 / p == pytest.approx(likelihood, abs=5.1e-5)


@LAW
@given(RATES, SIZES)
def test_weights_in_closed_form(p, n):
    geometric = [(1 - p) ** k for k in range(n)]
    assert weight(p, n, group_norm) == pytest.approx((n - 1) / n, abs=1e-12)
    assert weight(p, n, max_rl) == pytest.approx(sum(geometric[:-1]), rel=1e-11, abs=1e-12)  # order n - 1
    assert weight(p, n, minus_one) == pytest.approx(sum(geometric), rel=1e-11)  # order n
    assert weight(p, n, raw) == pytest.approx(sum(geometric), rel=1e-11)
    assert weight(p, n, lambda r: r) == pytest.approx(1)
    assert weight(p, n, torch.ones_like) == pytest.approx(0, abs=1e-11)  # any baseline, of its own


def test_the_standard_deviation_is_symmetric_and_a_pair_makes_no_difference():
    assert weight(0.1, 8, std) == pytest.approx(weight(0.9, 8, std))
    for p in (0.01, 0.3, 0.9):
        assert weight(p, 2, std) == pytest.approx(1) == weight(p, 2, max_rl)
    # ddof = 1 scales by sqrt((N - 1) / N)
    assert weight(0.1, 8, sample_std) == pytest.approx(math.sqrt(7 / 8) * weight(0.1, 8, std), rel=1e-5)


@LAW
@given(RATES, st.integers(2, 6), st.sampled_from([group_norm, std, max_rl, minus_one]))
def test_the_weight_is_what_enumeration_of_a_policy_finds(p, n, advantage):
    # Three actions of which the first is right, the other two uneven: the update is w(p) grad p in every logit.
    logits, reward = torch.tensor([p, (1 - p) / 3, 2 * (1 - p) / 3], dtype=torch.float64).log(), [1.0, 0.0, 0.0]
    slope = gradient_of(logits, lambda d: d[0])
    got = expected_update(logits, reward, advantage, group=n)
    torch.testing.assert_close(got, weight(p, n, advantage) * slope, rtol=1e-9, atol=1e-12)


def test_three_actions_in_groups_of_four():
    logits, reward = torch.tensor([-0.7, 0.4, 0.1], dtype=torch.float64), [1.0, 0.0, 0.0]
    p, slope = logits.softmax(-1)[0].item(), gradient_of(logits, lambda d: d[0])
    assert p == pytest.approx(0.160521194, abs=1e-9)
    factors = {max_rl: 2.5442034710, raw: 3.1358048913, minus_one: 3.1358048913, group_norm: 0.75}
    for advantage, factor in factors.items():
        got = expected_update(logits, reward, advantage, group=4) / slope
        assert got.tolist() == pytest.approx([factor] * 3, abs=1e-9)
    got = expected_update(logits, reward, sample_std, group=4) / slope
    assert got.tolist() == pytest.approx([1.4458363] * 3, abs=1e-7)


@pytest.mark.parametrize("order", [1, 3, 7])
def test_maxrl_climbs_the_truncated_log_likelihood(order):
    # grad of -sum_{k <= T} (1 - p)^k / k, the series of log p, which is sum_k (1/k) grad pass@k.
    logits, reward = torch.tensor([-0.7, 0.4, 0.1], dtype=torch.float64), torch.tensor([1.0, 0, 0], dtype=torch.float64)

    def passes(d, k):
        return 1 - (1 - d @ reward) ** k

    series = gradient_of(logits, lambda d: sum(passes(d, k) / k for k in range(1, order + 1)))
    torch.testing.assert_close(expected_update(logits, reward, max_rl, group=order + 1), series)
    torch.testing.assert_close(expected_update(logits, reward, minus_one, group=order), series)


@LAW
@given(RATES, st.integers(2, 12))
def test_coefficient_mass_of_maxrl(p, n):
    # E[mean |A|] = 2 (pass@N - pass@1)
    mass = expect(p, n, lambda r: max_rl(r).abs().mean())
    assert mass == pytest.approx(2 * ((1 - (1 - p) ** n) - p), rel=1e-10, abs=1e-12)


def test_coefficient_mass_in_numbers_and_its_peak():
    def mass(p):
        return expect(p, 8, lambda r: max_rl(r).abs().mean())

    assert [mass(0.1), mass(0.5)] == pytest.approx([0.93906558, 0.9921875], abs=1e-8)
    peak = 1 - 8 ** (-1 / 7)
    assert mass(peak) > max(mass(peak - 0.01), mass(peak + 0.01))


@pytest.mark.parametrize(("p", "chance"), [(0.05, 0.3366), (0.5, 0.9922)])
def test_probability_of_a_group_with_signal(p, chance):
    assert expect(p, 8, lambda r: (group_norm(r) != 0).any()) == pytest.approx(chance, abs=5e-5)
    assert expect(p, 8, lambda r: (group_norm(r) != 0).any()) == pytest.approx(1 - p**8 - (1 - p) ** 8)


@LAW
@given(RATES, SIZES)
def test_variance_and_learnability_of_a_group(p, n):
    spread = p * (1 - p) * (n - 1) / n
    assert expect(p, n, lambda r: group_norm(r).square().mean()) == pytest.approx(spread, abs=1e-12)
    assert expect(p, n, lambda r: 4 * r.mean() * (1 - r.mean())) == pytest.approx(4 * spread, abs=1e-12)


def test_learnability_ranks_problems_with_a_bias_that_is_one_factor():
    got = [expect(p, 4, lambda r: 4 * r.mean() * (1 - r.mean())) for p in (0.1, 0.5, 0.9)]
    assert got == pytest.approx([0.27, 0.75, 0.27])


def test_baselines_of_two_problems_together_triple_the_variance():
    # Solved 9 and 1 times of 10: within each the variance is .09; around the pooled mean 1/2 it is .25.
    within = [expect(p, 6, lambda r: r.var()) for p in (0.9, 0.1)]
    pooled = [expect(p, 1, lambda r: (r - 0.5).square().mean()) for p in (0.9, 0.1)]
    assert within == pytest.approx([0.09, 0.09]) and pooled == pytest.approx([0.25, 0.25])


def test_a_fair_task_is_taken_for_a_hard_one_in_37_groups_of_256():
    # At most 2 of 8 successes: (1 + 8 + 28) / 256.
    assert expect(0.5, 8, lambda r: r.mean() <= 0.25) == pytest.approx(37 / 256)


@pytest.mark.parametrize(("p", "n"), [(0.0, 4), (1.0, 4), (float("nan"), 4), (0.5, 0)])
def test_what_is_no_group_of_chances_is_refused(p, n):
    with pytest.raises(DataError, match=rf"got p={p}, n={n}; need 0 < p < 1 and at least 1 rollout"):
        weight(p, n, group_norm)


def test_a_statistic_is_one_number():
    with pytest.raises(DataError, match=r"statistic returned shape \[3\]; need one number per group"):
        expect(0.5, 3, group_norm)
