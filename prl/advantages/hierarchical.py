"""Hierarchical GRPO: each role is compared with its own kind, some of them within one episode only."""

from collections.abc import Collection, Hashable, Sequence

from jaxtyping import Float
from torch import Tensor

from prl.advantages.group_norm import group_norm
from prl.advantages.streams import by_group
from prl.errors import DataError


def hierarchical(
    rewards: Float[Tensor, " traces"],
    agents: Sequence[str],
    episodes: Sequence[Hashable],
    *,
    episode_agents: Collection[str],
) -> Float[Tensor, " traces"]:
    """r_i minus the mean reward of the comparable traces of one group.

    A role in `episode_agents` is compared within its episode (solvers of one proposed
    problem), any other role across the group (the proposers).

    Args:
      rewards: final reward of each trace.
      agents: role of each trace.
      episodes: id of each trace's episode.
      episode_agents: the roles compared within an episode.

    Returns:
      Advantages in trace order, in units of reward. A trace compared with nobody gets 0.

    Raises:
      ValueError: no traces.
      DataError: lengths differ; `episode_agents` is a bare string, or names a role that no
        trace has. A group of a single role passes whatever the names: the others may
        all have failed, or not be trained.

    Source: algorithms page, "Hierarchical GRPO".
    """
    if isinstance(episode_agents, str):
        raise DataError(f"hierarchical: episode_agents is the string {episode_agents!r}; need a list of role names.")
    if not len(rewards) == len(agents) == len(episodes):
        raise DataError(
            f"hierarchical: {len(rewards)} rewards, {len(agents)} agents and {len(episodes)} episodes; "
            "need one of each per trace."
        )
    if len(rewards) == 0:
        raise ValueError("hierarchical: `rewards` is empty; need at least 1 trace.")
    roles = sorted(set(agents))
    if (unknown := sorted(set(episode_agents) - set(agents))) and len(roles) > 1:
        raise DataError(
            f"hierarchical: episode_agents names {', '.join(map(repr, unknown))}; the traces are of "
            f"{', '.join(map(repr, roles))}. A misspelt role would be compared across problems; correct the name."
        )
    compared = [(a, e) if a in episode_agents else (a,) for a, e in zip(agents, episodes, strict=True)]
    return by_group(group_norm, compared, rewards)
