"""IPO: an importance-weighted policy gradient inside a probability trust region. The default."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prl.losses.ratios import kept_ratio, pair, probability_move, same_shape
from prl.types import TokenLoss


def ipo(
    trainer_logprobs: Float[Tensor, "*tokens"],
    inference_logprobs: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    *,
    mask: Bool[Tensor, "*tokens"] | None = None,
    eps: float = 0.3,
    adv_tau: float = 1.0,
    max_ratio: float = 1e4,
) -> TokenLoss:
    """-1[|pi - mu| <= eps] * adv_tau * A * pi/mu per token, unreduced.

    Args:
      trainer_logprobs: log pi in nats, current policy, carries the gradient.
      inference_logprobs: log mu in nats, the policy that sampled.
      advantages: A, any unit.
      mask: tokens to look at; elsewhere loss and gradient are exactly 0, whatever stands there.
      eps: largest kept probability move. It bounds pi - mu and not pi/mu, so a rare
        token may move by orders of magnitude.
      max_ratio: a kept ratio above it enters as max_ratio, in value and in gradient,
        and is counted in the metric `clamped`.

    Returns:
      TokenLoss. A dropped token has exactly 0 loss and 0 gradient; so has one whose
      log-probability is not finite.

    Raises:
      DataError: streams of unequal shape.

    Source: algorithms page, "IPO Loss".
    """
    streams = {"inference_logprobs": inference_logprobs, "advantages": advantages, "mask": mask}
    same_shape("ipo", trainer_logprobs=trainer_logprobs, **streams)
    trainer, inference, live = pair(trainer_logprobs, inference_logprobs, mask)
    kept = live & (probability_move(trainer, inference).abs() <= eps)
    ratio, clamped = kept_ratio(trainer - inference, trainer, kept, max_ratio)
    per_token = -torch.where(kept, adv_tau * advantages, 0.0) * ratio
    return TokenLoss(per_token, kept, {"clamped": clamped})
