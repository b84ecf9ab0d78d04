"""Frozen settings, checked when built."""

from prl.config.losses import IPO, RlLoss
from prl.config.run import AdamW, Sampling

__all__ = ["IPO", "AdamW", "RlLoss", "Sampling"]
