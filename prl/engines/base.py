"""The engine protocol: token ids in, token ids and their log-probabilities out."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from prl.config import Sampling
from prl.randomness import Key
from prl.types import TopK


class Request(NamedTuple):
    """One completion to draw. `sampling.stop` holds token ids here; all randomness comes from `key`."""

    prompt_ids: np.ndarray
    sampling: Sampling
    key: Key


class Completion(NamedTuple):
    """Sampled ids (stop token included) and their log-probabilities, in nats, of the sampled distribution.

    finish_reason is "stop" or "length"; version is that of the weights that sampled. A frozen
    model that answers in text has neither log-probabilities nor version.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray | None
    topk: TopK | None
    finish_reason: str
    version: int | None


@runtime_checkable
class Engine(Protocol):
    """What rollouts and reference scoring need of an inference engine."""

    lockstep: bool
    """True for an engine that runs a whole round at once, when every live branch waits for it."""

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order."""
        ...

    async def score(self, sequences: Sequence[np.ndarray]) -> list[np.ndarray]:
        """log p(token t | tokens < t) of each sequence at temperature 1, 0.0 at position 0."""
        ...

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace the weights; later completions carry `version`."""
        ...
