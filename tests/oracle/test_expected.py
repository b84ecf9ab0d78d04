"""Expected updates: rows by hand, equality with a plain loop over every group, then the errors."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantages import group_norm
from prl.errors import DataError
from prl.losses import ipo, ref_kl
from prl.oracle import distribution, drift, expected_update, gradient_of, sequences, token_logprobs, vocab_logprobs
from prl.types import TokenLoss
from tests.unhooked import bare

LAW = settings(deadline=None, max_examples=15)
SHAPES = [(2, 1, 1), (2, 1, 3), (3, 1, 2), (2, 2, 1), (2, 2, 2)]  # vocab, tokens, group


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def running_mean(rewards):
    """Credit that depends on the order: reward minus the mean of the rewards before it."""
    before = torch.cat([torch.zeros_like(rewards[:1]), rewards.cumsum(0)[:-1]])
    return rewards - before / torch.arange(1, len(rewards) + 1)


def squared(trainer_logprobs, inference_logprobs, advantages):
    """A loss that is neither linear in the credit nor in the ratio."""
    per_token = (trainer_logprobs - inference_logprobs).exp() ** 2 * (advantages**2 - advantages)
    return TokenLoss(per_token, torch.ones_like(per_token, dtype=torch.bool), {})


def full_entropy(t, i, a, topk_trainer_logprobs, topk_inference_logprobs):
    """A loss of the whole vocabulary: credit times cross entropy of the sampler."""
    return -a * (topk_inference_logprobs.exp() * topk_trainer_logprobs).sum(-1)


ADVANTAGES = {
    "reward": lambda r: r,
    "group mean": group_norm,
    "group std": lambda r: group_norm(r, std=True),
    "order": running_mean,
}
LOSSES = {"ipo": ipo, "squared": squared}
WEIGHTS = {"per rollout": None, "token mean": lambda n: 1 / n.sum(), "sequence mean": lambda n: 1 / (n * len(n))}


@st.composite
def problems(draw):
    vocab, length, group = draw(st.sampled_from(SHAPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    nodes = sum(vocab**t for t in range(length))
    logits, sampler = torch.randn(2, nodes, vocab, generator=generator, dtype=torch.float64) / 2
    rewards = torch.randint(0, 3, (vocab**length,), generator=generator).double()  # ties, so kinds are shared
    return logits, sampler, rewards, group


def every_group(logits, sampler, rewards, advantage, group, loss, weights, stop):
    """The definition: a loop over all ordered groups, each differentiated by itself."""
    z = logits.clone().requires_grad_()
    tokens, lp, mu = sequences(z).tolist(), token_logprobs(z), token_logprobs(sampler)
    lengths = [row.index(stop) + 1 if stop in row else len(row) for row in tokens]
    chance, total = distribution(sampler), tensor(0.0)
    for chosen in map(list, itertools.product(range(len(tokens)), repeat=group)):
        credit, sizes = advantage(rewards[chosen]), tensor([lengths[s] for s in chosen])
        scale = (torch.ones_like(sizes) / group if weights is None else weights(sizes)).expand(group)
        for i, s in enumerate(chosen):
            n = lengths[s]
            out = loss(lp[s, :n], mu[s, :n], credit[i].expand(n))
            per_token = out.per_token if isinstance(out, TokenLoss) else out
            total = total + chance[chosen].prod() * scale[i] * per_token.sum()
    return -torch.autograd.grad(total, z)[0]


@LAW
@given(
    problems(),
    st.sampled_from(sorted(ADVANTAGES)),
    st.sampled_from(sorted(LOSSES)),
    st.sampled_from(sorted(WEIGHTS)),
    st.sampled_from([None, 0, 1]),
)
def test_it_is_the_sum_over_every_group(problem, advantage, loss, weights, stop):
    logits, sampler, rewards, group = problem
    if stop is not None:  # what would follow a stop cannot be paid for
        rewards = (sequences(logits)[:, 0] == stop).double()
    fn, objective, scale = ADVANTAGES[advantage], LOSSES[loss], WEIGHTS[weights]
    got = expected_update(logits, rewards, fn, group=group, sampler=sampler, loss=objective, weights=scale, stop=stop)
    want = every_group(logits, sampler, rewards, fn, group, objective, scale, stop)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_a_bandit_by_hand():
    # p = (3/4, 1/4), reward of token 0, two rollouts, A = r - mean: groups 01 and 10 (3/16 each) have A = +-1/2,
    # the others 0. Update of 01: (1/2 (e0 - p) - 1/2 (e1 - p)) / 2 = (1/4, -1/4); times 2 * 3/16 it is 3/32.
    got = expected_update(tensor([3, 1]).log(), [1, 0], lambda r: r - r.mean(), group=2)
    assert got.tolist() == pytest.approx([3 / 32, -3 / 32])
    # A = r: sum_a p_a r_a (e_a - p) = 3/4 (1/4, -1/4), whatever the group size.
    for group in (1, 3):
        got = expected_update(tensor([3, 1]).log(), [1, 0], lambda r: r, group=group)
        assert got.tolist() == pytest.approx([3 / 16, -3 / 16])


def test_rewards_may_be_a_list_a_tensor_or_a_function_of_tokens():
    logits, rewards = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), [0, 1, 1, 0]
    forms = [rewards, tensor(rewards), lambda tokens: tokens[:, 0] != tokens[:, 1]]
    first, *others = [expected_update(logits, form, group_norm, group=3) for form in forms]
    assert first.abs().sum() > 0.01 and all(torch.equal(first, other) for other in others)


def test_on_policy_every_importance_weight_is_one():
    logits = torch.randn(7, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain = expected_update(logits, lambda t: t.sum(-1), group_norm, group=3)
    weighted = expected_update(logits, lambda t: t.sum(-1), group_norm, group=3, loss=ipo)
    torch.testing.assert_close(weighted, plain, rtol=1e-12, atol=1e-15)


def test_exact_importance_weights_give_the_gradient_of_the_mean_reward_from_any_sampler():
    generator = torch.Generator().manual_seed(2)
    logits, sampler = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    wide = expected_update(logits, [1, 2, 5], lambda r: r, group=2, sampler=sampler, loss=lambda *s: ipo(*s, eps=1.0))
    torch.testing.assert_close(wide, gradient_of(logits, lambda d: d @ tensor([1, 2, 5])))


def test_the_reward_sees_nothing_after_a_stop():
    # 0 stops: 0x is one token long and reads "00" to the reward, so it can never be paid for the 1 after it.
    logits = torch.zeros(3, 2, dtype=torch.float64)
    got = expected_update(logits, lambda t: t[:, 1], lambda r: r, group=1, stop=0)
    # Only 11 is paid, with probability 1/4: first token 1/4 * (-1/2, 1/2), second after 1 the same.
    assert got.tolist() == [[-1 / 8, 1 / 8], [0, 0], [-1 / 8, 1 / 8]]


@LAW
@given(problems())
def test_a_head_loss_sees_the_whole_vocabulary_with_its_gradient(problem):
    # Group of 1 and credit of 1: the update of the cross entropy is E_q[sum_t q(. | prefix) . grad log p].
    logits, sampler, rewards, _ = problem
    got = expected_update(logits, rewards, torch.ones_like, group=1, sampler=sampler, loss=full_entropy, head=True)
    z = logits.clone().requires_grad_()
    inner = (vocab_logprobs(sampler).exp() * vocab_logprobs(z)).sum((-1, -2))
    want = torch.autograd.grad(distribution(sampler) @ inner, z)[0]
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_streams_reach_the_loss_by_name():
    teacher = tensor([0.5, -0.5])

    def loss(t, i, a, ref_logprobs):
        return ref_kl(t, i, ref_logprobs)

    logits = tensor([0.2, 0.1])
    got = expected_update(
        logits, [0, 0], torch.zeros_like, group=2, loss=loss, streams={"ref_logprobs": token_logprobs(teacher)}
    )
    want = -gradient_of(logits, lambda d: (d * (d.log() - teacher.log_softmax(-1))).sum())
    torch.testing.assert_close(got, want)


def test_drift_of_a_tree_is_the_update_of_a_constant_credit():
    logits, sampler = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    q, p = sampler.softmax(-1), logits.softmax(-1)
    want = (q - p) * torch.stack([tensor(1.0), *q[0]])[:, None]  # each prefix counts with the sampler's probability
    torch.testing.assert_close(drift(logits, sampler), want)


@pytest.mark.parametrize("loss", ["ipo", "squared"])
def test_a_sequence_that_is_never_drawn_may_be_impossible(loss):
    # Its ratio would be exp(-inf + inf), which is not a number.
    never, given = -float("inf"), dict(group=3, loss=LOSSES[loss])
    got = expected_update(tensor([0.0, 0.5, never]), [1, 0, 7], group_norm, **given)
    want = expected_update(tensor([0.0, 0.5]), [1, 0], group_norm, **given)
    assert want.abs().min() > 0.01 and got.tolist() == pytest.approx([*want.tolist(), 0.0])


def test_inputs_stay_as_they_were_and_get_no_gradient():
    logits = torch.zeros(2, requires_grad=True)
    got = expected_update(logits, [1, 0], group_norm, group=2)
    assert got.dtype == torch.float64 and not got.requires_grad
    assert logits.grad is None and logits.tolist() == [0, 0]


def test_many_rollouts_of_few_kinds_are_cheap():
    # 64 sequences in groups of 8 would be 64^8 = 2.8e14 groups; two kinds of reward make 64 * 2^7 * 8 terms a token.
    logits = torch.randn(63, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    got = expected_update(logits, lambda t: t[:, -1], group_norm, group=8)
    want = 7 / 8 * gradient_of(logits, lambda d: d @ sequences(logits)[:, -1].double())
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-14)


BROKEN = {
    "too many terms": (dict(group=24), r"2 sequences of 2 kinds .* groups of 24 make 402,653,184 terms; at most"),
    "no rollout": (dict(group=0), "got group=0; need at least 1"),
    "rewards of another length": (dict(rewards=[1.0]), r"rewards have shape \[1\]; need \[2\], one per sequence"),
    "a reduced advantage": (dict(advantage=torch.mean), r"advantage returned shape \[\] for a group of 2; need one"),
    "a reduced loss": (dict(loss=lambda t, i, a: (t * a).sum()), r"loss returned shape \[\]; need \[2, 2, 2, 1\]"),
}


@pytest.mark.parametrize(("change", "text"), BROKEN.values(), ids=BROKEN)
def test_what_does_not_fit_is_refused(change, text):
    given = {"rewards": [1.0, 0.0], "advantage": group_norm, "group": 2, **change}
    with pytest.raises(DataError, match=f"expected_update: .*{text}"):
        expected_update(torch.zeros(2), given.pop("rewards"), given.pop("advantage"), **given)


def test_a_sampler_with_another_tree_is_refused():
    with pytest.raises(DataError, match=r"logits have shape \[2\], sampler \[3\]; need the same"):
        bare(expected_update)(torch.zeros(2), [1, 0], group_norm, group=2, sampler=torch.zeros(3))
