"""Probability moves and importance ratios, computed so that nothing overflows or cancels."""

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


def probability_move(
    trainer_logprobs: Float[Tensor, "*tokens"], inference_logprobs: Float[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """pi - mu, detached, without cancellation: e^max * (1 - e^-|log ratio|), signed."""
    trainer, inference = trainer_logprobs.detach(), inference_logprobs.detach()
    gap = trainer - inference
    return torch.maximum(trainer, inference).exp() * -torch.expm1(-gap.abs()) * gap.sign()


def attached(weight: Float[Tensor, "*tokens"], logprobs: Float[Tensor, "*tokens"]) -> Float[Tensor, "*tokens"]:
    """The detached weight in value, weight * grad(logprobs) in gradient."""
    return weight.detach() * (logprobs - logprobs.detach()).exp()


def mismatch_kl(
    trainer_logprobs: Float[Tensor, "*tokens"], inference_logprobs: Float[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """pi/mu - 1 - log(pi/mu), detached: non-negative, its mean estimates KL(mu || pi) in nats."""
    log_ratio = (trainer_logprobs - inference_logprobs).detach()
    return log_ratio.expm1() - log_ratio
