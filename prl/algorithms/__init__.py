"""Frozen configs with a pure `score_group`, one file per algorithm."""

from prl.algorithms.base import Algorithm, as_algorithm, choose
from prl.algorithms.grpo import GRPO

__all__ = ["GRPO", "Algorithm", "as_algorithm", "choose"]
