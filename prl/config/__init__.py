"""Frozen settings, checked when built."""

from prl.config.losses import IPO, IcePop, RlLoss
from prl.config.models import AlgoSampling, FrozenModel, ModelRef
from prl.config.run import AdamW, Sampling

__all__ = ["IPO", "AdamW", "AlgoSampling", "FrozenModel", "IcePop", "ModelRef", "RlLoss", "Sampling"]
