"""What the trainer computes on, and what a training step reports."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from prl.types.group import Commit
from prl.types.sample import TrainingSample


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """One micro-batch: padded rows [row, seq] of one or more samples.

    `source` is the position in the row whose hidden state predicts the token (the
    token before it, or the end of the shared prompt). `segment` tells samples of a
    row apart and `parent` is the segment that a token sees besides its own (-1: none;
    padding has segment -1). `sample` and `token` say whose token it is: index into
    `Batch.samples` and position there (a shared prompt is the first sample's).
    Streams are 0.0 where a sample has none. `topk_ids` and `topk_logprobs` hold the
    sampler's candidates where some sample has them (-inf: no entry; nan: the sample has
    none), else None.
    """

    token_ids: Int[Tensor, "row seq"]
    positions: Int[Tensor, "row seq"]
    source: Int[Tensor, "row seq"]
    segment: Int[Tensor, "row seq"]
    parent: Int[Tensor, "row seq"]
    sample: Int[Tensor, "row seq"]
    token: Int[Tensor, "row seq"]
    mask: Bool[Tensor, "row seq"]
    inference_logprobs: Float[Tensor, "row seq"]
    temperatures: Float[Tensor, "row seq"]
    advantages: Float[Tensor, "row seq"]
    ref_logprobs: Float[Tensor, "row seq"]
    rl_weights: Float[Tensor, "row seq"]
    ce_weights: Float[Tensor, "row seq"]
    ref_kl_weights: Float[Tensor, "row seq"]
    topk_ids: Int[Tensor, "row seq topk"] | None = None
    topk_logprobs: Float[Tensor, "row seq topk"] | None = None

    def __repr__(self) -> str:
        return f"Rows({' x '.join(map(str, self.token_ids.shape))} cells, {int(self.trained.sum())} trained)"

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weight streams by component."""
        return {"rl": self.rl_weights, "ce": self.ce_weights, "ref_kl": self.ref_kl_weights}

    @property
    def trained(self) -> Tensor:
        """Boolean [row, seq]: tokens that some component trains."""
        return (self.rl_weights != 0) | (self.ce_weights != 0) | (self.ref_kl_weights != 0)

    @property
    def one_sample_per_row(self) -> bool:
        """True where plain causal attention is already right."""
        return bool((self.segment <= 0).all())

    def to(self, device: torch.device, dtype: torch.dtype) -> "Rows":
        """Every tensor on `device`; floating streams in `dtype`."""

        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

        moved: dict[str, Any] = {f.name: move(getattr(self, f.name)) for f in fields(self)}
        return Rows(**moved)


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """One optimiser step's data.

    `rows` are micro-batches; `counts` are each component's N over the whole batch
    (0-dim); `commit` is what `Runner.update` will make current besides the weights.
    """

    rows: tuple[Rows, ...]
    counts: Mapping[str, Tensor]
    samples: tuple[TrainingSample, ...]
    step: int | None = None
    commit: Commit | None = None

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {count.item():g}" for name, count in self.counts.items())
        return f"Batch(step {self.step}, {len(self.samples)} samples in {list(self.rows)}, N: {counts})"

    def where(self, row: int, col: int) -> tuple[str, int]:
        """(sample id, token index) of a cell; rows are numbered through all micro-batches.

        A prompt that several samples share names the first of them.

        Raises:
          IndexError: no such cell, or it is padding.
        """
        first = 0
        for rows in self.rows:
            r, (height, width) = row - first, rows.sample.shape
            if 0 <= r < height and 0 <= col < width and (index := int(rows.sample[r, col])) >= 0:
                return self.samples[index].id, int(rows.token[r, col])
            first += height
        raise IndexError(f"Batch.where: row {row}, column {col} is padding or does not exist.")

    @property
    def tokens(self) -> int:
        """Cells that are not padding."""
        return sum(int((rows.segment >= 0).sum()) for rows in self.rows)


class StepReport(NamedTuple):
    """One line of `Runner.history`.

    loss and terms as minimised; metrics are token means, `component/name`; reward is
    the mean over the step's valid rollouts (None for a hand-made batch); tokens are
    trained cells; seconds of wall time since the previous report.
    """

    step: int
    version: int
    loss: float
    terms: Mapping[str, float]
    metrics: Mapping[str, float]
    reward: float | None
    grad_norm: float
    tokens: int
    seconds: float
