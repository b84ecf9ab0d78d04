"""Rewards in, credit out; pure functions, one file per idea."""

from prl.advantages.group_norm import group_norm

__all__ = ["group_norm"]
