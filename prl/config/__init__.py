"""Frozen settings, checked when built."""

from prl.config.losses import IPO, IcePop, RlLoss
from prl.config.run import AdamW, Sampling

__all__ = ["IPO", "AdamW", "IcePop", "RlLoss", "Sampling"]
