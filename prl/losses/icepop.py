"""IcePop: an importance-weighted policy gradient inside a band of the ratio."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prl.losses.ratios import in_band, kept_ratio, pair, same_shape
from prl.types import TokenLoss


def icepop(
    trainer_logprobs: Float[Tensor, "*tokens"],
    inference_logprobs: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    *,
    mask: Bool[Tensor, "*tokens"] | None = None,
    ratio_low: float = 0.2,
    ratio_high: float = 5.0,
    adv_tau: float = 1.0,
) -> TokenLoss:
    """-1[ratio_low <= pi/mu <= ratio_high] * adv_tau * A * pi/mu per token, unreduced.

    Args:
      trainer_logprobs: log pi in nats, current policy, carries the gradient.
      inference_logprobs: log mu in nats, the policy that sampled.
      advantages: A, any unit.
      mask: tokens to look at; elsewhere loss and gradient are exactly 0, whatever stands there.
      ratio_low, ratio_high: the kept ratios. Both ends are kept, also where rounding put the
        difference of two log-probabilities a few units in the last place outside (`ratios.in_band`).

    Returns:
      TokenLoss. A dropped token has exactly 0 loss and 0 gradient; so has one whose
      log-probability is not finite. ratio_high bounds what is kept, so nothing is clamped.

    Raises:
      DataError: streams of unequal shape.

    Source: algorithms page, "IcePop Loss"; arXiv:2510.18855.
    """
    streams = {"inference_logprobs": inference_logprobs, "advantages": advantages, "mask": mask}
    same_shape("icepop", trainer_logprobs=trainer_logprobs, **streams)
    trainer, inference, live = pair(trainer_logprobs, inference_logprobs, mask)
    kept = live & in_band(trainer, inference, ratio_low, ratio_high)
    ratio, _ = kept_ratio(trainer - inference, trainer, kept)
    return TokenLoss(-torch.where(kept, adv_tau * advantages, 0.0) * ratio, kept, {})
