"""MaxRL: group-relative credit divided by the group's mean reward."""

from typing import Any, ClassVar, Literal

from prl.advantages import max_rl
from prl.algorithms.parts import AlgorithmConfig
from prl.types import Group


class MaxRL(AlgorithmConfig):
    """Mean-normalized group credit, for rewards >= 0. The formula and its edges are those of `prl.advantages.max_rl`.

    Source: MaxRL, arXiv:2602.02710; algorithms page, `max_rl`.
    """

    component: ClassVar[str] = "rl"
    type: Literal["max_rl"] = "max_rl"

    def score_group(self, group: Group, state: Any) -> tuple[Group, Any]:
        """Advantages on every trained token; a group without a valid trainable trace stays as it is."""
        return (group.assign(advantages=max_rl(group.rewards)) if group.traces else group), state
