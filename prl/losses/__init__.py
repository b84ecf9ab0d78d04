"""Streams in, unreduced loss per token out; `combine` alone reduces."""

from prl.losses.ce import ce
from prl.losses.combine import combine, token_means
from prl.losses.ipo import ipo
from prl.losses.ref_kl import ref_kl
from prl.ops import component_counts
from prl.types import LossInputs, LossOutputs, TokenLoss

__all__ = [
    "LossInputs", "LossOutputs", "TokenLoss", "ce", "combine", "component_counts", "ipo", "ref_kl", "token_means",
]  # fmt: skip
