"""What an engine refuses before it starts: a full context, weights of another model, what vLLM cannot do."""

import numpy as np
import torch
from torch import Tensor

from prl.config import Sampling
from prl.errors import EngineError
from prl.randomness import Key, seed_of

_NO_LOGPROB = -9999.0  # what vLLM's servers say for -inf
_ROUNDING = 1e-4  # nats by which a rounded log-probability may exceed 0


def completion_room(who: str, n: int, context: int) -> int:
    """Tokens that a completion may have after n prompt tokens.

    Raises:
      EngineError: none.
    """
    if not 0 < n < context:
        raise EngineError(
            f"{who}: the prompt has {n} tokens; the model's context is {context}, need 1 to {context - 1}."
        )
    return context - n


def check_score_room(who: str, n: int, context: int) -> None:
    """Raise EngineError for a sequence of n tokens that vLLM cannot score."""
    if n >= context:
        raise EngineError(
            f"{who}.score: the sequence has {n} tokens; the model's context is {context} and vLLM draws one token "
            f"more, need at most {context - 1}. Give vLLM a larger max_model_len, or sample shorter completions."
        )


def check_sampling(who: str, sampling: Sampling) -> None:
    """Raise EngineError for what vLLM refuses or silently changes, and for candidates of a truncated distribution."""
    t = sampling.temperature
    if not (t == 0 or 0.01 <= t <= 2):
        raise EngineError(f"{who}: got temperature={t}; vLLM samples at 0, or at 0.01 to 2.")
    if sampling.topk_logprobs and (sampling.top_p < 1 or sampling.top_k):
        raise EngineError(
            f"{who}: got topk_logprobs={sampling.topk_logprobs} with top_p={sampling.top_p}, top_k={sampling.top_k}; "
            "candidates need untruncated sampling, top_p=1 and no top_k."
        )


def check_same_tensors(who: str, given: dict[str, Tensor], shapes: dict[str, torch.Size]) -> None:
    """Raise EngineError unless names and shapes are the model's own."""
    if odd := sorted(shapes.keys() ^ given.keys()):
        raise EngineError(f"{who}.load_weights: {len(odd)} names differ from the module's, first {odd[0]!r}.")
    if odd := [name for name, tensor in given.items() if tensor.shape != shapes[name]]:
        raise EngineError(
            f"{who}.load_weights: {len(odd)} shapes differ from the module's, first {odd[0]!r}: "
            f"{list(given[odd[0]].shape)}, need {list(shapes[odd[0]])}."
        )


def checked_logprobs(who: str, logprobs: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Log-probabilities [tokens] as float32; 0.0 at temperature 0, whose distribution is a point.

    Raises:
      EngineError: one is NaN, above 0, -inf, or what servers say for -inf.
    """
    logprobs = np.asarray(logprobs, np.float32)
    bad = np.flatnonzero(~((logprobs > _NO_LOGPROB) & (logprobs <= _ROUNDING)))
    if len(bad):
        raise EngineError(
            f"{who}: the log-probability of token {bad[0]} of {len(logprobs)} is {logprobs[bad[0]]}. "
            "Look for NaN or inf in the weights, and use logprobs_mode='processed_logprobs'."
        )
    return np.zeros_like(logprobs) if temperature == 0 else logprobs


def request_seed(key: Key) -> int:
    """63 bits from a key: vLLM and its servers take signed 64-bit seeds, and read -1 as none."""
    return seed_of(key) >> 65
