"""Prompt-mean loss aggregation: every prompt weighs the same, whatever the length of its rollouts."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def prompt_mean_weights(
    lengths: Float[Tensor, "*batch group"], *, valid: Bool[Tensor, "*batch group"] | None = None
) -> Float[Tensor, "*batch group"]:
    """1 / T_q, T_q = sum of the valid lengths: the rl weight of each trained token of the group.

    The weights of a group's tokens sum to 1, so N_rl is the number of groups. A token
    that leaves rl (zero advantage) takes its weight along; the rest is not rescaled.

    Args:
      lengths: trained tokens of each rollout, over all its samples.
      valid: rollouts that count. The others get 0; their length may be anything.

    Returns:
      One number per rollout, the same for all valid ones, in 1/tokens; 0 where T_q is 0.

    Raises:
      ValueError: the group is empty. A shape check, so safe under `vmap`.

    Source: algorithms page, "Prompt-mean loss aggregation" (MiMo-V2.6, Eq. 1).
    """
    if lengths.shape[-1] == 0:
        raise ValueError("prompt_mean_weights: `lengths` is empty; a group has at least 1 rollout.")
    if valid is None:
        valid = torch.ones_like(lengths, dtype=torch.bool)
    total = torch.where(valid, lengths, 0.0).sum(-1, keepdim=True)
    return (valid & (total > 0)) / torch.where(total > 0, total, 1.0)
