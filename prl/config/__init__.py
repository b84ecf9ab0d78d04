"""Frozen settings, checked when built."""

from importlib import import_module
from typing import Any

from prl.config.losses import IPO, IcePop, RlLoss
from prl.config.models import AlgoSampling, FrozenModel, ModelRef
from prl.config.run import AdamW, Sampling

__all__ = ["IPO", "AdamW", "AlgoSampling", "FrozenModel", "IcePop", "ModelRef", "RlLoss", "Sampling"]


def __getattr__(name: str) -> Any:
    if name == "load_toml":  # a run's file names algorithms and environments, which stand above this package
        return import_module("prl.toml").load_toml
    raise AttributeError(f"module 'prl.config' has no attribute {name!r}; it has {', '.join(__all__)} and load_toml.")
