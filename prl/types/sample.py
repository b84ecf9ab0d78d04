"""What the trainer sees of a trace: one token sequence with everything known about each token."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prl.errors import DataError
from prl.types.arrays import Array, frozen
from prl.types.step import TopK, check_topk

STREAMS = {
    "loss_mask": np.bool_,
    "inference_logprobs": np.float32,
    "temperatures": np.float32,
    "advantages": np.float32,
    "ref_logprobs": np.float32,
    "rl_weights": np.float32,
    "ce_weights": np.float32,
    "ref_kl_weights": np.float32,
    "roles": np.int8,
    "content": np.bool_,
    "step": np.int32,
    "message": np.int32,
    "version": np.int32,
}
_ZERO_OUTSIDE = ("inference_logprobs", "advantages", "ref_logprobs", "rl_weights", "ref_kl_weights")
_WEIGHTS = ("rl_weights", "ce_weights", "ref_kl_weights")


@dataclass(frozen=True, eq=False, repr=False)
class TrainingSample:
    """Streams of one sample; all have one entry per token, held as read-only arrays.

    loss_mask marks the tokens that the policy sampled and that may train. Log-
    probabilities are in nats: entry t is log p(token t | tokens < t). Streams of the
    rl and ref_kl components hold 0.0 outside the mask; ce_weights may be non-zero
    there (echo). Weights of None mean: rl weight 1.0 on the mask where there are
    advantages, no ce, no ref_kl.

    Raises:
      DataError: lengths differ; token 0 is trained; a stream is not 0.0 outside the
        mask; a weight is negative; an rl weight without advantages, a ref_kl weight
        without ref_logprobs; a NaN or missing log-probability on a trained token; a faulty topk.
    """

    id: str
    token_ids: Array
    loss_mask: Array
    inference_logprobs: Array | None = None
    temperatures: Array | None = None
    advantages: Array | None = None
    ref_logprobs: Array | None = None
    rl_weights: Array | None = None
    ce_weights: Array | None = None
    ref_kl_weights: Array | None = None
    roles: Array | None = None
    content: Array | None = None
    step: Array | None = None
    message: Array | None = None
    topk: TopK | None = None
    version: Array | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", frozen(self.token_ids, np.int32))
        for name, dtype in STREAMS.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, frozen(value, dtype))
        if self.topk is not None:
            ids, logprobs = self.topk
            object.__setattr__(self, "topk", TopK(frozen(ids, np.int32), frozen(logprobs, np.float32)))
        self._check_lengths()
        if self.topk is not None:
            check_topk(f"TrainingSample {self.id!r}", self.topk)
        self._check_values()

    def __repr__(self) -> str:
        members = ", ".join(f"{n} {c}" for c in ("rl", "ce", "ref_kl") if (n := int(self.members(c).sum()))) or "none"
        sampled = int(self.loss_mask.sum())
        return f"TrainingSample({self.id!r}, {len(self)} tokens, {sampled} sampled, members: {members})"

    def __len__(self) -> int:
        return len(self.token_ids)

    def members(self, component: str) -> np.ndarray:
        """Boolean [tokens]: the tokens of component "rl", "ce" or "ref_kl" (weight not 0)."""
        return self.weights(component) != 0

    def weights(self, component: str) -> np.ndarray:
        """The component's weights [tokens], with the meaning of None spelled out."""
        given = getattr(self, f"{component}_weights")
        if given is not None:
            return given
        if component == "rl" and self.advantages is not None:
            return self.loss_mask.astype(np.float32)
        return np.zeros(len(self), np.float32)

    def _check_lengths(self) -> None:
        n = len(self)
        pairs: Iterable[tuple[str, Any]] = ((k, getattr(self, k)) for k in STREAMS)
        pairs = [*pairs, ("topk.ids", self.topk and self.topk.ids), ("topk.logprobs", self.topk and self.topk.logprobs)]
        wrong = [f"{k} has {len(v)} tokens" for k, v in pairs if v is not None and len(v) != n]
        wrong += [f"{k} has shape {list(v.shape)}" for k, v in pairs[: len(STREAMS)] if v is not None and v.ndim != 1]
        if wrong:
            raise DataError(
                f"TrainingSample {self.id!r}: {', '.join(wrong)}, token_ids has {n}. "
                "Every stream spans the whole sample; use 0.0 outside loss_mask."
            )

    def _check_values(self) -> None:
        mask = self.loss_mask
        if n_first := int(len(self) > 0 and (mask[0] or (self.ce_weights is not None and self.ce_weights[0] != 0))):
            raise DataError(
                f"TrainingSample {self.id!r}: {n_first} trained token at position 0, which nothing predicts."
            )
        for name in _ZERO_OUTSIDE:
            values = getattr(self, name)
            if values is not None and (bad := np.flatnonzero(~mask & (values != 0))).size:
                raise DataError(
                    f"TrainingSample {self.id!r}: {name} is {values[bad[0]]} at token {bad[0]}, outside loss_mask; "
                    f"need 0.0 there ({bad.size} such tokens)."
                )
        for name in _WEIGHTS:
            values = getattr(self, name)
            if values is not None and (bad := np.flatnonzero(~(values >= 0))).size:
                raise DataError(f"TrainingSample {self.id!r}: {name} is {values[bad[0]]} at token {bad[0]}; need >= 0.")
        self._check_inputs("rl", "advantages", "inference_logprobs")
        self._check_inputs("ref_kl", "ref_logprobs", "inference_logprobs")

    def _check_inputs(self, component: str, *needed: str) -> None:
        if getattr(self, f"{component}_weights") is None and (component != "rl" or self.advantages is None):
            return
        members = self.members(component)
        for name in needed if members.any() else ():
            values = getattr(self, name)
            if values is None:
                raise DataError(
                    f"TrainingSample {self.id!r}: {int(members.sum())} {component} tokens, and {name} is None. "
                    f"The {component} component needs it on each of them."
                )
            if (bad := np.flatnonzero(members & ~np.isfinite(values))).size:
                raise DataError(
                    f"TrainingSample {self.id!r}: {name} is {values[bad[0]]} at token {bad[0]}, "
                    f"which the {component} component trains ({bad.size} such tokens)."
                )

    def with_streams(self, **streams: Any) -> "TrainingSample":
        """A copy with some streams replaced; everything is checked again."""
        return replace(self, **streams)


def supervised(prompt_ids: Any, completion_ids: Any, *, id: str = "supervised") -> TrainingSample:
    """A sample that trains `ce` with weight 1.0 on the completion: warm starts, sft."""
    prompt, completion = np.asarray(prompt_ids, np.int32), np.asarray(completion_ids, np.int32)
    mask = np.arange(len(prompt) + len(completion)) >= len(prompt)
    ids = np.concatenate([prompt, completion])
    return TrainingSample(id, ids, mask, ce_weights=mask.astype(np.float32))
