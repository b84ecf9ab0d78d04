"""Reverse KL to a reference model as a policy-gradient signal."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prl.losses.ratios import kept_ratio, pair, probability_move, same_shape, select
from prl.types import TokenLoss


def ref_kl(
    trainer_logprobs: Float[Tensor, "*tokens"],
    inference_logprobs: Float[Tensor, "*tokens"],
    ref_logprobs: Float[Tensor, "*tokens"],
    *,
    mask: Bool[Tensor, "*tokens"] | None = None,
    max_drop: float = 0.2,
    kl_tau: float = 0.0,
    max_ratio: float = 1e4,
) -> TokenLoss:
    """-1[pi - mu >= -max_drop] * sg(log ref - log pi) * pi/mu + kl_tau * (log pi/mu)^2 per token, unreduced.

    Args:
      trainer_logprobs, inference_logprobs, ref_logprobs: nats; only the first carries a gradient.
      mask: tokens to look at; elsewhere loss and gradient are exactly 0.
      max_drop: a token whose probability fell by more is dropped from the first term (one-sided).
      kl_tau: strength of the drift term, which also acts on dropped tokens; 0 leaves it out.
      max_ratio: a kept ratio above it enters as max_ratio, in value and in gradient.

    Returns:
      TokenLoss. A token with a log-probability that is not finite is dropped. Metrics: `ref_kl` is
      log pi - log ref, whose mean over samples of pi estimates KL(pi || ref); `clamped` counts max_ratio.

    Raises:
      DataError: streams of unequal shape.

    Source: algorithms page, "Loss Components" and "Reference Scoring".
    """
    streams = {"inference_logprobs": inference_logprobs, "ref_logprobs": ref_logprobs, "mask": mask}
    same_shape("ref_kl", trainer_logprobs=trainer_logprobs, **streams)
    trainer, inference, live = pair(trainer_logprobs, inference_logprobs, mask)
    signal = (select(ref_logprobs, mask) - select(trainer_logprobs, mask)).detach()
    kept = live & signal.isfinite() & (probability_move(trainer, inference) >= -max_drop)
    ratio, clamped = kept_ratio(trainer - inference, trainer, kept, max_ratio)
    per_token = -torch.where(kept, signal, 0.0) * ratio
    if kl_tau:
        per_token = per_token + kl_tau * (trainer - inference).square()
    return TokenLoss(per_token, kept, {"ref_kl": -signal, "clamped": clamped})
