"""The head of a sampler's distribution: its likeliest tokens, whatever was drawn."""

from typing import Any

import numpy as np

from prl.types import TopK

EXTRA = 2
"""Candidates beyond topk that an engine is asked for: one shows a tie at the boundary, one is what servers add."""


def captured_head(ids: Any, logprobs: Any, topk: int) -> TopK:
    """The topk likeliest of at least topk + 1 candidates, most likely first; both [tokens, candidates].

    A tie at the boundary (the topk-th candidate as likely as the next) leaves all that tie
    out, since which of them made it would be chance: their places hold id 0 and -inf. A
    vocabulary of at most topk tokens has no boundary; its candidates may be fewer.

    Source: algorithms page, "IcePop with Score Centering".
    """
    ids, logprobs = np.asarray(ids, np.int32), np.asarray(logprobs, np.float32)
    order = np.lexsort((ids, -logprobs), axis=-1)
    ids, logprobs = np.take_along_axis(ids, order, -1), np.take_along_axis(logprobs, order, -1)
    if logprobs.shape[-1] <= topk:
        pad = ((0, 0), (0, topk - logprobs.shape[-1]))
        return TopK(np.pad(ids, pad), np.pad(logprobs, pad, constant_values=-np.inf))
    clear = logprobs[:, :topk] > logprobs[:, topk : topk + 1]
    return TopK(np.where(clear, ids[:, :topk], 0), np.where(clear, logprobs[:, :topk], -np.inf).astype(np.float32))
