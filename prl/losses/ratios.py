"""Probability moves and importance ratios, computed so that nothing overflows or cancels."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prl.errors import DataError


def same_shape(where: str, **streams: Tensor | None) -> None:
    """Raise DataError where streams differ in shape, which would broadcast. None is no stream."""
    shapes = {name: list(stream.shape) for name, stream in streams.items() if stream is not None}
    if len({tuple(shape) for shape in shapes.values()}) > 1:
        raise DataError(f"{where}: streams differ in shape: {shapes}. Every stream has one entry per token.")


def select(stream: Float[Tensor, "*tokens"], mask: Bool[Tensor, "*tokens"] | None) -> Float[Tensor, "*tokens"]:
    """The stream with 0.0 outside `mask`. Comes before any arithmetic, so what stands there cannot leak."""
    return stream if mask is None else torch.where(mask, stream, 0.0)


def pair(
    trainer_logprobs: Float[Tensor, "*tokens"],
    inference_logprobs: Float[Tensor, "*tokens"],
    mask: Bool[Tensor, "*tokens"] | None,
) -> tuple[Float[Tensor, "*tokens"], Float[Tensor, "*tokens"], Bool[Tensor, "*tokens"]]:
    """(log pi with its gradient, log mu without, live): live tokens are in the mask and have a finite log pi - log mu.

    Both streams are 0.0 elsewhere, so they are finite everywhere.
    """
    inference = select(inference_logprobs, mask).detach()
    live = (select(trainer_logprobs, mask).detach() - inference).isfinite()
    live = live if mask is None else live & mask
    return torch.where(live, trainer_logprobs, 0.0), torch.where(live, inference, 0.0), live


def probability_move(
    trainer_logprobs: Float[Tensor, "*tokens"], inference_logprobs: Float[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """pi - mu, detached, without cancellation: e^max * (1 - e^-|log ratio|), signed."""
    trainer, inference = trainer_logprobs.detach(), inference_logprobs.detach()
    gap = trainer - inference
    return torch.maximum(trainer, inference).exp() * -torch.expm1(-gap.abs()) * gap.sign()


def in_band(
    trainer_logprobs: Float[Tensor, "*tokens"], inference_logprobs: Float[Tensor, "*tokens"], low: float, high: float
) -> Bool[Tensor, "*tokens"]:
    """low <= pi/mu <= high, compared in log space; a ratio that is not finite is outside.

    Inclusive up to rounding. Two log-probabilities whose exact difference is log(high) have a
    computed one that may lie a few units in the last place beyond it, so the bounds give way by
    2 eps (|log pi| + |log mu|), eps of the dtype: where the two sum to 5 nats, 1e-6 in float32 and 2e-15 in float64.
    """
    trainer, inference = trainer_logprobs.detach(), inference_logprobs.detach()
    log_ratio = trainer - inference
    slack = 2 * torch.finfo(log_ratio.dtype).eps * (trainer.abs() + inference.abs())
    inside = (log_ratio >= math.log(low) - slack) & (log_ratio <= math.log(high) + slack)
    return inside & log_ratio.isfinite()


def attached(weight: Float[Tensor, "*tokens"], logprobs: Float[Tensor, "*tokens"]) -> Float[Tensor, "*tokens"]:
    """The detached weight in value, weight * grad(logprobs) in gradient."""
    return weight.detach() * (logprobs - logprobs.detach()).exp()


def kept_ratio(
    log_ratio: Float[Tensor, "*tokens"],
    trainer_logprobs: Float[Tensor, "*tokens"],
    kept: Bool[Tensor, "*tokens"],
    max_ratio: float = math.inf,
) -> tuple[Float[Tensor, "*tokens"], Float[Tensor, "*tokens"]]:
    """(e^log_ratio with the gradient of a ratio, 1.0 where that is above max_ratio and enters as max_ratio).

    max_ratio holds in value and in gradient, which a plain clamp would make 0. A token that
    is not kept has ratio 1 and no gradient.
    """
    # Select before exp: the gradient of a dropped exp that overflows is 0 * inf.
    log_ratio = torch.where(kept, log_ratio.detach(), 0.0)
    ratio = attached(log_ratio.clamp(max=math.log(max_ratio)).exp(), torch.where(kept, trainer_logprobs, 0.0))
    return ratio, (log_ratio > math.log(max_ratio)).to(ratio.dtype)


def mismatch_kl(
    trainer_logprobs: Float[Tensor, "*tokens"], inference_logprobs: Float[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """pi/mu - 1 - log(pi/mu), detached, float64: non-negative, its mean estimates KL(mu || pi) in nats.

    float64 holds ratios that float32 cannot. In pi/mu a log ratio above 700 counts as 700, so any two finite
    log-probabilities have a finite value.
    """
    log_ratio = trainer_logprobs.detach().double() - inference_logprobs.detach().double()
    return log_ratio.clamp(max=700.0).expm1() - log_ratio
