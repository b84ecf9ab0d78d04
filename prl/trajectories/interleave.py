"""Best-effort interleaving: model calls that extend one another become one training sample."""

from collections.abc import Sequence

import numpy as np

from prl.types import ROLES, Step, TopK, TrainingSample

_ASSISTANT = ROLES.index("assistant")


class _Open:
    """A sample that may still grow: tokens in a buffer that doubles, the steps that made it with their offsets."""

    def __init__(self, agent: str) -> None:
        self.agent, self.n, self.buffer = agent, 0, np.empty(64, np.int32)
        self.pieces: list[tuple[int, Step, int]] = []  # step index, step, tokens already there

    def is_prefix_of(self, prompt: np.ndarray) -> bool:
        n = self.n
        if n > len(prompt) or (n and prompt[n - 1] != self.buffer[n - 1]):  # histories differ most often at the end
            return False
        return np.array_equal(self.buffer[:n], prompt[:n])

    def extend(self, index: int, step: Step) -> None:
        self.pieces.append((index, step, self.n))
        self._append(step.prompt_ids[self.n :])
        self._append(step.completion_ids)

    def _append(self, ids: np.ndarray) -> None:
        end = self.n + len(ids)
        if end > len(self.buffer):
            grown = np.empty(max(end, 2 * len(self.buffer)), np.int32)
            grown[: self.n] = self.buffer[: self.n]
            self.buffer = grown
        self.buffer[self.n : end] = ids
        self.n = end


def interleave(steps: Sequence[Step], *, by_agent: bool = False, id: str = "sample") -> list[TrainingSample]:
    """Merge model calls into samples by the exact-prefix rule.

    A step extends the longest open sample whose tokens are an exact prefix of its
    prompt (ties: the oldest), else it opens a new one. Its completion is trained where
    the step is trainable; everything else is context. A sample without a trained token
    is left out. Steps (P1 -> C1), (P1 C1 U2 -> C2), (P3 -> C3) give [P1 C1* U2 C2*], [P3 C3*].

    Args:
      steps: calls in the order in which they were made.
      by_agent: also keep agents apart when their tokens would merge.
      id: sample ids are `id#0`, `id#1`, ... in opening order.

    Returns:
      Samples in opening order, without credit. Σ mask = Σ completion tokens of trainable steps.

    Source: algorithms page, "Best-Effort Interleaving".
    """
    open_samples: list[_Open] = []
    for index, step in enumerate(steps):
        fits = [o for o in open_samples if (not by_agent or o.agent == step.agent) and o.is_prefix_of(step.prompt_ids)]
        target = max(fits, key=lambda o: o.n, default=None)
        if target is None:
            target = _Open(step.agent)
            open_samples.append(target)
        target.extend(index, step)
    trained = [o for o in open_samples if any(s.trainable and len(s.completion_ids) for _, s, _ in o.pieces)]
    return [_close(o, f"{id}#{i}") for i, o in enumerate(trained)]


def _close(sample: _Open, id: str) -> TrainingSample:
    n, steps = sample.n, [step for _, step, _ in sample.pieces]
    mask, logprobs, temperatures = np.zeros(n, np.bool_), np.zeros(n, np.float32), np.ones(n, np.float32)
    roles, message, index = np.zeros(n, np.int8), np.full(n, -1, np.int32), np.zeros(n, np.int32)
    version, content = np.full(n, -1, np.int32), np.zeros(n, np.bool_)
    for i, step, start in sample.pieces:
        answer, end = len(step.prompt_ids), len(step.prompt_ids) + len(step.completion_ids)
        index[start:end] = i
        mask[answer:end], roles[answer:end], content[answer:end] = step.trainable, _ASSISTANT, True
        temperatures[answer:end] = step.temperature
        version[answer:end] = -1 if step.version is None else step.version
        if step.trainable and step.completion_logprobs is not None:
            logprobs[answer:end] = step.completion_logprobs
        if step.prompt_roles is not None:
            roles[start:answer] = step.prompt_roles[start:]
        if step.prompt_content is not None:
            content[start:answer] = step.prompt_content[start:]
        if step.prompt_messages is not None:
            message[start:answer] = step.prompt_messages[start:]
            message[answer:end] = step.prompt_messages.max(initial=-1) + 1  # the reply follows the last message shown
    known = all(s.completion_logprobs is not None for s in steps if s.trainable)
    attributed = all(s.prompt_content is not None for s in steps)
    return TrainingSample(
        id, sample.buffer[:n], mask, logprobs if known else None, temperatures, roles=roles,
        content=content if attributed else None, step=index, message=message, topk=_topk(sample), version=version,
    )  # fmt: skip


def _topk(sample: _Open) -> TopK | None:
    """Candidates of sampled tokens, -inf elsewhere; None unless every trainable call recorded them."""
    heads = [step.topk for _, step, _ in sample.pieces if step.trainable and len(step.completion_ids)]
    if any(head is None for head in heads):
        return None
    k = max(head.ids.shape[1] for head in heads if head)
    ids, logprobs = np.zeros((sample.n, k), np.int32), np.full((sample.n, k), -np.inf, np.float32)
    for _, step, _ in sample.pieces:
        if step.trainable and step.topk is not None:
            at = slice(len(step.prompt_ids), len(step.prompt_ids) + len(step.completion_ids))
            width = step.topk.ids.shape[1]
            ids[at, :width], logprobs[at, :width] = step.topk
    return TopK(ids, logprobs)
