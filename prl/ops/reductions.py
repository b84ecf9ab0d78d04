"""Tensor helpers under advantages, losses, packing and the policy: masked means, counts, log-probabilities."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def masked_mean(
    values: Float[Tensor, "*batch group"], weights: Float[Tensor, "*batch group"] | Bool[Tensor, "*batch group"]
) -> Float[Tensor, "*batch 1"]:
    """sum(w v) / sum(w) over the last axis, kept as size 1; 0 where the weights sum to 0."""
    weights = weights.to(values.dtype)
    total = weights.sum(-1, keepdim=True)
    return (weights * values).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)


def target_logprobs(
    logits: Float[Tensor, "*tokens vocab"],
    targets: Int[Tensor, "*tokens"],
    *,
    temperature: Float[Tensor, "*tokens"] | float = 1.0,
) -> Float[Tensor, "*tokens"]:
    """log softmax(logits / temperature)[target], in nats, at least float32.

    Only the target's logit and the log-sum-exp are kept; no second [tokens, vocab] tensor.
    """
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if isinstance(temperature, Tensor):
        temperature = temperature.unsqueeze(-1)
    scaled = logits / temperature
    chosen = scaled.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    return chosen - scaled.logsumexp(-1)


def next_token_logprobs(
    logits: Float[Tensor, "batch seq vocab"],
    token_ids: Int[Tensor, "batch seq"],
    *,
    temperature: Float[Tensor, "batch seq"] | float = 1.0,
) -> Float[Tensor, "batch seq"]:
    """log p(token t | tokens < t) at position t, from logits whose row t predicts token t + 1.

    Args:
      temperature: softmax temperature; a [batch, seq] one belongs to the token at its own position.

    Returns:
      Nats, at least float32; 0.0 at position 0, which nothing predicts.

    Source: the one-position shift of the algorithms page's streams.
    """
    if isinstance(temperature, Tensor):
        temperature = temperature[:, 1:]
    rest = target_logprobs(logits[:, :-1], token_ids[:, 1:], temperature=temperature)
    return torch.nn.functional.pad(rest, (1, 0))


def component_counts(weights: Mapping[str, Float[Tensor, "*tokens"]]) -> dict[str, Float[Tensor, ""]]:
    """N of each component: the sum of weights for "rl", the number of non-zero weights for the others.

    Counts of micro-batches, and of workers, add up. They may be fractional or below 1 and are never clamped.

    Source: algorithms page, "Loss Components".
    """
    return {name: w.sum() if name == "rl" else (w != 0).sum().to(w.dtype) for name, w in weights.items()}
