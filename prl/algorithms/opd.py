"""OPD, on-policy distillation: the policy samples, a frozen teacher says how likely it finds each token."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import field_validator

from prl.algorithms.base import Models, Reference
from prl.algorithms.parts import AlgorithmConfig
from prl.config import FrozenModel
from prl.types import Group, TrainingSample


class OPD(AlgorithmConfig):
    """Per-token reverse KL to a frozen teacher, which must share the policy's tokenizer. Rewards play no part.

    Source: Thinking Machines, "On-Policy Distillation"; algorithms page, "Reference Scoring".
    """

    component: ClassVar[str] = "ref_kl"
    type: Literal["opd"] = "opd"
    teacher: FrozenModel
    """The model whose log-probabilities the policy moves toward, a vLLM server: only it scores prompts."""

    @field_validator("teacher", mode="before")
    @classmethod
    def _is_not_the_policy(cls, teacher: Any) -> Any:
        if teacher == "policy":
            raise ValueError(
                "OPD: got teacher='policy'; against itself the KL is zero on every token. Give a frozen model, a table "
                "with name and base_url, or use 'opsd', in which the policy sees a demonstration."
            )
        return teacher

    @property
    def references(self) -> Mapping[str, Reference]:
        """`ref_logprobs`: the sample in its own context under the teacher."""
        return {"ref_logprobs": self._teacher_logprobs}

    async def _teacher_logprobs(self, sample: TrainingSample, models: Models) -> np.ndarray:
        return await models.score(self.teacher, sample.token_ids)

    def score_group(self, group: Group, state: Any) -> tuple[Group, Any]:
        """ref_kl weight 1.0 on every trained token and no advantages."""
        return (group.assign(ref_kl_weights=torch.ones(len(group.traces))) if group.traces else group), state
