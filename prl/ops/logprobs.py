"""Log-probabilities of given tokens, from logits."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad


def target_logprobs(
    logits: Float[Tensor, "*tokens vocab"],
    targets: Int[Tensor, "*tokens"],
    *,
    temperature: Float[Tensor, "*tokens"] | float = 1.0,
) -> Float[Tensor, "*tokens"]:
    """log softmax(logits / temperature)[target], in nats, at least float32.

    Only the target's logit and the log-sum-exp are kept; no second [tokens, vocab] tensor.
    """
    return candidate_logprobs(logits, targets.unsqueeze(-1), temperature=temperature).squeeze(-1)


def candidate_logprobs(
    logits: Float[Tensor, "*tokens vocab"],
    candidates: Int[Tensor, "*tokens topk"],
    *,
    temperature: Float[Tensor, "*tokens"] | float = 1.0,
) -> Float[Tensor, "*tokens topk"]:
    """log softmax(logits / temperature)[candidate] of several tokens at each position; else as `target_logprobs`."""
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if isinstance(temperature, Tensor):
        temperature = temperature.unsqueeze(-1)
    scaled = logits / temperature
    return scaled.gather(-1, candidates.long()) - scaled.logsumexp(-1, keepdim=True)


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
    return pad(rest, (1, 0))
