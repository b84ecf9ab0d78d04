"""Group-relative credit: reward minus the group's baseline."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prl.ops import masked_mean


def group_norm(
    rewards: Float[Tensor, "*batch group"],
    lengths: Float[Tensor, "*batch group"] | None = None,
    *,
    valid: Bool[Tensor, "*batch group"] | None = None,
    std: bool = False,
) -> Float[Tensor, "*batch group"]:
    """r_i - b over the rollouts of one prompt, b = mean(r), or sum(L r) / sum(L) with `lengths`.

    Args:
      rewards: final reward of each rollout.
      lengths: L, trained tokens of each rollout; makes the credit zero-mean over tokens.
      valid: rollouts that count. The others get 0 and never move the baseline; their
        reward may be NaN.
      std: also divide by the population standard deviation; 0 where that is 0.

    Returns:
      Advantages in rollout order, in units of reward (unit-free with `std`). Equal
      rewards, a single rollout, and a group with no valid rollout give exactly 0.0.

    Raises:
      ValueError: the group is empty. A shape check, so safe under `vmap`.

    Source: algorithms page, "Default Advantage"; Dr. GRPO, arXiv:2503.20783. `std`: GRPO, arXiv:2402.03300.
    """
    if rewards.shape[-1] == 0:
        raise ValueError("group_norm: `rewards` is empty; a group has at least 1 rollout.")
    if valid is None:
        valid = torch.ones_like(rewards, dtype=torch.bool)
    # Equal rewards must cancel exactly, which r - mean(r) does not do in float32; r - pivot does.
    pivot = rewards.gather(-1, valid.int().argmax(-1, keepdim=True))
    moved = torch.where(valid, rewards - pivot, 0.0)
    weights = valid if lengths is None else torch.where(valid, lengths, 0.0)
    advantages = torch.where(valid, moved - masked_mean(moved, weights), 0.0)
    if not std:
        return advantages
    deviation = moved - masked_mean(moved, valid)
    variance = masked_mean(deviation.square(), valid)
    safe = torch.where(variance > 0, variance, 1.0).sqrt()  # the inner where keeps sqrt'(0) = inf out of the gradient
    return torch.where(variance > 0, advantages / safe, 0.0)
