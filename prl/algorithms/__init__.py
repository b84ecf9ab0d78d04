"""Frozen configs with a pure `score_group`, one file per algorithm."""

from prl.algorithms.base import Algorithm, Models, Reference, as_algorithm, choose, references_of, source_of
from prl.algorithms.echo import Echo, EchoRole, EchoRoles
from prl.algorithms.grpo import GRPO
from prl.algorithms.hierarchical import HierarchicalGRPO
from prl.algorithms.max_rl import MaxRL
from prl.algorithms.opd import OPD
from prl.algorithms.opsd import OPSD
from prl.algorithms.parts import LinearPenalty, LinearSubagentPenalty, UserFunction, same_aggregation
from prl.algorithms.rae import RAE
from prl.algorithms.sft import SFT

__all__ = [
    "GRPO", "OPD", "OPSD", "RAE", "SFT", "Algorithm", "Echo", "EchoRole", "EchoRoles", "HierarchicalGRPO",
    "LinearPenalty", "LinearSubagentPenalty", "MaxRL", "Models", "Reference", "UserFunction", "as_algorithm",
    "choose", "references_of", "same_aggregation", "source_of",
]  # fmt: skip
