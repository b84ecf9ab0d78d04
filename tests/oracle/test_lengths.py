"""Answers of different length: which normaliser pushes a policy to stop sooner or later."""

import math

import pytest
import torch

from prl.advantages import group_norm
from prl.oracle import expected_update, sequences

STOP = 0


def stopping(z, tokens):
    """A policy that stops with probability sigmoid(z) after any token: [nodes, 2], rows of logits (z, 0)."""
    return torch.tensor([[z, 0.0]], dtype=torch.float64).expand(2**tokens - 1, 2)


def answer_mean(lengths):
    """1 / |o|: every answer weighs the same, so its tokens weigh less where it is long."""
    return 1 / (lengths * len(lengths))


@pytest.mark.parametrize(("s", "push"), [(0.5, 0.193147), (0.1, 0.155843), (0.02, 0.059837)])
def test_a_mean_over_each_answer_rewards_stopping_where_credit_is_equal(s, push):
    # Length l has probability s (1 - s)^(l - 1) and grad log prob 1 - l s, whose mean is 0; over l it is not.
    lengths = torch.arange(1, 4000, dtype=torch.float64)
    chance, score = s * (1 - s) ** (lengths - 1), 1 - lengths * s
    assert (chance @ score).item() == pytest.approx(0, abs=1e-12)
    got = (chance @ (score / lengths)).item()
    assert got == pytest.approx(s * math.log(1 / s) / (1 - s) - s)
    assert got == pytest.approx(push, abs=5e-7)


@pytest.mark.parametrize("s", [0.5, 0.1])
def test_the_same_push_on_a_tree_of_eight_tokens(s):
    # The shared logit moves by the sum over its rows. The last token may go on, so the sum ends with its two cases.
    n, z = 8, math.log(s / (1 - s))
    lengths = torch.arange(1, n + 1, dtype=torch.float64)
    chance, score = s * (1 - s) ** (lengths - 1), 1 - lengths * s
    push = (chance @ (score / lengths)).item() + (1 - s) ** n * -s
    given = dict(group=1, stop=STOP)
    per_answer = expected_update(stopping(z, n), torch.zeros(2**n), torch.ones_like, weights=answer_mean, **given)
    per_rollout = expected_update(stopping(z, n), torch.zeros(2**n), torch.ones_like, **given)
    assert per_answer[:, STOP].sum().item() == pytest.approx(push, abs=1e-14) and push > 0.05
    assert per_rollout.abs().max() < 1e-15  # a constant divisor moves nothing


def test_a_wrong_path_grows_longer_under_a_mean_over_each_answer():
    # The first token decides right (0) or wrong (1), then a 0 ends the answer, half of the time at each token.
    n = 6
    logits = torch.zeros(2**n - 1, 2, dtype=torch.float64)
    tokens = sequences(logits)
    ends = torch.where((tokens[:, 1:] == 0).any(-1), (tokens[:, 1:] == 0).int().argmax(-1) + 2, n).double()
    mask = torch.arange(n) < ends[:, None]
    reward = (tokens[:, 0] == 0).double()

    def pushes(scale):
        """Update of 'stop' right after each first token."""

        def loss(t, i, a, share):
            return -a * t * share

        share = torch.where(mask, scale(ends)[:, None], 0.0)
        got = expected_update(logits, reward, group_norm, group=2, loss=loss, streams={"share": share})
        return got[1, 0].item(), got[2, 0].item()

    # E[A | right] = 1/4, on half of all answers: 1/8 of 1/2 (P(2)/2 - P(3)/3 - P(4)/4 - P(5)/5 - P(6)/6), with
    # P = 1/2, 1/4, 1/8, 1/16, 1/16: .05625 / 8. Right answers shrink, wrong ones grow.
    assert pushes(lambda lengths: 1 / lengths) == pytest.approx((0.00703125, -0.00703125), abs=1e-14)
    assert pushes(torch.ones_like) == pytest.approx((0, 0), abs=1e-16)


def test_equal_lengths_make_every_normaliser_the_same():
    logits = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rules = [answer_mean, lambda n: 1 / n.sum(), lambda n: torch.ones_like(n) / (3 * len(n))]
    first, *others = [expected_update(logits, lambda t: t[:, 1], group_norm, group=3, weights=w) for w in rules]
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-12, atol=1e-16)
