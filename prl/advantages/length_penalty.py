"""The linear length penalty: rewards shaped before the baseline is taken."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prl.ops import masked_mean


def linear_length_penalty(
    rewards: Float[Tensor, "*batch group"],
    output_tokens: Float[Tensor, "*batch group"],
    input_tokens: Float[Tensor, "*batch group"],
    turns: Float[Tensor, "*batch group"],
    *,
    valid: Bool[Tensor, "*batch group"] | None = None,
    num_output_tokens_weight: float = 0.25,
    num_input_tokens_weight: float = 0.1,
    num_turns_weight: float = 0.1,
) -> Float[Tensor, "*batch group"]:
    """r_i - max(mean(r), 0) * sum_q w_q q_i / max(q), q over output tokens, input tokens and turns.

    Scaled by the pass rate: a prompt that nobody solves is not made shorter, and a
    negative mean never pays for length. Give the result to `group_norm`: its baseline
    is that of the shaped rewards.

    Args:
      rewards: final reward of each rollout.
      output_tokens, input_tokens, turns: of each rollout, >= 0; with sub-agents weighed
        by `trajectories.token_counts` this is the linear-subagent penalty.
      valid: rollouts that count. The others get 0 and move neither mean nor maxima;
        their reward and counts may be anything.
      num_output_tokens_weight, num_input_tokens_weight, num_turns_weight: w_q.

    Returns:
      Shaped rewards in rollout order, in units of reward. A quantity whose maximum is 0
      adds nothing.

    Raises:
      ValueError: the group is empty. A shape check, so safe under `vmap`.

    Source: algorithms page, "Default Advantage" (length penalty).
    """
    if rewards.shape[-1] == 0:
        raise ValueError("linear_length_penalty: `rewards` is empty; a group has at least 1 rollout.")
    if valid is None:
        valid = torch.ones_like(rewards, dtype=torch.bool)
    pass_rate = masked_mean(torch.where(valid, rewards, 0.0), valid).clamp(min=0)
    penalty = (
        num_output_tokens_weight * _share(output_tokens, valid)
        + num_input_tokens_weight * _share(input_tokens, valid)
        + num_turns_weight * _share(turns, valid)
    )
    return torch.where(valid, rewards - pass_rate * penalty, 0.0)


def _share(
    quantity: Float[Tensor, "*batch group"], valid: Bool[Tensor, "*batch group"]
) -> Float[Tensor, "*batch group"]:
    """The quantity over its largest valid value; 0 where that is 0."""
    quantity = torch.where(valid, quantity, 0.0)
    largest = quantity.amax(-1, keepdim=True)
    return quantity / torch.where(largest > 0, largest, 1.0)
