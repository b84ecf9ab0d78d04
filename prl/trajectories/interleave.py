"""Best-effort interleaving: model calls that extend one another become one training sample."""

from collections.abc import Mapping, Sequence
from typing import Any

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
        return self.buffer[:n].tobytes() == prompt[:n].tobytes()  # twice as fast as numpy on short histories

    def extend(self, index: int, step: Step) -> None:
        start, answer = self.n, len(step.prompt_ids)
        end = answer + len(step.completion_ids)
        self.pieces.append((index, step, start))
        if end > len(self.buffer):
            grown = np.empty(max(end, 2 * len(self.buffer)), np.int32)
            grown[:start] = self.buffer[:start]
            self.buffer = grown
        self.buffer[start:answer] = step.prompt_ids[start:]
        self.buffer[answer:end] = step.completion_ids
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
        target = None
        for o in open_samples:  # the longest, of equals the oldest
            if (target is None or o.n > target.n) and (not by_agent or o.agent == step.agent):
                target = o if o.is_prefix_of(step.prompt_ids) else target
        if target is None:
            target = _Open(step.agent)
            open_samples.append(target)
        target.extend(index, step)
    trained = [o for o in open_samples if any(s.trainable and len(s.completion_ids) for _, s, _ in o.pieces)]
    return [_close(o, f"{id}#{i}") for i, o in enumerate(trained)]


def _close(sample: _Open, id: str) -> TrainingSample:
    steps = [step for _, step, _ in sample.pieces]
    runs = np.array([n for _, s, start in sample.pieces for n in (len(s.prompt_ids) - start, len(s.completion_ids))])

    def of_written(values: Sequence[Any], elsewhere: Any, dtype: Any) -> np.ndarray:
        both = np.full(len(runs), elsewhere, dtype)
        both[1::2] = values
        return both.repeat(runs)

    mask = of_written([step.trainable for step in steps], False, np.bool_)
    known: list[Any] = [step.completion_logprobs for step in steps if step.trainable]
    complete, attributed = (all(x is not None for x in xs) for xs in (known, [s.prompt_content for s in steps]))
    logprobs = np.zeros(sample.n, np.float32)
    if complete:
        logprobs[mask] = np.concatenate(known)
    streams = {
        "loss_mask": mask,
        "inference_logprobs": logprobs if complete else None,
        "temperatures": of_written([step.temperature for step in steps], 1.0, np.float32),
        "roles": of_written([_ASSISTANT] * len(steps), 0, np.int8),
        "content": of_written([True] * len(steps), False, np.bool_) if attributed else None,
        "step": np.array([i for i, _, _ in sample.pieces], np.int32).repeat(runs[::2] + runs[1::2]),
        "message": np.full(sample.n, -1, np.int32),
        "version": of_written([-1 if step.version is None else step.version for step in steps], -1, np.int32),
    }
    _attribute(sample, streams)
    for stream in streams.values():
        if stream is not None:
            stream.flags.writeable = False  # nobody else holds it, so the sample need not copy
    return TrainingSample(id, sample.buffer[: sample.n], **streams, topk=_topk(sample))


def _attribute(sample: _Open, streams: Mapping[str, Any]) -> None:
    """Roles, message bodies and message indices of what each step was shown anew, where its renderer told them."""
    names = {"roles": "prompt_roles", "content": "prompt_content", "message": "prompt_messages"}
    for _, step, start in sample.pieces:
        if step.prompt_roles is step.prompt_content is step.prompt_messages is None:
            continue
        answer = len(step.prompt_ids)
        for name, given in names.items():
            if streams[name] is not None and (values := getattr(step, given)) is not None:
                streams[name][start:answer] = values[start:]
        if step.prompt_messages is not None:  # the reply follows the last message shown
            end = answer + len(step.completion_ids)
            streams["message"][answer:end] = step.prompt_messages.max(initial=-1) + 1


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
