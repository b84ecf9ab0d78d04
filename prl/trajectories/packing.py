"""Samples to padded rows: prompts shared, rows sorted by length, micro-batches cut by size."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from prl.errors import DataError
from prl.ops import component_counts
from prl.trajectories.zero_signal import drop_zero_signal
from prl.types import Batch, Commit, Rows, TrainingSample

_TOKEN_CELLS = 400  # measured at width 128; a wider model's tokens cost more, and sharing pays more


class _Run(NamedTuple):
    """Tokens [first, end) of a sample at columns [col, ...) of a row. `fork` is the column before the first."""

    sample: int
    first: int
    end: int
    col: int
    segment: int
    parent: int
    fork: int


class _Row(NamedTuple):
    runs: list[_Run]
    length: int


def pack(
    samples: Sequence[TrainingSample],
    *,
    max_tokens: int,
    row_tokens: int | None = None,
    share_prompts: bool = True,
    step: int | None = None,
    commit: Commit | None = None,
) -> Batch:
    """Drop what carries no signal, lay the rest out in micro-batches, and count each component's N.

    Args:
      max_tokens: most cells (rows x longest row) of a micro-batch.
      row_tokens: None puts one sample in a row, or one prompt with several
        continuations; a number fills rows up to that many tokens, block-diagonally.
      share_prompts: neighbours that start with the same untrained tokens hold them once in
        a row, each seeing the shared part and itself. Exact, and done only where the
        tokens saved outweigh the longer row's attention.
      step, commit: carried to the Batch.

    Returns:
      Batch. Loss and gradient do not depend on any of the settings above, up to rounding.

    Raises:
      DataError: a sample is longer than max_tokens.

    Source: algorithms page, "Loss Components": tokens of all components pack freely.
    """
    samples = drop_zero_signal(samples)
    for sample in samples:
        if len(sample) > max_tokens:
            raise DataError(
                f"pack: sample {sample.id!r} has {len(sample)} tokens, max_tokens is {max_tokens}. "
                "Nothing is truncated: raise max_tokens, or lower Sampling(max_tokens=...)."
            )
    limit = max_tokens if row_tokens is None else min(max_tokens, row_tokens)
    rows = _trees(samples, limit) if share_prompts else [_single(i, s) for i, s in enumerate(samples)]
    if row_tokens is not None:
        rows = _fill(rows, limit)
    batches = tuple(_rows(samples, part) for part in _split(rows, max_tokens))
    counts = {name: torch.zeros((), dtype=torch.float64) for name in ("rl", "ce", "ref_kl")}
    for part in batches:  # float64: the sum of fractional weights must not depend on how they were cut
        for name, n in component_counts({name: w.double() for name, w in part.weights.items()}).items():
            counts[name] = counts[name] + n
    return Batch(batches, counts, tuple(samples), step, commit)


def _single(index: int, sample: TrainingSample) -> _Row:
    return _Row([_Run(index, 0, len(sample), 0, 0, -1, 0)], len(sample))


def _prompt_length(sample: TrainingSample) -> int:
    """Tokens before the first one that some component trains."""
    trained = sample.members("rl") | sample.members("ce") | sample.members("ref_kl")
    return int(trained.argmax())


def _trees(samples: Sequence[TrainingSample], limit: int) -> list[_Row]:
    """Neighbours that start with the same untrained tokens hold them once, while the cost per sample falls."""
    rows: list[_Row] = []
    members: list[int] = []
    shared = 0
    for index, sample in enumerate(samples):
        common = min(shared, _common_prefix(samples[members[0]], sample)) if members else 0
        length = common + sum(len(samples[i]) - common for i in [*members, index])
        cheaper = _cost(length) * len(members) < _cost(rows[-1].length) * (len(members) + 1) if members else False
        if common and length <= limit and cheaper:
            members, shared = [*members, index], common
            rows[-1] = _tree(samples, members, shared)
        else:
            members, shared = [index], _prompt_length(sample)
            rows.append(_single(index, sample))
    return rows


def _cost(length: int) -> int:
    """Cost of a row, in attention cells: length squared, and _TOKEN_CELLS for the matrix products of each token."""
    return length * (length + _TOKEN_CELLS)


def _tree(samples: Sequence[TrainingSample], members: list[int], shared: int) -> _Row:
    runs, col = [_Run(members[0], 0, shared, 0, 0, -1, 0)], shared
    for segment, index in enumerate(members, start=1):
        runs.append(_Run(index, shared, len(samples[index]), col, segment, 0, shared - 1))
        col += len(samples[index]) - shared
    return _Row(runs, col)


def _common_prefix(a: TrainingSample, b: TrainingSample) -> int:
    """Tokens, trained in neither, that both samples start with."""
    n = min(_prompt_length(a), _prompt_length(b))
    differs = a.token_ids[:n] != b.token_ids[:n]
    return int(differs.argmax()) if differs.any() else n


def _fill(rows: list[_Row], limit: int) -> list[_Row]:
    """First fit, longest first: several rows end to end, invisible to each other."""
    bins: list[_Row] = []
    for row in sorted(rows, key=lambda r: -r.length):
        at = next((i for i, b in enumerate(bins) if b.length + row.length <= limit), None)
        if at is None:
            bins.append(row)
            continue
        cols, base = bins[at].length, 1 + max(run.segment for run in bins[at].runs)
        moved = [_shift(run, cols, base) for run in row.runs]
        bins[at] = _Row([*bins[at].runs, *moved], cols + row.length)
    return bins


def _shift(run: _Run, cols: int, segments: int) -> _Run:
    parent = run.parent if run.parent < 0 else run.parent + segments
    return run._replace(col=run.col + cols, fork=run.fork + cols, segment=run.segment + segments, parent=parent)


def _split(rows: list[_Row], max_tokens: int) -> list[list[_Row]]:
    """Micro-batches of rows of similar length, longest first, each of at most max_tokens cells."""
    parts: list[list[_Row]] = []
    for row in sorted(rows, key=lambda r: -r.length):
        if parts and parts[-1][0].length * (len(parts[-1]) + 1) <= max_tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


def _rows(samples: Sequence[TrainingSample], rows: list[_Row]) -> Rows:
    shape = (len(rows), rows[0].length)
    cells: dict[str, Any] = {name: np.zeros(shape, np.int64) for name in ("token_ids", "positions", "source", "token")}
    cells |= {name: np.full(shape, -1, np.int64) for name in ("segment", "parent", "sample")}
    floats = ("inference_logprobs", "advantages", "ref_logprobs", "rl_weights", "ce_weights", "ref_kl_weights")
    cells |= {name: np.zeros(shape, np.float32) for name in floats}
    cells |= {"temperatures": np.ones(shape, np.float32), "mask": np.zeros(shape, np.bool_)}
    heads = [head.ids.shape[1] for row in rows for run in row.runs if (head := samples[run.sample].topk) is not None]
    if heads:
        cells["topk_ids"] = np.zeros((*shape, max(heads)), np.int32)
        cells["topk_logprobs"] = np.full((*shape, max(heads)), np.nan, np.float32)
    for r, row in enumerate(rows):
        for run in row.runs:
            _lay(cells, r, run, samples[run.sample])
    return Rows(**{name: torch.from_numpy(values) for name, values in cells.items()})


def _lay(cells: dict[str, np.ndarray], row: int, run: _Run, sample: TrainingSample) -> None:
    width = run.end - run.first
    at, tokens = (row, slice(run.col, run.col + width)), slice(run.first, run.end)
    index = np.arange(run.first, run.end)
    cells["token_ids"][at] = sample.token_ids[tokens]
    cells["positions"][at] = cells["token"][at] = index
    cells["source"][at] = np.arange(run.col - 1, run.col + width - 1)
    cells["source"][row, run.col] = run.fork
    cells["segment"][at], cells["parent"][at], cells["sample"][at] = run.segment, run.parent, run.sample
    cells["mask"][at] = sample.loss_mask[tokens]
    for name in ("inference_logprobs", "advantages", "ref_logprobs", "temperatures"):
        if (stream := getattr(sample, name)) is not None:
            cells[name][at] = stream[tokens]
    if sample.topk is not None:
        width = sample.topk.ids.shape[1]
        cells["topk_ids"][at][:, :width] = sample.topk.ids[tokens]
        cells["topk_logprobs"][at] = -np.inf
        cells["topk_logprobs"][at][:, :width] = sample.topk.logprobs[tokens]
    for component in ("rl", "ce", "ref_kl"):
        cells[f"{component}_weights"][at] = sample.weights(component)[tokens]
