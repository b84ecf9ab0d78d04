"""The only functions that reduce, with `component_counts`: weights, counts, and each component's own N."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from prl.errors import DataError
from prl.types import TokenLoss


def combine(
    losses: Mapping[str, TokenLoss | Float[Tensor, "*tokens"]],
    weights: Mapping[str, Float[Tensor, "*tokens"]],
    counts: Mapping[str, Tensor | float | int],
) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
    """sum over components c of sum_t(w_ct * loss_ct) / N_c.

    Args:
      losses: unreduced loss of each component, or its `per_token` alone.
      weights: same shapes; 0.0 takes a token out, whatever its loss.
      counts: N of each component over the whole batch, of which these tokens may be a part.

    Returns:
      The total, and each component's term; all 0-dim. An empty component is 0 with gradient 0.

    Raises:
      DataError: the three speak of different components, or shapes differ.

    Source: algorithms page, "Loss Components".
    """
    _same_components("combine", losses=losses, weights=weights, counts=counts)
    values = {name: loss.per_token if isinstance(loss, TokenLoss) else loss for name, loss in losses.items()}
    terms = {name: weighted_sum(values[name], w) / _divisor(counts[name], w) for name, w in weights.items()}
    return torch.stack(list(terms.values())).sum(), terms


def token_means(
    losses: Mapping[str, TokenLoss], weights: Mapping[str, Float[Tensor, "*tokens"]]
) -> dict[str, Float[Tensor, ""]]:
    """Means of `kept` and of each metric over the members of a component, named `component/metric`.

    A metric whose name has a slash, such as `score_centering/head_mass`, keeps it. Every member
    counts once, whatever its weight. A component without members is left out: its mean does not exist.

    Raises:
      DataError: the two speak of different components, or shapes differ.
    """
    _same_components("token_means", losses=losses, weights=weights)
    means = {}
    for name, loss in losses.items():
        members = weights[name] != 0
        if n := members.sum():
            streams = {"kept": loss.kept.to(loss.per_token.dtype), **loss.metrics}
            for key, stream in streams.items():
                _same_shape(f"token_means: {name}/{key}", stream, members)
            means |= {_named(name, key): torch.where(members, stream, 0.0).sum() / n for key, stream in streams.items()}
    return means


def _named(component: str, metric: str) -> str:
    return metric if "/" in metric else f"{component}/{metric}"


def weighted_sum(values: Float[Tensor, "*tokens"], weights: Float[Tensor, "*tokens"]) -> Float[Tensor, ""]:
    """sum(w v) over the members; a value at weight 0 cannot leak, not even inf."""
    _same_shape("combine: loss", values, weights)
    return (weights * torch.where(weights != 0, values, 0.0)).sum()


def _same_components(where: str, **given: Mapping[str, Any]) -> None:
    names = [set(mapping) for mapping in given.values()]
    if any(name != names[0] for name in names):
        found = ", ".join(f"{key} {name}" for key, name in zip(given, names, strict=True))
        raise DataError(f"{where}: components differ: {found}.")


def _same_shape(what: str, stream: Tensor, weights: Tensor) -> None:
    if stream.shape != weights.shape:
        raise DataError(f"{what} has shape {list(stream.shape)}, its weights {list(weights.shape)}; need the same.")


def _divisor(count: Tensor | float | int, like: Tensor) -> Tensor:
    count = torch.as_tensor(count, dtype=like.dtype, device=like.device)
    return torch.where(count > 0, count, 1.0)
