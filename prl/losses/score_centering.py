"""IcePop with score centering: the part of the update that carries no reward signal is taken out."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prl.errors import DataError
from prl.losses.icepop import icepop
from prl.losses.ratios import attached, in_band, pair, same_shape, select
from prl.types import TokenLoss


def icepop_centered(
    trainer_logprobs: Float[Tensor, "*tokens"],
    inference_logprobs: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    topk_trainer_logprobs: Float[Tensor, "*tokens topk"],
    topk_inference_logprobs: Float[Tensor, "*tokens topk"],
    *,
    mask: Bool[Tensor, "*tokens"] | None = None,
    ratio_low: float = 0.2,
    ratio_high: float = 5.0,
    adv_tau: float = 1.0,
    tail_floor: float = 1e-6,
) -> TokenLoss:
    """icepop + adv_tau * A * sum_{v in head} sg(c_v) log p_v, c_v = p_v (1[v accepted] - 1[tail accepted]); unreduced.

    With p the trainer, q the sampler and w_v = p_v/q_v inside the band, else 0, the gradient is
    that of -A (w_a log p_a - sum_v q_v w_v log p_v) over the whole vocabulary, w and q w held
    fixed: a constant A moves nothing in expectation. sum_v p_v grad log p_v = 0 leaves the head.

    Args:
      trainer_logprobs, inference_logprobs, advantages, mask, ratio_low, ratio_high, adv_tau: as for `icepop`.
      topk_trainer_logprobs: log p of the head's tokens, in nats, with gradient; same order as the next.
      topk_inference_logprobs: log q of the sampler's most likely tokens, full-vocabulary
        normalised and chosen whatever was sampled; -inf where there is no entry.
      tail_floor: least mass of either tail. All tokens outside the head have one ratio,
        (1 - P_head) / (1 - Q_head), and are accepted or rejected together.

    Returns:
      TokenLoss. `kept` is icepop's; the correction also acts on rejected tokens. Metrics
      `score_centering/head_mass` is Q_head, `score_centering/tail_scale` is Q_tail / P_tail, and
      `score_centering/logit_correction_l1` = 2 P (1 - P), P the accepted trainer mass, is the L1
      norm of the correction's logit gradient before the advantage.

    Raises:
      DataError: streams of unequal shape.

    Source: algorithms page, "IcePop with Score Centering"; arXiv:2609.20807.
    """
    _same_head(trainer_logprobs, topk_trainer_logprobs, topk_inference_logprobs)
    band = {"ratio_low": ratio_low, "ratio_high": ratio_high}
    uncentred = icepop(trainer_logprobs, inference_logprobs, advantages, mask=mask, adv_tau=adv_tau, **band)
    inside = None if mask is None else mask.unsqueeze(-1).expand(topk_trainer_logprobs.shape)
    p_logs, p, q, accepted = _head(
        select(topk_trainer_logprobs, inside), select(topk_inference_logprobs, inside), **band
    )
    q_tail, p_tail = ((1 - mass.sum(-1)).clamp(min=tail_floor) for mass in (q, p))
    tail_accepted = in_band(p_tail.log(), q_tail.log(), ratio_low, ratio_high)
    weights = p * (accepted.to(p.dtype) - tail_accepted.to(p.dtype).unsqueeze(-1))
    correction = adv_tau * select(advantages, mask) * attached(weights, p_logs).sum(-1)
    share = torch.where(accepted == tail_accepted.unsqueeze(-1), 0.0, p).sum(-1)  # P, or 1 - P
    metrics = {
        "head_mass": q.sum(-1),
        "tail_scale": q_tail / p_tail,
        "logit_correction_l1": 2 * share * (1 - share),
    }
    metrics = {f"score_centering/{name}": select(value, mask) for name, value in metrics.items()}
    return TokenLoss(uncentred.per_token + correction, uncentred.kept, {**uncentred.metrics, **metrics})


def _head(
    trainer: Tensor, inference: Tensor, ratio_low: float, ratio_high: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(log p with its gradient, p, q, accepted) of the captured tokens; 0.0 where p is 0 or there is no entry."""
    p_logs, q_logs, live = pair(trainer, inference, None)
    captured = inference.isfinite()
    q = torch.where(captured, torch.where(captured, inference, 0.0).detach().exp(), 0.0)
    p = torch.where(live, p_logs.detach().exp(), 0.0)
    return p_logs, p, q, live & in_band(p_logs, q_logs, ratio_low, ratio_high)


def _same_head(trainer_logprobs: Tensor, topk_trainer_logprobs: Tensor, topk_inference_logprobs: Tensor) -> None:
    """The heads are [*tokens, topk], alike, over the tokens of the other streams."""
    same_shape(
        "icepop_centered",
        topk_trainer_logprobs=topk_trainer_logprobs,
        topk_inference_logprobs=topk_inference_logprobs,
    )
    if topk_trainer_logprobs.shape[:-1] != trainer_logprobs.shape:
        raise DataError(
            f"icepop_centered: topk_trainer_logprobs has shape {list(topk_trainer_logprobs.shape)}, trainer_logprobs "
            f"{list(trainer_logprobs.shape)}; need one head per token, {[*trainer_logprobs.shape, 'topk']}."
        )
