"""One optimiser step over a batch, and the losses of a batch without one."""

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prl.errors import DataError, TrainingError
from prl.losses import combine, token_means
from prl.losses.select import Loss, MissingHead, component_losses, page_style, sequence_means
from prl.policy import Policy, optimizer_step
from prl.types import Batch, LossInputs, TokenLoss

COMPONENTS = ("rl", "ce", "ref_kl")


class Learned(NamedTuple):
    """What an optimiser step did: the minimised loss, its terms, token means, and the gradient norm before clipping."""

    loss: float
    terms: dict[str, float]
    metrics: dict[str, float]
    grad_norm: float


class _Part(NamedTuple):
    """One micro-batch's detached losses, weights, terms and owners of its flat trained tokens."""

    losses: dict[str, TokenLoss]
    weights: dict[str, Tensor]
    terms: dict[str, Tensor]
    sample: Tensor


async def learn(
    policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch, loss: Loss, max_grad_norm: float
) -> Learned:
    """Gradient of the whole batch over its micro-batches, then one clipped step; others may run between micro-batches.

    Warns where a loss over LossInputs does not read weights that are not all 0 or 1.

    Raises:
      TrainingError: the loss or the gradient is not finite. No step was taken.
    """
    optimizer.zero_grad(set_to_none=True)
    watched, warn = _watch_weights(loss, batch)
    parts = []
    for rows in batch.rows:
        total, part = policy(rows, _objective(watched, batch))
        total.backward()
        parts.append(part)
        await asyncio.sleep(0)
    terms = {name: float(sum(part.terms[name].item() for part in parts)) for name in COMPONENTS}
    metrics = _metrics(loss, parts)  # before the step: whatever a user's metric raises leaves the weights alone
    warn()  # so does a warning that is made an error
    norm = optimizer_step(policy, optimizer, max_grad_norm)
    if not torch.isfinite(torch.tensor(norm)):
        raise TrainingError(f"the gradient norm is {norm}; no step was taken. Largest term: {_largest(parts)}.")
    return Learned(sum(terms.values()), terms, metrics, norm)


async def batch_losses(policy: Policy, batch: Batch, losses: Mapping[str, Loss]) -> dict[str, dict[str, TokenLoss]]:
    """{name: {component: TokenLoss [row, seq]}} over all rows, without gradient; 0 where nothing trains.

    Warns as `learn` does.
    """
    watched = {name: _watch_weights(loss, batch) for name, loss in losses.items()}
    grids: dict[str, list[dict[str, TokenLoss]]] = {name: [] for name in losses}
    width = max((rows.token_ids.shape[1] for rows in batch.rows), default=0)
    for rows in batch.rows:
        at = rows.trained

        def evaluate(logprobs: Tensor, streams: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
            return logprobs.sum(), {
                name: _component_losses(loss, logprobs, streams, batch) for name, (loss, _) in watched.items()
            }

        with torch.no_grad():
            _, flat = policy(rows, evaluate)
        for name, components in flat.items():
            grids[name].append({c: _each_stream(out, _onto(at, width)) for c, out in components.items()})
    for _, warn in watched.values():
        warn()
    return {name: {c: _joined([g[c] for g in parts]) for c in COMPONENTS if parts} for name, parts in grids.items()}


def _watch_weights(loss: Any, batch: Batch) -> tuple[Any, Callable[[], None]]:
    """The loss, and what to call after it has seen the batch: warns if it never looked at weights that matter.

    Only a loss over LossInputs applies weights itself, and weights of 0 and 1 are in its loss_mask.
    """
    if not page_style(loss) or all(((r.rl_weights == 0) | (r.rl_weights == 1)).all() for r in batch.rows):
        return loss, lambda: None
    looks: list[str] = []

    class Watched(LossInputs):
        def __getattribute__(self, name: str) -> Any:
            if name == "loss_weights":
                looks.append(name)
            return super().__getattribute__(name)

    @wraps(loss)
    def watched(inputs: LossInputs) -> Any:
        return loss(Watched(**vars(inputs)))

    def warn() -> None:
        if not looks:
            warnings.warn(
                f"loss {getattr(loss, '__name__', loss)!r}: rl weights are not all 0 or 1, and it does not read "
                f"inputs.loss_weights. Its sum is divided by N_rl = {batch.counts['rl'].item():g}, the sum of the "
                "weights: multiply each token's loss by inputs.loss_weights.",
                stacklevel=3,
            )

    return watched, warn


def _objective(loss: Loss, batch: Batch) -> Callable[[Tensor, Mapping[str, Tensor]], tuple[Tensor, _Part]]:
    def objective(logprobs: Tensor, streams: Mapping[str, Tensor]) -> tuple[Tensor, _Part]:
        losses = _component_losses(loss, logprobs, streams, batch)
        weights = {name: streams[f"{name}_weights"] for name in COMPONENTS}
        total, terms = combine(losses, weights, batch.counts)
        if not total.isfinite():
            raise TrainingError(_first_bad(losses, weights, logprobs, streams, batch))
        detached = {name: _each_stream(out, Tensor.detach) for name, out in losses.items()}
        return total, _Part(detached, weights, {k: v.detach() for k, v in terms.items()}, streams["sample"])

    return objective


def _component_losses(loss: Loss, logprobs: Tensor, streams: Mapping[str, Tensor], batch: Batch) -> Any:
    try:
        return component_losses(loss, logprobs, streams)
    except MissingHead as error:
        raise DataError(
            f"score centering: token {error.token} of sample {batch.samples[error.sample].id!r} has no top-k "
            "log-probabilities. Roll out with Sampling(topk_logprobs=...), which a Runner whose loss is "
            "IcePop(score_centering=True) does by itself."
        ) from None


def _first_bad(
    losses: Mapping[str, TokenLoss],
    weights: Mapping[str, Tensor],
    logprobs: Tensor,
    streams: Mapping[str, Tensor],
    batch: Batch,
) -> str:
    for name, loss in losses.items():
        bad = ((weights[name] != 0) & ~(weights[name] * loss.per_token).isfinite()).nonzero()
        if len(bad):
            i = int(bad[0])
            sample, token = batch.samples[int(streams["sample"][i])].id, int(streams["token"][i])
            return (
                f"the {name} loss is {loss.per_token[i].item()} at token {token} of sample {sample!r} (trainer_logprob "
                f"{logprobs[i].item():.4g}, inference_logprob {streams['inference_logprobs'][i].item():.4g}, advantage "
                f"{streams['advantages'][i].item():.4g}); {len(bad)} such tokens. No step was taken."
            )
    return "the loss is not finite although every token's is: the sum overflows. No step was taken."


def _largest(parts: Sequence[_Part]) -> str:
    worst = max(COMPONENTS, key=lambda c: max((p.losses[c].per_token.abs().max().item() for p in parts), default=0.0))
    return f"{worst}, {max((p.losses[worst].per_token.abs().max().item() for p in parts), default=0.0):.4g} per token"


def _metrics(loss: Loss, parts: Sequence[_Part]) -> dict[str, float]:
    losses = {name: _joined([part.losses[name] for part in parts]) for name in COMPONENTS}
    weights = {name: torch.cat([part.weights[name] for part in parts]) for name in COMPONENTS}
    means = {
        **token_means(losses, weights),
        **sequence_means(loss, losses["rl"], weights["rl"], torch.cat([p.sample for p in parts])),
    }
    return {name: value.item() for name, value in means.items()}


def _each_stream(loss: TokenLoss, fn: Callable[[Tensor], Tensor]) -> TokenLoss:
    return TokenLoss(fn(loss.per_token), fn(loss.kept), {name: fn(stream) for name, stream in loss.metrics.items()})


def _onto(trained: Tensor, width: int) -> Callable[[Tensor], Tensor]:
    def scatter(flat: Tensor) -> Tensor:
        grid = flat.new_zeros(len(trained), width)
        grid[:, : trained.shape[1]] = flat.new_zeros(trained.shape).masked_scatter(trained.to(flat.device), flat)
        return grid

    return scatter


def _joined(parts: Sequence[TokenLoss]) -> TokenLoss:
    names = dict.fromkeys(name for part in parts for name in part.metrics)
    metrics = {
        name: torch.cat([part.metrics.get(name, torch.zeros_like(part.per_token)) for part in parts]) for name in names
    }
    return TokenLoss(torch.cat([p.per_token for p in parts]), torch.cat([p.kept for p in parts]), metrics)
