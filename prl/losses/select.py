"""From a setting or a user's function to the three components of one step's loss."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from prl.config import IPO, IcePop
from prl.errors import ConfigError, DataError
from prl.losses.baselines import gspo
from prl.losses.ce import ce
from prl.losses.icepop import icepop
from prl.losses.ipo import ipo
from prl.losses.ratios import mismatch_kl
from prl.losses.ref_kl import ref_kl
from prl.losses.score_centering import icepop_centered
from prl.types import LossInputs, LossOutputs, TokenLoss

Loss = IPO | IcePop | Callable[..., Any]
Streams = Mapping[str, Tensor]
"""Flat streams [tokens] of the trained tokens, by their names in `Rows`, with `sample` and `token` as indices."""


def rl_loss(loss: Loss) -> Callable[[Tensor, Streams], TokenLoss]:
    """A function of (trainer_logprobs, streams) for a config, a function of three streams, or a page-style loss.

    Three required positionals: trainer_logprobs, inference_logprobs, advantages ->
    TokenLoss, called on all tokens at once (`gspo` on one sequence in a row). One:
    LossInputs -> LossOutputs, called once per sequence.

    Raises:
      ConfigError: any other number of required positionals.
    """
    match loss:
        case IPO(eps=eps, adv_tau=adv_tau):
            return _token_wise(partial(ipo, eps=eps, adv_tau=adv_tau))
        case IcePop(ratio_low=low, ratio_high=high, adv_tau=adv_tau, score_centering=True):
            return partial(_centered, partial(icepop_centered, ratio_low=low, ratio_high=high, adv_tau=adv_tau))
        case IcePop(ratio_low=low, ratio_high=high, adv_tau=adv_tau):
            return _token_wise(partial(icepop, ratio_low=low, ratio_high=high, adv_tau=adv_tau))
    if not callable(loss):
        raise ConfigError(f"loss: got {loss!r}; need a loss config such as IPO(), or a function.")
    match _required_positionals(loss):
        case 3 if _innermost(loss) is gspo:
            return partial(_row_per_sequence, loss)
        case 3:
            return _token_wise(loss)
        case 1:
            return partial(_sequence_wise, loss)
        case n:
            raise ConfigError(
                f"loss {getattr(loss, '__name__', loss)!r}: has {n} required positional arguments; need 3 "
                "(trainer_logprobs, inference_logprobs, advantages) -> TokenLoss, or 1 (LossInputs) -> LossOutputs."
            )


def checked(loss: Loss) -> Loss:
    """The loss as given, once `rl_loss` takes it."""
    rl_loss(loss)
    return loss


def sequence_means(loss: Loss, rl: TokenLoss, weights: Tensor, sample: Tensor) -> dict[str, Tensor]:
    """A page-style loss's own metrics, averaged over sequences and not over tokens; empty for every other loss.

    Args:
      rl: the component over flat tokens of the whole batch, `weights` and `sample` beside it.

    Source: algorithms page, "Custom Loss".
    """
    members = weights != 0
    if not page_style(loss) or not members.any():
        return {}
    owner, size = sample[members].unique(return_inverse=True, return_counts=True)[1:]
    own = {name: stream[members] for name, stream in rl.metrics.items() if name != "mismatch_kl"}
    return {f"rl/{name}": (stream / size[owner]).sum() / len(size) for name, stream in own.items()}


def page_style(loss: Loss) -> bool:
    """Whether the loss is a function LossInputs -> LossOutputs, called once per sequence."""
    return callable(loss) and _required_positionals(loss) == 1


def _required_positionals(loss: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in inspect.signature(loss).parameters.values())


def component_losses(loss: Loss, logprobs: Tensor, streams: Streams) -> dict[str, TokenLoss]:
    """The unreduced rl, ce and ref_kl losses of flat tokens; exactly 0 where a component has no weight.

    Each component sees its own members only, so nothing else can reach it. The rl metrics
    gain `mismatch_kl`, over all rl members, dropped ones included.
    """
    rl = rl_loss(loss)

    def with_mismatch(lp: Tensor, s: Streams) -> TokenLoss:
        out = rl(lp, s)
        return out._replace(metrics={**out.metrics, "mismatch_kl": mismatch_kl(lp, s["inference_logprobs"])})

    parts: dict[str, Callable[[Tensor, Streams], TokenLoss]] = {
        "rl": with_mismatch,
        "ce": lambda lp, _: ce(lp),
        "ref_kl": lambda lp, s: ref_kl(lp, s["inference_logprobs"], s["ref_logprobs"]),
    }
    return {name: _on_members(fn, streams[f"{name}_weights"] != 0, logprobs, streams) for name, fn in parts.items()}


def _innermost(fn: Any) -> Any:
    return _innermost(fn.func) if isinstance(fn, partial) else fn


def _token_wise(fn: Callable[..., Any]) -> Callable[[Tensor, Streams], TokenLoss]:
    def call(logprobs: Tensor, streams: Streams) -> TokenLoss:
        out = fn(logprobs, streams["inference_logprobs"], streams["advantages"])
        if wrong := _not_token_wise(out, logprobs.shape):
            raise DataError(
                f"loss {getattr(fn, '__name__', fn)!r}: returned {wrong}; need TokenLoss(per_token, kept, metrics) of "
                f"shape {list(logprobs.shape)}, unreduced: weights and 1/N are applied after it."
            )
        return out

    return call


def _centered(fn: Callable[..., TokenLoss], logprobs: Tensor, streams: Streams) -> TokenLoss:
    missing = "topk_inference_logprobs" not in streams
    without = torch.ones_like(logprobs) if missing else streams["topk_inference_logprobs"].isnan().any(-1)
    if len(bad := without.nonzero()):
        raise MissingHead(int(streams["sample"][bad[0]]), int(streams["token"][bad[0]]))
    heads = (streams["topk_trainer_logprobs"], streams["topk_inference_logprobs"])
    return fn(logprobs, streams["inference_logprobs"], streams["advantages"], *heads)


class MissingHead(DataError):
    """A token of a centred loss came without the sampler's candidates; `sample` indexes `Batch.samples`."""

    def __init__(self, sample: int, token: int) -> None:
        super().__init__(f"score centering: token {token} of sample {sample} has no top-k log-probabilities.")
        self.sample, self.token = sample, token


def _not_token_wise(out: Any, shape: torch.Size) -> str | None:
    if not isinstance(out, TokenLoss):
        return type(out).__name__
    streams = {"per_token": out.per_token, "kept": out.kept, **out.metrics}
    return next((f"{name} of shape {list(s.shape)}" for name, s in streams.items() if s.shape != shape), None)


def _row_per_sequence(fn: Callable[..., TokenLoss], logprobs: Tensor, streams: Streams) -> TokenLoss:
    """`fn` over [sequence, longest] with a mask, its streams flat again."""
    index = [(streams["sample"] == i).nonzero().squeeze(-1) for i in streams["sample"].unique().tolist()]
    flat = (logprobs, streams["inference_logprobs"], streams["advantages"])
    rows = [pad_sequence([stream[at] for at in index], batch_first=True) for stream in flat]
    mask = pad_sequence([torch.ones_like(at, dtype=torch.bool) for at in index], batch_first=True)
    out = fn(*rows, mask=mask)

    def back(grid: Tensor) -> Tensor:
        return grid.new_zeros(len(logprobs)).index_put((torch.cat(index),), grid[mask])

    return TokenLoss(back(out.per_token), back(out.kept), {name: back(stream) for name, stream in out.metrics.items()})


def _sequence_wise(fn: Callable[[LossInputs], LossOutputs], logprobs: Tensor, streams: Streams) -> TokenLoss:
    """Each sequence's scalar spread so that the weighted sum over its members gives it back; metrics as they are."""
    per_token, metrics = torch.zeros_like(logprobs), {}
    for index in streams["sample"].unique().tolist():
        at = (streams["sample"] == index).nonzero().squeeze(-1)
        weights = streams["rl_weights"][at]
        out = fn(_loss_inputs(at, logprobs, streams))
        if not isinstance(out, LossOutputs) or any(torch.as_tensor(v).ndim for v in (out.loss, *out.metrics.values())):
            raise DataError(
                f"loss {getattr(fn, '__name__', fn)!r}: a loss over LossInputs returns LossOutputs(loss, metrics), "
                "each of them one number per sequence: the loss summed, the metrics as they are to be averaged."
            )
        per_token = per_token.index_put((at,), (out.loss / weights.sum()).expand(len(at)))
        for key, value in out.metrics.items():
            metrics.setdefault(key, torch.zeros_like(logprobs)).index_fill_(0, at, float(value))
    return TokenLoss(per_token, torch.ones_like(logprobs, dtype=torch.bool), metrics)


def _loss_inputs(at: Tensor, logprobs: Tensor, streams: Streams) -> LossInputs:
    token = streams["token"][at]
    length = int(token.max()) + 1

    def whole(stream: Tensor) -> Tensor:
        return stream.new_zeros(length).index_put((token,), stream[at])

    ref, weights = whole(streams["ref_logprobs"]), whole(streams["rl_weights"])
    return LossInputs(
        whole(logprobs), whole(streams["inference_logprobs"]),
        ref if ref.any() else None,  # rows hold 0.0 where nothing was scored, and no reference is that sure throughout
        whole(streams["advantages"]), weights != 0, weights,
    )  # fmt: skip


def _on_members(
    fn: Callable[[Tensor, Streams], TokenLoss], members: Tensor, logprobs: Tensor, streams: Streams
) -> TokenLoss:
    if not members.any():
        return TokenLoss(logprobs * 0.0, torch.zeros_like(members), {})
    out = fn(logprobs[members], {name: stream[members] for name, stream in streams.items()})

    def whole(stream: Tensor) -> Tensor:
        return stream.new_zeros(members.shape).masked_scatter(members, stream)

    return TokenLoss(whole(out.per_token), whole(out.kept), {k: whole(v) for k, v in out.metrics.items()})
