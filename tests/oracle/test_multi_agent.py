"""Credit with several agents, by enumeration: baselines that remember, and baselines within an episode."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantages import group_norm, hierarchical, rae
from prl.oracle import expected_update, gradient_of, weight

LAW = settings(deadline=None, max_examples=20)


def moving_baseline(rewards, decay=0.95):
    """What `rae` gives the traces of one agent, as tensors: reward less the average of those before it."""
    baseline, advantages = torch.zeros_like(rewards[0]), []
    for reward in rewards:
        advantages.append(reward - baseline)
        baseline = decay * baseline + (1 - decay) * reward
    return torch.stack(advantages)


def test_the_moving_baseline_of_these_tests_is_that_of_rae():
    rewards = torch.tensor([1.0, 0, 1, 1, -2], dtype=torch.float64)
    got, _ = rae(rewards, ["agent"] * 5)
    torch.testing.assert_close(got, moving_baseline(rewards))
    assert got[0] == rewards[0]


@LAW
@given(st.floats(0.05, 0.95), st.integers(1, 6))
def test_a_baseline_of_earlier_traces_leaves_the_gradient_of_the_pass_rate(p, n):
    # It depends on the order and not on the trace's own reward, so the weight is 1 and not (n - 1)/n.
    logits, reward = torch.tensor([p, 1 - p], dtype=torch.float64).log(), [1.0, 0.0]
    got = expected_update(logits, reward, moving_baseline, group=n)
    torch.testing.assert_close(got, gradient_of(logits, lambda d: d[0]), rtol=1e-10, atol=1e-14)
    assert weight(p, n, group_norm) == pytest.approx((n - 1) / n, abs=1e-12)


def test_a_baseline_within_each_problem_is_calmer_than_one_over_both():
    # Two solvers on each of two problems, solved 9 and 1 times of 10. Mean square of the credit: within a problem
    # p (1 - p) / 2 = .045; over all four 1/2 less the square of their mean, E = 1/4 + 4 * .09 / 16: .2275.
    rates, episodes = torch.tensor([0.9, 0.9, 0.1, 0.1], dtype=torch.float64), ["e0", "e0", "e1", "e1"]
    squares = [0.0, 0.0]
    for outcome in itertools.product((0.0, 1.0), repeat=4):
        rewards = torch.tensor(outcome, dtype=torch.float64)
        chance = torch.where(rewards == 1, rates, 1 - rates).prod()
        within = hierarchical(rewards, ["solver"] * 4, episodes, episode_agents={"solver"})
        squares[0] += (chance * within.square().mean()).item()
        squares[1] += (chance * group_norm(rewards).square().mean()).item()
        if rewards[2:].sum() == 0:
            assert (within[2:] == 0).all()  # a problem that nobody solved teaches nothing
    assert squares == pytest.approx([0.045, 0.2275])
