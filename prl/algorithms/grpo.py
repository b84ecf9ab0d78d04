"""GRPO: reward minus the group's mean, spread over the tokens that the policy sampled."""

from typing import Any, ClassVar, Literal

from prl.advantages import group_norm
from prl.config.base import Frozen
from prl.types import Group


class GRPO(Frozen):
    """Group-relative credit, the default algorithm.

    Source: algorithms page, "Default Advantage".
    """

    component: ClassVar[str] = "rl"
    type: Literal["grpo"] = "grpo"
    length_weighted_baseline: bool = False
    """Weigh the baseline by trained tokens, so that credit is zero-mean over the group's tokens."""

    def init_state(self) -> Any:
        """GRPO has no memory."""
        return {}

    def score_group(self, group: Group, state: Any) -> tuple[Group, Any]:
        """Advantages on every trained token; a group without a valid trainable trace stays as it is."""
        if not group.traces:
            return group, state
        lengths = group.lengths if self.length_weighted_baseline else None
        return group.assign(advantages=group_norm(group.rewards, lengths)), state
