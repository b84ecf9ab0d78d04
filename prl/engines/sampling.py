"""One token from logits, by inverse CDF, from uniforms that the caller owns."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


def sample(
    logits: Float[Tensor, "batch vocab"],
    uniforms: Float[Tensor, " batch"],
    temperature: Float[Tensor, " batch"],
    *,
    top_p: float = 1.0,
    top_k: int | None = None,
    candidates: int = 0,
) -> tuple[Int[Tensor, " batch"], Float[Tensor, " batch"], Any]:
    """The token whose cumulative probability first exceeds the uniform, its log-probability in nats, and the likeliest.

    The last is torch.topk of the log-probabilities, `candidates` of them or all there are, or None for 0.
    Temperature 0 takes the argmax, with log-probability 0.0: its distribution is a point.
    With `top_p` or `top_k` the distribution is the kept set, renormalised.
    """
    greedy = temperature == 0
    logprobs = (logits.float() / torch.where(greedy, 1.0, temperature)[:, None]).log_softmax(-1)
    if top_p < 1 or top_k:
        logprobs = _truncate(logprobs, top_p, top_k)
    cdf = logprobs.double().exp().cumsum(-1)
    drawn = torch.searchsorted(cdf, uniforms.double()[:, None] * cdf[:, -1:], right=True).squeeze(-1)
    tokens = torch.where(greedy, logits.argmax(-1), drawn)
    chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
    likeliest = logprobs.topk(min(candidates, logprobs.shape[-1])) if candidates else None
    return tokens, torch.where(greedy, 0.0, chosen), likeliest


def _truncate(logprobs: Tensor, top_p: float, top_k: int | None) -> Tensor:
    ordered, order = logprobs.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    cut = before >= top_p
    if top_k:
        cut[:, top_k:] = True
    removed = torch.zeros_like(cut).scatter(-1, order, cut)
    return logprobs.masked_fill(removed, -torch.inf).log_softmax(-1)
