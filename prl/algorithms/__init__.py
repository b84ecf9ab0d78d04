"""Frozen configs with a pure `score_group`, one file per algorithm."""

from prl.algorithms.base import Algorithm, Models, Reference, as_algorithm, choose, references_of, source_of
from prl.algorithms.grpo import GRPO

__all__ = ["GRPO", "Algorithm", "Models", "Reference", "as_algorithm", "choose", "references_of", "source_of"]
