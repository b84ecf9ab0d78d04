"""MaxRL: group-relative credit divided by the group's mean reward."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prl.advantages.group_norm import group_norm
from prl.errors import DataError
from prl.ops import masked_mean


def max_rl(
    rewards: Float[Tensor, "*batch group"],
    *,
    valid: Bool[Tensor, "*batch group"] | None = None,
    all_fail: Literal["zero", "minus_one"] = "zero",
) -> Float[Tensor, "*batch group"]:
    """(r_i - mean(r)) / mean(r) over the rollouts of one prompt; zeros where mean(r) <= 0.

    For rewards of 0 and 1 with success rate p and N valid rollouts, the mean of
    A_i grad log pi(y_i) is an unbiased estimate of sum_{k<T} (1-p)^k grad p, the
    gradient of the order-T truncation of log p. T is N - 1 with "zero" and N with
    "minus_one". Other rewards lose this reading.

    Args:
      rewards: final reward of each rollout, meant to be >= 0.
      valid: rollouts that count. The others get 0 and never move the mean; their reward
        may be NaN.
      all_fail: credit of a group whose valid rewards are all exactly 0. "zero" drops it;
        "minus_one" keeps the baseline, so that each of its valid rollouts gets -1, also
        where there is only one (N = 1 is then plain policy gradient).

    Returns:
      Advantages in rollout order, unit-free. Equal rewards and a single rollout give
      exactly 0.0, but for the groups that "minus_one" is about. Other groups of mean
      <= 0 have no signal and get zeros, as do those whose rewards cancel: with negative
      rewards, a mean that is not above its own rounding error counts as 0.

    Raises:
      ValueError: the group is empty. A shape check, so safe under `vmap`.
      DataError: unknown `all_fail`.

    Source: MaxRL, arXiv:2602.02710; algorithms page, `max_rl`. The page gives order N for
    "zero"; summing over all groups gives N - 1.
    """
    if rewards.shape[-1] == 0:
        raise ValueError("max_rl: `rewards` is empty; a group has at least 1 rollout.")
    if all_fail not in ("zero", "minus_one"):
        raise DataError(f"max_rl: got all_fail={all_fail!r}; need 'zero' or 'minus_one'. The default is 'zero'.")
    if valid is None:
        valid = torch.ones_like(rewards, dtype=torch.bool)
    earned = torch.where(valid, rewards, 0.0)
    mean = masked_mean(earned, valid)
    # The error of a mean of n rewards is up to eps * n * mean|r|; rewards >= 0 never come near it.
    signal = mean > torch.finfo(rewards.dtype).eps * earned.abs().sum(-1, keepdim=True)
    advantages = torch.where(signal, group_norm(rewards, valid=valid) / torch.where(signal, mean, 1.0), 0.0)
    if all_fail == "zero":
        return advantages
    failed = (earned == 0).all(-1, keepdim=True)
    return torch.where(valid & failed, -1.0, advantages)
