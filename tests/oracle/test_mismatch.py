"""What a sampler that differs from the trainer does to each loss: drift, centering, and where neither can be seen."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantages import group_norm
from prl.losses import cispo, dppo, icepop, icepop_centered, ipo, ppo_clip, tis
from prl.oracle import distribution, drift, expected_update, reinforce, token_logprobs, vocab_logprobs
from tests.oracle.test_tree import trees

LAW = settings(deadline=None, max_examples=20)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


Q, P = tensor([0.6, 0.3, 0.08, 0.019, 0.001]), tensor([0.35, 0.3, 0.1, 0.1, 0.15])


def weighted(f):
    """-A * sg(f(pi/mu)) * log pi."""

    def loss(trainer_logprobs, inference_logprobs, advantages):
        return -advantages * f((trainer_logprobs.detach() - inference_logprobs).exp()) * trainer_logprobs

    return loss


def centered(f):
    """The same, less what the weights move whatever is sampled: sum_v sg(q_v f(p_v / q_v)) log p_v."""

    def loss(trainer_logprobs, inference_logprobs, advantages, topk_trainer_logprobs, topk_inference_logprobs):
        q, p = topk_inference_logprobs.exp(), topk_trainer_logprobs.detach().exp()
        baseline = (q * f(p / q) * topk_trainer_logprobs).sum(-1)
        return weighted(f)(trainer_logprobs, inference_logprobs, advantages) + advantages * baseline

    return loss


def band(low, high):
    return lambda ratio: torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)


WEIGHTS = {
    "none": torch.ones_like,
    "truncated at 2": lambda r: r.clamp(max=2.0),
    "band .2 to 5": band(0.2, 5.0),
}
CENTERED = {name: centered(f) for name, f in WEIGHTS.items()} | {"icepop_centered": icepop_centered}
DRIFT = {  # name: (loss, L1 norm in logits), for p and q above, of ratios .583, 1, 1.25, 5.26, 150
    "none": (reinforce, 0.5),  # q - p
    "exact weights": (partial(tis, cap=math.inf), 0.0),
    "tis 2": (tis, 0.315),
    # The last two tokens are dropped; P = 3/4 of the trainer's mass stays: 2 P (1 - P).
    "icepop from .5": (partial(icepop, ratio_low=0.5), 0.375),
    "icepop": (icepop, 0.375),
    "ipo": (ipo, 0.0),  # the largest move is .25, so nothing is dropped
    "ipo .1": (partial(ipo, eps=0.1), 0.5),  # first and last dropped, P = 1/2
    "dppo": (dppo, 0.0),  # a rise above .2 would be dropped; the largest is .149
    "dppo .1": (partial(dppo, eps_high=0.1), 0.255),  # the last one is dropped, P = .85
    "ppo_clip": (ppo_clip, 0.455),  # ratios above 1.2 are cut, P = .65
    # q w = .35, .3, .1, .02432, .00128, in all .7756; q w - .7756 p is positive for the first three: 2 * .75 * .2244.
    "cispo": (cispo, 0.3366),
}


@pytest.mark.parametrize(("loss", "norm"), DRIFT.values(), ids=DRIFT)
def test_drift_of_a_constant_credit(loss, norm):
    assert drift(P.log(), Q.log(), loss).abs().sum().item() == pytest.approx(norm, abs=1e-12)


def test_drift_without_weights_is_the_gap_between_sampler_and_trainer():
    torch.testing.assert_close(drift(P.log(), Q.log()), Q - P)


def other(logits, seed, scale=1.0):
    """A sampler near the policy."""
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return logits + scale * noise


@LAW
@given(trees(), st.integers(0, 10**6), st.sampled_from(sorted(CENTERED)))
def test_centering_removes_the_drift_of_every_weight(logits, seed, name):
    assert drift(logits, other(logits, seed), CENTERED[name], head=True).abs().max() < 1e-14
    assert drift(logits, other(logits, seed)).abs().max() > 1e-4


@LAW
@given(trees(), st.integers(0, 10**6))
def test_centred_icepop_is_its_definition_over_the_whole_vocabulary(logits, seed):
    # A (w_a grad log p_a - sum_v q_v w_v grad log p_v), in a form that needs only the head's trainer probabilities.
    rewards = torch.rand(len(distribution(logits)), generator=torch.Generator().manual_seed(seed))
    given = dict(group=2, sampler=other(logits, seed, 2.0), head=True)
    got = expected_update(logits, rewards.round(), group_norm, loss=icepop_centered, **given)
    want = expected_update(logits, rewards.round(), group_norm, loss=centered(band(0.2, 5.0)), **given)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("tail", [0.5, 1.0, 3.0, 7.0])
def test_a_head_is_enough_where_the_tail_is_in_proportion(tail):
    # Six tokens; the sampler has the tail of the last three at `tail` / 1 of the trainer's, up to the common sum.
    p = tensor([0.3, 0.2, 0.2, 0.02, 0.03, 0.04]).log()
    q = (p + tensor([0.5, -2.0, 0.3, 0, 0, 0])).exp() * tensor([1, 1, 1, tail, tail, tail])

    def first_three(t, i, a, topk_trainer_logprobs, topk_inference_logprobs):
        return icepop_centered(t, i, a, topk_trainer_logprobs[..., :3], topk_inference_logprobs[..., :3])

    assert drift(p, q.log(), first_three, head=True).abs().max() < 1e-15
    assert drift(p, q.log(), icepop).abs().max() > 1e-3


@LAW
@given(st.integers(2, 5), st.integers(0, 10**6))
def test_one_token_and_a_group_mean_have_no_drift(group, seed):
    # The update is (1 - 1/G) Cov_q(r, grad log p) exactly: a baseline takes out what a sampler adds.
    generator = torch.Generator().manual_seed(seed)
    logits, sampler, rewards = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    q, scores = sampler.softmax(-1), torch.eye(4, dtype=torch.float64) - logits.softmax(-1)
    covariance = (q * (rewards - q @ rewards)) @ scores
    got = expected_update(logits, rewards, group_norm, group=group, sampler=sampler)
    torch.testing.assert_close(got, (1 - 1 / group) * covariance, rtol=1e-10, atol=1e-14)


# Two tokens of two. The first decides the reward; the sampler leans .8 towards 0 in the second, which no reward sees.
TREE, LEAN = tensor([[0, 0], [0.3, 0], [0.3, 0]]), tensor([[0, 0], [0.8, 0], [0.8, 0]])


def first_token(tokens):
    return tokens[:, 0] == 0


def test_two_tokens_and_a_group_mean_drift_apart_under_the_two_prefixes():
    # E[A | prefix] = +-1/4, each prefix has 1/2, and q - p = sigmoid(1.1) - sigmoid(.3) = .175816.
    got = expected_update(TREE, first_token, group_norm, group=2, sampler=TREE + LEAN)
    gap = 1 / (1 + math.exp(-1.1)) - 1 / (1 + math.exp(-0.3))
    assert gap / 8 == pytest.approx(0.021977, abs=5e-7)
    assert got[1].tolist() == pytest.approx([gap / 8, -gap / 8])
    assert got[2].tolist() == pytest.approx([-gap / 8, gap / 8])
    # A head that both prefixes share sees nothing of it.
    assert (got[1] + got[2]).abs().max() < 1e-16


@pytest.mark.parametrize("name", CENTERED)
def test_centering_leaves_only_the_signal(name):
    given = dict(group=2, sampler=TREE + LEAN, head=True)
    got = expected_update(TREE, first_token, group_norm, loss=CENTERED[name], **given)
    assert got[1:].abs().max() < 1e-16
    # The first token still learns: (1 - 1/G) p (1 - p) = 1/8.
    assert got[0].tolist() == pytest.approx([1 / 8, -1 / 8])


def test_a_sampler_that_leans_drags_the_policy_along_without_any_reward():
    lean, z, centred = tensor([0.3, 0, -0.3]), tensor([0.0, 0, 0]), tensor([0.0, 0, 0])
    for _ in range(2000):
        q, p = (z + lean).softmax(-1), z.softmax(-1)
        z = z + 0.05 * (q - p)  # the drift of a constant credit, as the next line says
    torch.testing.assert_close(drift(z, z + lean), (z + lean).softmax(-1) - z.softmax(-1))
    assert z.softmax(-1).tolist() == pytest.approx([0.976, 0.015, 0.009], abs=5e-4)
    assert drift(centred, centred + lean, centered(torch.ones_like), head=True).abs().max() < 1e-16


@LAW
@given(trees(), st.integers(0, 10**6), st.sampled_from([1.0, 2.0, 4.0]))
def test_truncation_is_off_by_what_it_cuts(logits, seed, cap):
    # One group of one rollout with credit r: exact weights less E_q[(rho - cap) r grad log p over rho > cap].
    rewards = torch.rand(len(distribution(logits)), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    given = dict(group=1, sampler=other(logits, seed))
    exact = expected_update(logits, rewards, lambda r: r, loss=partial(tis, cap=math.inf), **given)
    got = expected_update(logits, rewards, lambda r: r, loss=partial(tis, cap=cap), **given)
    cut = expected_update(logits, rewards, lambda r: r, loss=weighted(lambda r: (r - cap).clamp(min=0)), **given)
    torch.testing.assert_close(got, exact - cut, rtol=1e-10, atol=1e-14)


@LAW
@given(trees(), st.integers(0, 10**6))
def test_the_expected_kept_ratio_is_at_most_one(logits, seed):
    sampler = other(logits, seed, 2.0)
    pi, mu = vocab_logprobs(logits), vocab_logprobs(sampler)
    kept = ipo(pi, mu, torch.ones_like(pi)).kept
    assert ((kept * pi.exp()).sum(-1) <= 1 + 1e-12).all()
    ratios = (token_logprobs(logits) - token_logprobs(sampler)).exp()
    assert ratios.max() > 1  # single ratios are not bounded by it
