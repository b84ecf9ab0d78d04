"""Task sampling and admission."""

from prl.curricula.curriculum import AdmissionGate, Curriculum, StandardSampler, TaskSampler

__all__ = ["AdmissionGate", "Curriculum", "StandardSampler", "TaskSampler"]
