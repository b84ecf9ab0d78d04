"""What a loss takes and gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor


class TokenLoss(NamedTuple):
    """An unreduced loss. Weights and 1/N belong to `combine`.

    kept marks tokens inside the trust region; metrics are streams of the same shape.
    """

    per_token: Float[Tensor, "*tokens"]
    kept: Bool[Tensor, "*tokens"]
    metrics: Mapping[str, Float[Tensor, "*tokens"]]


@dataclass
class LossInputs:
    """One sequence, as a custom loss of the algorithms page receives it."""

    trainer_logprobs: Float[Tensor, " seq"]
    inference_logprobs: Float[Tensor, " seq"]
    ref_logprobs: Float[Tensor, " seq"] | None
    advantages: Float[Tensor, " seq"]
    loss_mask: Bool[Tensor, " seq"]
    loss_weights: Float[Tensor, " seq"] | None


@dataclass
class LossOutputs:
    """A sequence's summed loss, and metrics that are averaged across sequences."""

    loss: Float[Tensor, ""]
    metrics: dict[str, Tensor]
