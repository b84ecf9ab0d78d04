"""Rewards in, credit out; pure functions, one file per idea."""

from prl.advantages.group_norm import group_norm
from prl.advantages.hierarchical import hierarchical
from prl.advantages.length_penalty import linear_length_penalty
from prl.advantages.max_rl import max_rl
from prl.advantages.prompt_mean import prompt_mean_weights
from prl.advantages.rae import RAEState, rae
from prl.advantages.streams import by_group, spread

__all__ = [
    "RAEState", "by_group", "group_norm", "hierarchical", "linear_length_penalty", "max_rl", "prompt_mean_weights",
    "rae", "spread",
]  # fmt: skip
