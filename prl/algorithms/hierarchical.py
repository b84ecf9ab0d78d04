"""Hierarchical GRPO: solvers are compared within one proposed problem, proposers across the group."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from prl.advantages import hierarchical
from prl.algorithms.parts import AlgorithmConfig
from prl.types import Group


class HierarchicalGRPO(AlgorithmConfig):
    """GRPO for proposer-solver environments: each trace is compared with its own kind.

    Source: algorithms page, "Hierarchical GRPO".
    """

    component: ClassVar[str] = "rl"
    type: Literal["hierarchical_grpo"] = "hierarchical_grpo"
    episode_agents: tuple[str, ...] = Field(min_length=1)
    """The roles compared within one episode; every other role is compared across the group."""

    def score_group(self, group: Group, state: Any) -> tuple[Group, Any]:
        """Advantages on every trained token; a trace compared with nobody gets 0."""
        if not group.traces:
            return group, state
        own = self.episode_agents
        advantages = hierarchical(group.rewards, group.agents, group.episode_ids, episode_agents=own)
        return group.assign(advantages=advantages), state
