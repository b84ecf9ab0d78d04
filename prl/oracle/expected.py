"""The expected update of any advantage times any loss, summed over all groups that a tabular policy can produce."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from prl.errors import DataError
from prl.oracle.tree import distribution, sequences, token_logprobs, vocab_logprobs
from prl.types import TokenLoss

LIMIT = 4_000_000
"""Most token terms that one call sums; each takes some 100 bytes."""

Rewards = Tensor | Sequence[float | int] | Callable[[Tensor], Tensor]
Loss = Callable[..., TokenLoss | Tensor]


def reinforce(
    trainer_logprobs: Float[Tensor, "*tokens"],
    inference_logprobs: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
) -> Float[Tensor, "*tokens"]:
    """-A log pi per token: the plain policy gradient, without any importance weight."""
    return -advantages * trainer_logprobs


def expected_update(
    logits: Float[Tensor, "*nodes vocab"],
    rewards: Rewards,
    advantage: Callable[[Tensor], Tensor],
    *,
    group: int,
    sampler: Float[Tensor, "*nodes vocab"] | None = None,
    loss: Loss = reinforce,
    head: bool = False,
    streams: Mapping[str, Tensor] | None = None,
    weights: Callable[[Tensor], Tensor] | None = None,
    stop: int | None = None,
) -> Float[Tensor, "*nodes vocab"]:
    """-E[d/d logits sum_i w_i sum_t loss_it] over groups of independent rollouts of the sampler; exact, in float64.

    What one step of SGD with learning rate 1 adds to the logits on average.

    Args:
      logits: the policy that learns: [vocab], or a tree [nodes, vocab] as in `depth`.
      rewards: [sequences] in the order of `sequences`, or fn(tokens [sequences, seq]) -> [sequences].
      advantage: fn(rewards [group]) -> [group]; runs under vmap.
      group: rollouts per group, G.
      sampler: logits of the policy that samples; None is on-policy.
      loss: fn(trainer_logprobs, inference_logprobs, advantages) -> TokenLoss or a tensor,
        unreduced; streams are [*batch, seq].
      head: the loss also takes `topk_trainer_logprobs` and `topk_inference_logprobs`, here
        of the whole vocabulary in its order.
      streams: further streams [sequences, seq] that the loss takes by name, such as
        ref_logprobs=token_logprobs(teacher).
      weights: fn(lengths [group]) -> weight of each token of a rollout, [group] or one number
        for all; runs under vmap. None is 1/G; `lambda n: 1 / n.sum()` is the mean over tokens.
      stop: token that ends a sequence; what would follow it has no loss.

    Raises:
      DataError: shapes that do not fit, or more than `LIMIT` terms. Rollouts of equal reward
        and length are of one kind; K kinds make sequences * K^(G-1) * G * seq terms.

    Source: the definition of the expectation.
    """
    trainer = logits.detach().double()
    inference = trainer if sampler is None else sampler.detach().double()
    if inference.shape != trainer.shape:
        raise DataError(
            f"expected_update: logits have shape {list(trainer.shape)}, sampler {list(inference.shape)}; need the same."
        )
    tokens = sequences(trainer)
    lengths = _lengths(tokens, stop)
    mask = torch.arange(tokens.shape[1]) < lengths[:, None]
    paid = _paid(rewards, tokens if stop is None else torch.where(mask, tokens, stop))
    _check_size(paid, lengths, group, trainer.shape[-1] if head else 1)
    draws = _draws(paid, lengths, distribution(inference), advantage, weights, group)

    def improvement(z: Tensor) -> Tensor:
        named = dict(streams or {})
        if head:
            named |= {"topk_trainer_logprobs": vocab_logprobs(z), "topk_inference_logprobs": vocab_logprobs(inference)}
        return -_expected_loss(token_logprobs(z), token_logprobs(inference), mask, draws, loss, named)

    return torch.func.grad(improvement)(trainer)


def drift(
    logits: Float[Tensor, "*nodes vocab"],
    sampler: Float[Tensor, "*nodes vocab"],
    loss: Loss = reinforce,
    *,
    head: bool = False,
) -> Float[Tensor, "*nodes vocab"]:
    """Expected update of a constant advantage of 1: what the sampler's mismatch moves without any signal.

    For one token it is sum_v q_v w_v (e_v - p), with w_v the weight that the loss puts on
    grad log p_v; 0 for exact importance weights. Probabilities p enter as logits `p.log()`.

    Source: score centering, arXiv:2609.20807.
    """
    zeros = torch.zeros(len(sequences(logits)))
    return expected_update(logits, zeros, torch.ones_like, group=1, sampler=sampler, loss=loss, head=head)


class _Draws(NamedTuple):
    """Sequence s in place i of a group whose other G - 1 rollouts are o; [sequences, others, place] each."""

    advantages: Tensor
    mass: Tensor  # probability of the group, times the weight of a token of s


def _expected_loss(
    trainer: Tensor, inference: Tensor, mask: Tensor, draws: _Draws, loss: Loss, streams: Mapping[str, Tensor]
) -> Tensor:
    live = (draws.mass != 0).flatten(1).any(-1)  # a sequence that is never drawn may have log-probability -inf

    def spread(stream: Tensor) -> Tensor:
        """[sequences, seq, ...] -> [live, others, place, seq, ...]."""
        return stream[live][:, None, None].expand(-1, *draws.mass.shape[1:], *[-1] * (stream.ndim - 1))

    pi, mu = spread(trainer), spread(inference)
    credit = draws.advantages[live][..., None].expand(mu.shape)
    out = loss(pi, mu, credit, **{name: spread(stream) for name, stream in streams.items()})
    per_token = out.per_token if isinstance(out, TokenLoss) else out
    if per_token.shape != mu.shape:
        raise DataError(
            f"expected_update: the loss returned shape {list(per_token.shape)}; need {list(mu.shape)}, unreduced."
        )
    return (draws.mass[live] * torch.where(spread(mask), per_token, 0.0).sum(-1)).sum()


def _lengths(tokens: Tensor, stop: int | None) -> Tensor:
    """Tokens up to and with the first `stop`; all of them where there is none."""
    stops = torch.zeros_like(tokens) if stop is None else (tokens == stop).long()
    return (stops.cumsum(-1) - stops == 0).sum(-1)  # tokens without a stop before them


def _paid(rewards: Rewards, tokens: Tensor) -> Tensor:
    paid = torch.as_tensor(rewards(tokens) if callable(rewards) else rewards, dtype=torch.float64)
    if paid.shape != tokens.shape[:1]:
        raise DataError(
            f"expected_update: rewards have shape {list(paid.shape)}; need [{len(tokens)}], one per sequence."
        )
    return paid


def _check_size(paid: Tensor, lengths: Tensor, group: int, width: int) -> None:
    if group < 1:
        raise DataError(f"expected_update: got group={group}; need at least 1 rollout.")
    kinds = len(_kinds(paid, lengths)[0])
    if (terms := len(paid) * kinds ** (group - 1) * group * int(lengths.max()) * width) > LIMIT:
        raise DataError(
            f"expected_update: {len(paid)} sequences of {kinds} kinds (reward and length) in groups of {group} "
            f"make {terms:,} terms; at most {LIMIT:,}. Use a smaller group, a shorter tree, or fewer distinct rewards."
        )


def _kinds(paid: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """(reward and length of each kind [kinds, 2], kind of each sequence)."""
    return torch.stack([paid, lengths.double()], -1).unique(dim=0, return_inverse=True)


def _draws(
    paid: Tensor,
    lengths: Tensor,
    chance: Tensor,
    advantage: Callable[[Tensor], Tensor],
    weights: Callable[[Tensor], Tensor] | None,
    group: int,
) -> _Draws:
    """Credit depends on a sequence through its reward and length only, so groups are enumerated by such kinds."""
    kinds, kind = _kinds(paid, lengths)
    n = len(kinds)
    others = torch.arange(n ** (group - 1))[:, None] // n ** torch.arange(group - 1) % n
    own, rest = torch.arange(n)[:, None, None].expand(-1, len(others), 1), others.expand(n, -1, -1)
    # [place, kinds, others, group]: the group with the own kind in each place
    groups = torch.stack([torch.cat([rest[..., :i], own, rest[..., i:]], -1) for i in range(group)])

    def per_rollout(name: str, fn: Callable[[Tensor], Tensor], column: int) -> Tensor:
        """[sequences, others, place]: what fn gives the rollout in its own place."""
        given = kinds[groups, column].flatten(0, 2)
        got = torch.func.vmap(fn)(given)
        if got.shape != given.shape:
            raise DataError(
                f"expected_update: {name} returned shape {list(got.shape[1:])} for a group of {group}; "
                "need one number per rollout."
            )
        return got.double().reshape(groups.shape).diagonal(dim1=0, dim2=-1)[kind]

    share = torch.zeros(n, dtype=torch.float64).index_add(0, kind, chance)
    per_token = weights or (lambda lengths: torch.ones_like(lengths) / group)
    weight = per_rollout("weights", lambda lengths: per_token(lengths).expand(group), 1)
    mass = chance[:, None, None] * share[others].prod(-1)[:, None] * weight
    return _Draws(per_rollout("advantage", advantage, 0), mass)
