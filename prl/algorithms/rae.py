"""RAE: reward minus a moving average of the same agent's rewards, for self-play."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from prl.advantages import RAEState, rae
from prl.algorithms.parts import AlgorithmConfig
from prl.types import Group


class RAE(AlgorithmConfig):
    """Role-conditioned credit; a group needs no siblings, so group_size may be 1.

    Each environment has a state of its own, so baselines are kept per (environment, agent).

    Source: SPIRAL, arXiv:2506.24119; algorithms page, "Self-Play Advantage (RAE)".
    """

    component: ClassVar[str] = "rl"
    type: Literal["rae"] = "rae"
    decay: float = Field(default=0.95, ge=0, lt=1)
    """Share of the old baseline that stays after a trace."""

    def init_state(self) -> RAEState:
        """Every agent's baseline at 0."""
        return RAEState()

    def score_group(self, group: Group, state: Any) -> tuple[Group, Any]:
        """Advantages against the baselines before each trace moves them, traces taken in order."""
        if not group.traces:
            return group, state
        advantages, after = rae(group.rewards, group.agents, state, decay=self.decay)
        return group.assign(advantages=advantages), after
