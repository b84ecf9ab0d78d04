"""SFT, hard distillation: a frozen model writes the rollouts, the policy imitates its tokens."""

from typing import Any, ClassVar, Literal

import torch
from pydantic import model_validator

from prl.algorithms.parts import AlgorithmConfig
from prl.types import Group


class SFT(AlgorithmConfig):
    """Cross-entropy on every sampled token. Rewards play no part; the teacher is `sampling.source`.

    Source: algorithms page, "The Algorithms" (`sft`).
    """

    component: ClassVar[str] = "ce"
    type: Literal["sft"] = "sft"

    @model_validator(mode="after")
    def _teacher_is_frozen(self) -> "SFT":
        if self.sampling.source == "policy":
            raise ValueError(
                "SFT: got sampling.source='policy'; cross-entropy on the policy's own tokens is not a distillation "
                "target. Give the teacher as sampling.source, a table with name and base_url."
            )
        return self

    def score_group(self, group: Group, state: Any) -> tuple[Group, Any]:
        """ce weight 1.0 on every sampled token and no advantages."""
        return (group.assign(ce_weights=torch.ones(len(group.traces))) if group.traces else group), state
