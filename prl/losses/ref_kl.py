"""Reverse KL to a reference model as a policy-gradient signal."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prl.losses.ratios import attached, probability_move, same_shape, select
from prl.types import TokenLoss


def ref_kl(
    trainer_logprobs: Float[Tensor, "*tokens"],
    inference_logprobs: Float[Tensor, "*tokens"],
    ref_logprobs: Float[Tensor, "*tokens"],
    *,
    mask: Bool[Tensor, "*tokens"] | None = None,
    max_drop: float = 0.2,
    kl_tau: float = 0.0,
) -> TokenLoss:
    """-1[pi - mu >= -max_drop] * sg(log ref - log pi) * pi/mu + kl_tau * (log pi/mu)^2 per token, unreduced.

    Args:
      trainer_logprobs, inference_logprobs, ref_logprobs: nats; only the first carries a gradient.
      mask: tokens to look at; elsewhere loss and gradient are exactly 0.
      max_drop: a token whose probability fell by more is dropped from the first term (one-sided).
      kl_tau: strength of the drift term, which also acts on dropped tokens; 0 leaves it out.

    Returns:
      TokenLoss; metric `ref_kl` is log pi - log ref, whose mean over samples of pi estimates KL(pi || ref).

    Raises:
      DataError: streams of unequal shape.

    Source: algorithms page, "Loss Components" and "Reference Scoring".
    """
    streams = {"inference_logprobs": inference_logprobs, "ref_logprobs": ref_logprobs, "mask": mask}
    same_shape("ref_kl", trainer_logprobs=trainer_logprobs, **streams)
    trainer = select(trainer_logprobs, mask)
    inference, ref = select(inference_logprobs, mask).detach(), select(ref_logprobs, mask).detach()
    log_ratio = trainer.detach() - inference
    kept = (probability_move(trainer, inference) >= -max_drop) & log_ratio.isfinite()
    kept = kept if mask is None else kept & mask
    signal = ref - trainer.detach()
    ratio = torch.where(kept, log_ratio, 0.0).exp()
    per_token = torch.where(kept, -signal, 0.0) * attached(ratio, torch.where(kept, trainer, 0.0))
    if kl_tau:
        per_token = per_token + kl_tau * (trainer - inference).square()
    return TokenLoss(per_token, kept, {"ref_kl": -signal})
