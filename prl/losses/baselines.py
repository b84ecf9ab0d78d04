"""Policy-gradient losses of other papers, in the form of `ipo`, to compare with."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prl.losses.ratios import kept_ratio, pair, probability_move, same_shape
from prl.ops import masked_mean
from prl.types import TokenLoss


def ppo_clip(
    trainer_logprobs: Float[Tensor, "*tokens"],
    inference_logprobs: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    *,
    mask: Bool[Tensor, "*tokens"] | None = None,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    max_ratio: float = 1e4,
) -> TokenLoss:
    """-min(r A, clip(r, 1 - eps_low, 1 + eps_high) A) per token, r = pi/mu, unreduced.

    One ratio, to the policy that sampled: no old trainer policy stands between. Streams
    and `mask` as in `ipo`.

    Args:
      eps_low, eps_high: a token of A > 0 above 1 + eps_high, or of A < 0 below 1 - eps_low,
        is cut. An eps_low of 1 or more cuts nothing.
      max_ratio: r is unbounded where A < 0; a ratio above it enters as max_ratio, in value
        and in gradient, and is counted in the metric `clamped`.

    Returns:
      TokenLoss. A cut token is not kept: gradient exactly 0, and the loss of the bound,
      which is no 0. A log-probability that is not finite gives exactly 0 loss and 0 gradient.

    Raises:
      DataError: streams of unequal shape.

    Source: PPO, arXiv:1707.06347; eps_high > eps_low: DAPO, arXiv:2503.14476.
    """
    _same_shape("ppo_clip", trainer_logprobs, inference_logprobs, advantages, mask)
    trainer, inference, live = pair(trainer_logprobs, inference_logprobs, mask)
    log_ratio, credit = trainer - inference, torch.where(live, advantages, 0.0)
    kept, bound = _pessimistic(log_ratio, credit, eps_low, eps_high)
    kept = kept & live
    ratio, clamped = kept_ratio(log_ratio, trainer, kept, max_ratio)
    return TokenLoss(-credit * torch.where(kept, ratio, bound), kept, {"clamped": clamped})


def gspo(
    trainer_logprobs: Float[Tensor, "*batch seq"],
    inference_logprobs: Float[Tensor, "*batch seq"],
    advantages: Float[Tensor, "*batch seq"],
    *,
    mask: Bool[Tensor, "*batch seq"] | None = None,
    eps_low: float = 3e-4,
    eps_high: float = 4e-4,
    max_ratio: float = 1e4,
) -> TokenLoss:
    """-min(s_t A_t, clip(s_t, 1 - eps_low, 1 + eps_high) A_t), s_t = sg(s) pi_t / sg(pi_t), s = (pi(y)/mu(y))^(1/|y|).

    The last axis is one sequence; |y| counts its tokens in `mask`. Every token has the value of
    its sequence, so a sum over tokens weighs a sequence by its length. For equal A in a sequence
    sum_t per_token / |y| is the paper's -min(s A, clip(s) A), in value and in gradient; weights of
    1/|y| and N = number of sequences are its mean over sequences, weights of 1 a mean over tokens.

    Args:
      eps_low, eps_high, max_ratio: as in `ppo_clip`, on s; a cut sequence is cut whole where
        its A has one sign.

    Returns:
      TokenLoss. Not separable by token: it needs whole sequences, and a Runner that is given
      this function, or a partial of it, hands it one sample in a row. A log-probability that
      is not finite takes its whole sequence out, with exactly 0 loss and 0 gradient.

    Raises:
      DataError: streams of unequal shape.

    Source: GSPO, arXiv:2507.18071, in its form per token.
    """
    _same_shape("gspo", trainer_logprobs, inference_logprobs, advantages, mask)
    trainer, inference, live = pair(trainer_logprobs, inference_logprobs, mask)
    wanted = torch.ones_like(live) if mask is None else mask
    live = live & (live == wanted).all(-1, keepdim=True)
    log_ratio = masked_mean(trainer.detach() - inference, live).expand_as(trainer)
    credit = torch.where(live, advantages, 0.0)
    kept, bound = _pessimistic(log_ratio, credit, eps_low, eps_high)
    kept = kept & live
    ratio, clamped = kept_ratio(log_ratio, trainer, kept, max_ratio)
    return TokenLoss(-credit * torch.where(kept, ratio, bound), kept, {"clamped": clamped})


def cispo(
    trainer_logprobs: Float[Tensor, "*tokens"],
    inference_logprobs: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    *,
    mask: Bool[Tensor, "*tokens"] | None = None,
    eps_low: float | None = None,
    eps_high: float = 0.28,
) -> TokenLoss:
    """-sg(clip(pi/mu, 1 - eps_low, 1 + eps_high)) * A * log pi per token, unreduced. Streams and `mask` as in `ipo`.

    Args:
      eps_low: None is no lower bound.

    Returns:
      TokenLoss. A clipped token keeps a gradient, so it is kept; the metric `clipped` marks it.
      A log-probability that is not finite gives exactly 0 loss and 0 gradient, and is not kept.

    Raises:
      DataError: streams of unequal shape.

    Source: CISPO of MiniMax-M1, arXiv:2506.13585.
    """
    _same_shape("cispo", trainer_logprobs, inference_logprobs, advantages, mask)
    low = 0.0 if eps_low is None else 1 - eps_low
    return _weighted_likelihood(trainer_logprobs, inference_logprobs, advantages, mask, low, 1 + eps_high)


def tis(
    trainer_logprobs: Float[Tensor, "*tokens"],
    inference_logprobs: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    *,
    mask: Bool[Tensor, "*tokens"] | None = None,
    cap: float = 2.0,
) -> TokenLoss:
    """-sg(min(pi/mu, cap)) * A * log pi per token, unreduced: truncated importance sampling.

    Streams and `mask` as in `ipo`. With probabilities q of the sampler, the expected weight on f is off
    by -E_q[(pi/mu - cap) f 1{pi/mu > cap}]; an infinite cap is exact, and its weights may overflow.

    Returns:
      As `cispo`: truncated tokens are kept and marked in the metric `clipped`.

    Raises:
      DataError: streams of unequal shape.

    Source: truncated importance sampling for a rollout engine that differs from the trainer (Yao et al., 2025).
    """
    _same_shape("tis", trainer_logprobs, inference_logprobs, advantages, mask)
    return _weighted_likelihood(trainer_logprobs, inference_logprobs, advantages, mask, 0.0, cap)


def dppo(
    trainer_logprobs: Float[Tensor, "*tokens"],
    inference_logprobs: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    *,
    mask: Bool[Tensor, "*tokens"] | None = None,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    max_ratio: float = 1e4,
) -> TokenLoss:
    """-1[kept] * A * pi/mu per token, unreduced. Streams, `mask` and max_ratio as in `ipo`.

    kept: pi - mu <= eps_high where A > 0, pi - mu >= -eps_low where A <= 0. A move against
    the advantage is never dropped, which is where it differs from `ipo`.

    Returns:
      TokenLoss with the metric `clamped`. A dropped token has exactly 0 loss and 0 gradient;
      so has one whose log-probability is not finite.

    Raises:
      DataError: streams of unequal shape.

    Source: DPPO with the binary total variation, arXiv:2602.04879.
    """
    _same_shape("dppo", trainer_logprobs, inference_logprobs, advantages, mask)
    trainer, inference, live = pair(trainer_logprobs, inference_logprobs, mask)
    move = probability_move(trainer, inference)
    kept = live & torch.where(advantages > 0, move <= eps_high, move >= -eps_low)
    ratio, clamped = kept_ratio(trainer - inference, trainer, kept, max_ratio)
    return TokenLoss(-torch.where(kept, advantages, 0.0) * ratio, kept, {"clamped": clamped})


def _same_shape(where: str, trainer: Tensor, inference: Tensor, advantages: Tensor, mask: Tensor | None) -> None:
    streams = {"inference_logprobs": inference, "advantages": advantages, "mask": mask}
    same_shape(where, trainer_logprobs=trainer, **streams)


def _pessimistic(log_ratio: Tensor, credit: Tensor, eps_low: float, eps_high: float) -> tuple[Tensor, Tensor]:
    """(where min(r A, clip(r) A) is r A, the clipped ratio that stands in elsewhere), without gradient."""
    ratio = log_ratio.detach().exp()  # may be inf, which is compared and clamped and never multiplied
    cut = ((credit > 0) & (ratio > 1 + eps_high)) | ((credit < 0) & (ratio < 1 - eps_low))
    return ~cut, ratio.clamp(1 - eps_low, 1 + eps_high)


def _weighted_likelihood(
    trainer: Tensor, inference: Tensor, advantages: Tensor, mask: Tensor | None, low: float, high: float
) -> TokenLoss:
    trainer, inference, live = pair(trainer, inference, mask)
    ratio = (trainer.detach() - inference).exp()
    weight = ratio.clamp(low, high)  # takes an overflow back, as it has no gradient
    per_token = -torch.where(live, advantages, 0.0) * weight * trainer
    return TokenLoss(per_token, live, {"clipped": (live & (ratio != weight)).to(per_token.dtype)})
