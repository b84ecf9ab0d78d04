"""Task sampling and admission."""

from prl.curricula.curriculum import AdmissionGate, Curriculum, StandardSampler, TaskSampler
from prl.curricula.gates import AdvRangeGate
from prl.curricula.samplers import DifficultyPoolSampler, Pool

__all__ = [
    "AdmissionGate", "AdvRangeGate", "Curriculum", "DifficultyPoolSampler", "Pool", "StandardSampler", "TaskSampler",
]  # fmt: skip
