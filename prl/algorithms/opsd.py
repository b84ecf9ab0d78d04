"""OPSD, self-distillation: the policy is its own teacher, shown a demonstration first."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator

from prl.algorithms.base import Models, Reference
from prl.algorithms.parts import AlgorithmConfig
from prl.errors import DataError
from prl.types import Group, Task, TrainingSample

_SLOT = "{demonstration}"


class OPSD(AlgorithmConfig):
    """Per-token reverse KL to the live policy with a demonstration in front. Rewards play no part.

    The demonstration is task.info[demo_key], or the task's own field of that name (`answer`).
    It stands in a leading system message; the sample follows it token by token, so no join
    is tokenized anew.

    Source: SDFT, arXiv:2601.19897; algorithms page, "Reference Scoring". The paper's wording
    stands in the user message, its teacher is a moving average and its KL is over the whole vocabulary.
    """

    component: ClassVar[str] = "ref_kl"
    type: Literal["opsd"] = "opsd"
    demo_key: str = Field(default="demonstration", min_length=1)
    """Where a task keeps its demonstration."""
    template: str = (
        f"This is an example for a response to the question:\n{_SLOT}\n\n"
        "Now answer with a response of your own, including the thinking process."
    )
    """The system message; {demonstration} is replaced, other braces stay."""
    renderer: str = "auto"
    """The renderer of the system message: "auto" is the policy's, another name is a family of `prl.renderers`."""

    @field_validator("template")
    @classmethod
    def _has_a_place_for_it(cls, template: str) -> str:
        if _SLOT not in template:
            raise ValueError(
                f"OPSD: got template={template!r}, which does not hold {_SLOT}; without the demonstration the policy "
                "would be its own teacher and learn nothing."
            )
        return template

    @property
    def references(self) -> Mapping[str, Reference]:
        """`ref_logprobs`: the sample after the demonstration, under the live policy."""
        return {"ref_logprobs": self._demonstrated_logprobs}

    async def _demonstrated_logprobs(self, sample: TrainingSample, models: Models) -> np.ndarray:
        hint = self._hint(models)
        scored = await models.score("policy", np.concatenate([hint, sample.token_ids]))
        return scored[len(hint) :]

    def _hint(self, models: Models) -> np.ndarray:
        """Token ids of the system message."""
        from prl.renderers import create

        renderer = models.renderer if self.renderer == "auto" else create(models.tokenizer, self.renderer)
        said = self.template.replace(_SLOT, demonstration(models.task, self.demo_key))
        return np.asarray(renderer.render([{"role": "system", "content": said}]).token_ids, np.int32)

    def score_group(self, group: Group, state: Any) -> tuple[Group, Any]:
        """ref_kl weight 1.0 on every trained token and no advantages."""
        return (group.assign(ref_kl_weights=torch.ones(len(group.traces))) if group.traces else group), state


def demonstration(task: Task, key: str) -> str:
    """task.info[key], else the task's own field of that name.

    Raises:
      DataError: neither is there, or it is not text.
    """
    fields = {f.name: getattr(task, f.name) for f in dataclasses.fields(task) if f.name != "info"}
    found = task.info[key] if key in task.info else fields.get(key)
    if isinstance(found, str):
        return found
    got = "nothing" if found is None else f"a {type(found).__name__}"
    raise DataError(
        f"OPSD, task {task.key!r}: got {got} under demo_key={key!r}; need the text of a demonstration. Its info holds "
        f"{', '.join(map(repr, task.info)) or 'no key'}; its own fields are {', '.join(fields)}."
    )
