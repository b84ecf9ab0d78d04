"""GRPO: reward minus the group's baseline, spread over the tokens that the policy sampled."""

from typing import Any, ClassVar, Literal

from prl.algorithms.parts import GroupCredit
from prl.types import Group


class GRPO(GroupCredit):
    """Group-relative credit, the default algorithm.

    Source: algorithms page, "Default Advantage".
    """

    component: ClassVar[str] = "rl"
    type: Literal["grpo"] = "grpo"

    def score_group(self, group: Group, state: Any) -> tuple[Group, Any]:
        """Advantages on every trained token; a group without a valid trainable trace stays as it is."""
        return (group.assign(**self.credit(group)) if group.traces else group), state
