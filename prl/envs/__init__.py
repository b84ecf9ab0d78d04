"""Environments: problems that score themselves. The libraries behind them load when one is constructed."""

from prl.envs.base import Env
from prl.envs.reasoning_gym import ReasoningGym

__all__ = ["Env", "ReasoningGym"]
