"""Cross-entropy: masked negative log-likelihood."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prl.losses.ratios import same_shape, select
from prl.types import TokenLoss


def ce(trainer_logprobs: Float[Tensor, "*tokens"], *, mask: Bool[Tensor, "*tokens"] | None = None) -> TokenLoss:
    """-log pi per token, in nats, unreduced; exactly 0 outside `mask`. Feeds sft and echo.

    Source: algorithms page, "Loss Components".
    """
    same_shape("ce", trainer_logprobs=trainer_logprobs, mask=mask)
    per_token = -select(trainer_logprobs, mask)
    kept = torch.ones_like(per_token, dtype=torch.bool) if mask is None else mask
    return TokenLoss(per_token, kept, {})
