"""Streams in, unreduced loss per token out; `combine` alone reduces."""

from prl.losses.baselines import cispo, dppo, gspo, ppo_clip, tis
from prl.losses.ce import ce
from prl.losses.combine import combine, token_means
from prl.losses.icepop import icepop
from prl.losses.ipo import ipo
from prl.losses.ref_kl import ref_kl
from prl.losses.score_centering import icepop_centered
from prl.ops import component_counts
from prl.types import LossInputs, LossOutputs, TokenLoss

__all__ = [
    "LossInputs", "LossOutputs", "TokenLoss", "ce", "cispo", "combine", "component_counts", "dppo", "gspo", "icepop",
    "icepop_centered", "ipo", "ppo_clip", "ref_kl", "tis", "token_means",
]  # fmt: skip
