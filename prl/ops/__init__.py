"""Tensor helpers under advantages, losses, packing and the policy."""

from prl.ops.fused import fused_loss
from prl.ops.linear import linear_logprobs
from prl.ops.logprobs import candidate_logprobs, next_token_logprobs, target_logprobs
from prl.ops.reductions import component_counts, masked_mean

__all__ = [
    "candidate_logprobs", "component_counts", "fused_loss", "linear_logprobs", "masked_mean",
    "next_token_logprobs", "target_logprobs",
]  # fmt: skip
