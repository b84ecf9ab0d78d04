"""The one reduction: numbers of reported faults, then split invariance with gradients."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from prl.errors import DataError
from prl.losses import TokenLoss, combine, component_counts, token_means
from prl.losses.combine import weighted_sum

BAD = [float("nan"), float("inf"), -float("inf"), 1e9]


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def unreduced(values, **metrics):
    return TokenLoss(values, torch.ones_like(values, dtype=torch.bool), metrics)


def one(values, weights, count):
    return combine({"ce": unreduced(values)}, {"ce": weights}, {"ce": count})[0]


def partitions(items):
    """Every way to split a list into non-empty parts."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for i, part in enumerate(rest):
            yield [*rest[:i], [items[0], *part], *rest[i + 1 :]]


SEQUENCES = [  # (per-token losses, weights): A, B, one that is all masked, and one that is partly masked
    (tensor(1, 1), tensor(1, 1)),
    (tensor(2, 2, 2, 2, 2, 2), tensor(1, 1, 1, 1, 1, 1)),
    (tensor(9, float("inf")), tensor(0, 0)),
    (tensor(5, float("nan"), 3), tensor(0.25, 0, 0.5)),
]


@pytest.mark.parametrize("parts", list(partitions([0, 1, 2])), ids=str)
def test_the_mean_is_over_tokens_however_sequences_are_split(parts):
    # (2 * 1 + 6 * 2) / 8 = 1.75. A mean of two means is 1.5, and 1.0 if the empty sequence counts as well.
    assert sum(one(*map(torch.cat, zip(*(SEQUENCES[i] for i in p), strict=True)), 8.0).item() for p in parts) == 1.75


@pytest.mark.parametrize("parts", list(partitions([0, 1, 2, 3])), ids=str)
def test_loss_and_gradient_do_not_depend_on_the_split(parts):
    leaves = [loss.clone().requires_grad_() for loss, _ in SEQUENCES]
    weights = [w for _, w in SEQUENCES]
    counts = component_counts({"rl": torch.cat(weights), "ce": torch.cat(weights)})
    for part in parts:
        loss, w = torch.cat([leaves[i] for i in part]), torch.cat([weights[i] for i in part])
        combine({"rl": unreduced(loss), "ce": unreduced(3 * loss)}, {"rl": w, "ce": w}, counts)[0].backward()
    # N_rl = 8.75 is a sum of weights, N_ce = 10 a number of tokens.
    for leaf, w in zip(leaves, weights, strict=True):
        torch.testing.assert_close(leaf.grad, w / 8.75 + 3 * w / 10, rtol=1e-12, atol=0)


def test_unequal_sequences_weigh_by_their_tokens():
    loss = torch.cat([torch.full((100,), 0.5), torch.full((900,), 0.3)])  # 50 + 270 of 1000, and not 0.40
    assert one(loss, torch.ones(1000), 1000).item() == pytest.approx(0.32)


def test_numerator_and_denominator_share_one_mask():
    loss, weights = tensor(*[1] * 2, *[7] * 8), tensor(*[1] * 2, *[0] * 8)
    assert one(loss, weights, component_counts({"ce": weights})["ce"]).item() == 1.0  # and not 2 / 10


@pytest.mark.parametrize("ce_weight", [0.1])
def test_components_keep_their_own_denominators(ce_weight):
    # 2 rl tokens of loss 1 and 8 ce tokens of nll 2 at weight 0.1: 1.0 + 0.2; a shared N of 10 gives 0.36.
    loss = {"rl": unreduced(tensor(*[1] * 2, *[0] * 8)), "ce": unreduced(tensor(*[0] * 2, *[2] * 8))}
    weights = {"rl": tensor(*[1] * 2, *[0] * 8), "ce": tensor(*[0] * 2, *[ce_weight] * 8)}
    total, terms = combine(loss, weights, component_counts(weights))
    assert total.item() == pytest.approx(1.2)
    assert {name: term.item() for name, term in terms.items()} == pytest.approx({"rl": 1.0, "ce": 0.2})
    weights["rl"] = torch.zeros_like(weights["rl"])  # advantages all zero: rl leaves with its N, ce stays
    assert combine(loss, weights, component_counts(weights))[0].item() == pytest.approx(0.2)


def test_adding_ce_tokens_never_changes_the_rl_gradient():
    gradients = []
    for n in (0, 5):
        logits = tensor(0.3, -0.7).requires_grad_()
        rl = torch.cat([logits, torch.zeros(n, dtype=torch.float64)])
        weights = {"rl": tensor(1, 1, *[0] * n), "ce": tensor(0, 0, *[1] * n)}
        losses = {"rl": unreduced(rl), "ce": unreduced(torch.ones_like(rl))}
        combine(losses, weights, component_counts(weights))[0].backward()
        gradients.append(logits.grad)
    assert torch.equal(*gradients)


def test_components_on_the_same_token_add():
    value = tensor(2.0).requires_grad_()
    weights = {"rl": tensor(1), "ce": tensor(0.5)}
    total, _ = combine({"rl": unreduced(value), "ce": unreduced(3 * value)}, weights, {"rl": 1, "ce": 1})
    total.backward()
    assert (total.item(), value.grad.item()) == (5.0, 2.5)


def test_counts_below_one_are_not_clamped():
    assert one(tensor(2, 2), tensor(0.25, 0.25), 0.5).item() == 2.0
    assert one(tensor(2, 2), tensor(0.25, 0.25), tensor(0.5)[0]).item() == 2.0


def test_an_empty_component_is_zero_with_a_zero_gradient():
    loss = tensor(3, float("inf")).requires_grad_()
    total = one(loss, tensor(0, 0), 0)
    total.backward()
    assert total.item() == 0.0 and loss.grad.tolist() == [0.0, 0.0]


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=6), st.sampled_from(BAD))
def test_what_has_no_weight_cannot_leak(weights, bad):
    w = tensor(*weights)
    loss = torch.where(w != 0, torch.arange(len(w), dtype=torch.float64), bad).requires_grad_()
    metric = torch.where(w != 0, 2.0, bad)
    total = one(loss, w, 2.0)
    total.backward()
    assert total.item() == sum(i * x / 2 for i, x in enumerate(weights))
    assert torch.equal(loss.grad, w / 2)
    for value in token_means({"ce": unreduced(loss.detach(), m=metric)}, {"ce": w}).values():
        assert value.item() in (1.0, 2.0)


def test_a_metric_with_a_slash_keeps_its_name():
    loss = unreduced(tensor(1.0), **{"score_centering/head_mass": tensor(0.9)})
    assert token_means({"rl": loss}, {"rl": tensor(1)})["score_centering/head_mass"] == 0.9


def test_token_means_weigh_micro_batches_by_tokens():
    # 1 token of kl 1.0 and 9 of 0.0: 0.1, and not the 0.5 of two means. Weights play no part, members only.
    kl, kept = tensor(1, *[0] * 9, 5), torch.tensor([True] * 5 + [False] * 6)
    weights = tensor(*[0.5] * 10, 0)
    means = token_means({"rl": TokenLoss(kl, kept, {"kl": kl})}, {"rl": weights})
    assert {name: value.item() for name, value in means.items()} == pytest.approx({"rl/kept": 0.5, "rl/kl": 0.1})


def test_a_component_without_members_has_no_mean():
    loss = unreduced(tensor(1, 2), m=tensor(1, 2))
    means = token_means({"rl": loss, "ce": loss}, {"rl": tensor(0, 0), "ce": tensor(1, 0)})
    assert means.keys() == {"ce/kept", "ce/m"}


def test_different_components_are_named():
    loss = unreduced(tensor(1))
    with pytest.raises(DataError, match=r"components differ: losses \{'rl'\}, weights \{'ce'\}, counts \{'rl'\}"):
        combine({"rl": loss}, {"ce": tensor(1)}, {"rl": 1.0})

    with pytest.raises(DataError, match=r"token_means: components differ: losses \{'rl'\}, weights \{'ce'\}"):
        token_means({"rl": loss}, {"ce": tensor(1)})


def test_a_stream_that_would_broadcast_has_no_mean():
    loss = TokenLoss(tensor(1, 2), torch.tensor([True, True]), {"kl": tensor(1)})
    with pytest.raises(DataError, match=r"token_means: rl/kl has shape \[1\], its weights \[2\]; need the same"):
        inspect.unwrap(token_means)({"rl": loss}, {"rl": tensor(1, 1)})


def test_different_shapes_are_named():
    with pytest.raises(DataError, match=r"loss has shape \[2\], its weights \[3\]; need the same"):
        inspect.unwrap(weighted_sum)(tensor(1, 2), tensor(1, 1, 1))
    with pytest.raises(TypeCheckError, match="weights"):  # what the type hook says, which comes first
        one(tensor(1, 2), tensor(1, 1, 1), 3.0)


def test_bare_streams_are_losses_too():
    per_token = torch.tensor([1.0, 3.0], dtype=torch.float64)
    weights = {"rl": torch.tensor([1.0, 1.0], dtype=torch.float64)}
    total, terms = combine({"rl": per_token}, weights, {"rl": 2})
    assert total == terms["rl"] == 2.0  # (1 + 3) / 2
