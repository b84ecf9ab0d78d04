"""From one group to many, and from one number per trace to one per token."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, overload

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from prl.errors import DataError


@overload
def spread(advantages: Tensor, masks: Tensor) -> Tensor: ...
@overload
def spread(advantages: Tensor, masks: Sequence[Any]) -> list[Tensor]: ...
def spread(
    advantages: Float[Tensor, " traces"], masks: Bool[Tensor, "traces seq"] | Sequence[Any]
) -> Float[Tensor, "traces seq"] | list[Tensor]:
    """A_i on the tokens of trace i where its mask is True, exactly 0.0 elsewhere, also where A_i is NaN.

    Args:
      advantages: one number per trace.
      masks: trained tokens: [traces, seq], or one 1-D boolean mask per trace (tensor,
        array or list), of any lengths.

    Returns:
      [traces, seq], or a list with one stream per trace.

    Raises:
      DataError: not one mask per trace, or a mask that is not boolean and 1-D.

    Source: algorithms page, "Loss Components" (uniform credit is broadcast over completion tokens).
    """
    if len(masks) != len(advantages):
        raise DataError(f"spread: {len(advantages)} advantages and {len(masks)} masks; need one mask per trace.")
    rows = [m if isinstance(m, Tensor) else torch.tensor(m, device=advantages.device) for m in masks]
    for i, row in enumerate(rows):
        if row.dtype != torch.bool or row.ndim != 1:
            got = f"{row.dtype} of shape {list(row.shape)}"
            raise DataError(f"spread: mask {i} is {got}; need booleans, one per token of the trace.")
    if isinstance(masks, Tensor):
        return torch.where(masks, advantages.unsqueeze(-1), 0.0)
    return [torch.where(row, credit, 0.0) for row, credit in zip(rows, advantages, strict=True)]


def by_group(
    fn: Callable[..., Tensor],
    group_ids: Int[Tensor, " _"] | Sequence[Hashable],
    *streams: Shaped[Tensor, " _"],
    valid: Bool[Tensor, " _"] | None = None,
    **kw: Any,
) -> Float[Tensor, " batch"]:
    """fn(*streams of one group, **kw) for every group of a batch, back in the order of the rows.

    Groups may have any sizes and their rows any order; fn sees the valid rows of one
    group, in their order. Groups of equal size run together under `torch.func.vmap`
    and nothing is padded, so `lambda r: r - r.mean()` is right.

    Args:
      fn: streams [group] -> [group], such as `group_norm`. It may not look at values.
      group_ids: the group of each row: integers, or a sequence of ids.
      streams: one number per row each, in fn's order: rewards, then others such as lengths.
      valid: rows that count. The others are left out and get 0; they may hold anything.
      kw: given to fn as it is.

    Returns:
      One number per row.

    Raises:
      DataError: no rows or no stream, lengths that differ, fn returned something else than
        one number per rollout, or fn looked at values.

    Source: algorithms page, "Default Advantage" (a baseline for each prompt's group).
    """
    n, ids = _rows(group_ids, streams, valid), _numbered(group_ids).to(streams[0].device)
    counted = None if valid is None else valid.nonzero().squeeze(-1)
    if counted is not None and len(counted) == 0:
        return streams[0].new_zeros(n)
    order, blocks = _by_size(ids if counted is None else ids.index_select(0, counted))
    rows = order if counted is None else counted.index_select(0, order)
    pieces = zip(*(s.index_select(0, rows).split([g * size for g, size in blocks]) for s in streams), strict=True)
    whole = _checked(fn, kw)
    parts = [_apply(whole, [p.view(block) for p in piece]) for block, piece in zip(blocks, pieces, strict=True)]
    credit = torch.cat([part.flatten() for part in parts])
    return credit.new_zeros(n).index_copy(0, rows, credit)


def _rows(group_ids: Any, streams: tuple[Tensor, ...], valid: Tensor | None) -> int:
    """The number of rows, of which every argument has one entry each."""
    n = len(group_ids)
    if n == 0 or not streams:
        raise DataError(f"by_group: {n} group ids and {len(streams)} streams; need at least one row and one stream.")
    shapes = {f"stream {i}": list(s.shape) for i, s in enumerate(streams)}
    shapes |= {} if valid is None else {"valid": list(valid.shape)}
    if wrong := {name: shape for name, shape in shapes.items() if shape != [n]}:
        raise DataError(f"by_group: {n} group ids, but shapes {wrong}; need [{n}], one entry per row.")
    return n


def _numbered(group_ids: Tensor | Sequence[Hashable]) -> Int[Tensor, " batch"]:
    """Ids as integers >= 0, not much larger than their number."""
    if not isinstance(group_ids, Tensor):
        if isinstance(group_ids[0], Tensor):  # two tensors are never the same key
            raise DataError("by_group: group_ids is a list of tensors; need one tensor, as by torch.stack(group_ids).")
        numbers: dict[Hashable, int] = {}
        return torch.tensor([numbers.setdefault(id, len(numbers)) for id in group_ids])
    low, high = group_ids.aminmax()
    if 0 <= low and high < 4 * len(group_ids):
        return group_ids.long()
    return torch.unique(group_ids, return_inverse=True)[1]


def _by_size(ids: Int[Tensor, " batch"]) -> tuple[Int[Tensor, " batch"], list[tuple[int, int]]]:
    """An order in which groups are whole and groups of equal size adjacent; (groups, size) of each run of them."""
    sizes, by_size = torch.bincount(ids).sort(stable=True)
    rank = torch.empty_like(by_size).index_copy(0, by_size, torch.arange(len(by_size), device=ids.device))
    order = rank.int().index_select(0, ids).argsort(stable=True)  # int32 sorts in half the time of int64
    distinct, groups = sizes[sizes > 0].unique_consecutive(return_counts=True)
    return order, list(zip(groups.tolist(), distinct.tolist(), strict=True))


def _checked(fn: Callable[..., Tensor], kw: dict[str, Any]) -> Callable[..., Tensor]:
    """fn with its settings, held to one number per rollout."""

    def whole(*group: Tensor) -> Tensor:
        credit, (size,) = fn(*group, **kw), group[0].shape
        if not isinstance(credit, Tensor) or credit.shape != (size,):
            got = f"shape {list(credit.shape)}" if isinstance(credit, Tensor) else type(credit).__name__
            raise DataError(
                f"by_group: fn returned {got} for a group of {size} rollouts; need a tensor of shape [{size}], "
                "one number per rollout."
            )
        return credit

    return whole


def _apply(whole: Callable[..., Tensor], streams: list[Tensor]) -> Tensor:
    """The function on streams [groups, size], group by group."""
    try:
        return torch.func.vmap(whole)(*streams)
    except RuntimeError as error:
        raise DataError(
            f"by_group: fn failed on groups of {streams[0].shape[1]} rollouts: {str(error).rstrip('.')}. It runs under "
            "torch.func.vmap and may not look at values: no .item(), no `if` on a tensor, no boolean indexing, no "
            "random numbers. Use torch.where, or call fn on one group at a time."
        ) from error
