"""One model call, exactly as the engine saw it."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np

from prl.errors import DataError
from prl.types.arrays import Array, frozen, same_tokens

ROLES = ("none", "system", "user", "assistant", "tool")
"""Role codes of token streams; 0 is scaffold outside any message."""


class TopK(NamedTuple):
    """The sampler's most likely tokens at each position: ids and log-probabilities, both [tokens, topk]."""

    ids: Array
    logprobs: Array


def check_topk(where: str, topk: TopK) -> None:
    """An entry of log-probability -inf is no entry; its id does not matter.

    Raises:
      DataError: not two [tokens, topk] arrays, a NaN, an id twice at one token.
    """
    ids, logprobs = topk
    if len(ids) and (ids.ndim != 2 or ids.shape != logprobs.shape):
        raise DataError(
            f"{where}: topk.ids has shape {list(ids.shape)}, topk.logprobs {list(logprobs.shape)}; "
            "need [tokens, topk] for both."
        )
    if (bad := np.argwhere(np.isnan(logprobs))).size:
        raise DataError(f"{where}: topk.logprobs is nan at token {bad[0][0]}, entry {bad[0][1]}; -inf means no entry.")
    order = np.sort(np.where(logprobs == -np.inf, -1 - np.arange(logprobs.shape[-1]), ids), axis=-1)
    if (bad := np.argwhere(order[..., 1:] == order[..., :-1])).size:
        token, entry = bad[0]
        raise DataError(
            f"{where}: topk.ids holds id {order[token, entry]} twice at token {token}; its mass would count twice. "
            "Give each candidate once."
        )


@dataclass(frozen=True, eq=False, repr=False)
class Step:
    """One request and its answer.

    prompt_ids [P] and completion_ids [C] (stop token included) are token ids;
    completion_logprobs [C] are the sampler's, in nats, or None for a source that
    reports none (such a step can feed only `ce`). prompt_roles [P] are codes of
    `ROLES` and prompt_content [P] marks message bodies; None means no attribution.
    prompt_messages [P] are indices into the trace's messages, -1 outside any.

    Raises:
      DataError: streams of unequal length; a faulty topk (`check_topk`).
    """

    prompt_ids: Array
    completion_ids: Array
    completion_logprobs: Array | None
    _: KW_ONLY
    prompt_roles: Array | None = None
    prompt_content: Array | None = None
    agent: str = "agent"
    truncated: bool = False
    trainable: bool = True
    topk: TopK | None = None
    version: int | None = None
    temperature: float | int = 1.0
    prompt_messages: Array | None = None

    def __post_init__(self) -> None:
        fields = {"prompt_ids": np.int32, "completion_ids": np.int32, "completion_logprobs": np.float32}
        fields |= {"prompt_roles": np.int8, "prompt_content": np.bool_, "prompt_messages": np.int32}
        for name, dtype in fields.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, frozen(value, dtype))
        if self.topk is not None:
            ids, logprobs = self.topk
            object.__setattr__(self, "topk", TopK(frozen(ids, np.int32), frozen(logprobs, np.float32)))
        self._check_lengths()
        if self.topk is not None:
            check_topk(f"Step of agent {self.agent!r}", self.topk)

    def __repr__(self) -> str:
        return f"Step({self.agent!r}, {len(self.prompt_ids)} + {len(self.completion_ids)} tokens)"

    def _check_lengths(self) -> None:
        p, c = len(self.prompt_ids), len(self.completion_ids)
        need: Mapping[str, tuple[Any, int]] = {
            "completion_logprobs": (self.completion_logprobs, c),
            "topk.ids": (self.topk and self.topk.ids, c),
            "topk.logprobs": (self.topk and self.topk.logprobs, c),
            "prompt_roles": (self.prompt_roles, p),
            "prompt_content": (self.prompt_content, p),
            "prompt_messages": (self.prompt_messages, p),
        }
        wrong = [f"{k} has {len(v)}, needs {n}" for k, (v, n) in need.items() if v is not None and len(v) != n]
        if wrong:
            raise DataError(
                f"Step of agent {self.agent!r}: {'; '.join(wrong)}. One entry per token; nothing is padded."
            )


def call_parents(steps: Sequence[Step]) -> list[int | None]:
    """For each call the earlier one whose prompt + completion is the longest exact prefix of its prompt, or None."""
    full = [np.concatenate([s.prompt_ids, s.completion_ids]) for s in steps]
    parents: list[int | None] = []
    for i, step in enumerate(steps):
        fits = [j for j in range(i) if same_tokens(full[j], step.prompt_ids[: len(full[j])])]
        parents.append(max(fits, key=lambda j: (len(full[j]), j), default=None))
    return parents


def new_prompt_tokens(steps: Sequence[Step]) -> list[int]:
    """Prompt tokens that each call brings beyond its parent's prompt and completion."""
    used = [0 if j is None else len(steps[j].prompt_ids) + len(steps[j].completion_ids) for j in call_parents(steps)]
    return [len(s.prompt_ids) - u for s, u in zip(steps, used, strict=True)]
