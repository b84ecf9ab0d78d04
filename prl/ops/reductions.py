"""Masked means, and the counts that normalise each component."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def masked_mean(
    values: Float[Tensor, "*batch group"], weights: Float[Tensor, "*batch group"] | Bool[Tensor, "*batch group"]
) -> Float[Tensor, "*batch 1"]:
    """sum(w v) / sum(w) over the last axis, kept as size 1; 0 where the weights sum to 0."""
    weights = weights.to(values.dtype)
    total = weights.sum(-1, keepdim=True)
    return (weights * values).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)


def component_counts(weights: Mapping[str, Float[Tensor, "*tokens"]]) -> dict[str, Float[Tensor, ""]]:
    """N of each component: the sum of weights for "rl", the number of non-zero weights for the others.

    Counts of micro-batches, and of workers, add up. They may be fractional or below 1 and are never clamped.

    Source: algorithms page, "Loss Components".
    """
    return {name: w.sum() if name == "rl" else (w != 0).sum().to(w.dtype) for name, w in weights.items()}
