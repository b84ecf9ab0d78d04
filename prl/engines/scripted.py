"""An engine that says what a function tells it to: for tests, and for trying an environment out without a model."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from torch import Tensor

from prl.engines.base import Completion, Request
from prl.randomness import Key


class ScriptedEngine:
    """Answers each request with the token ids that `answer(request)` gives, all of log-probability 0.0.

    An answer is cut at `sampling.max_tokens`; it ended by itself where its last id is a
    stop token. `rounds` holds the keys of each call, in the order in which they came.
    """

    def __init__(self, answer: Callable[[Request], Iterable[int]], *, lockstep: bool = True) -> None:
        self.answer, self.lockstep, self.version = answer, lockstep, 0
        self.rounds: list[list[Key]] = []

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One scripted completion per request, in order."""
        self.rounds.append([request.key for request in requests])
        return [self._complete(request) for request in requests]

    async def score(self, sequences: Sequence[np.ndarray]) -> list[np.ndarray]:
        """0.0 everywhere."""
        return [np.zeros(len(sequence), np.float32) for sequence in sequences]

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Nothing but the version is kept."""
        self.version = version

    def _complete(self, request: Request) -> Completion:
        ids = np.array(list(self.answer(request))[: request.sampling.max_tokens], np.int32)
        reason = "stop" if len(ids) and int(ids[-1]) in request.sampling.stop else "length"
        return Completion(ids, np.zeros(len(ids), np.float32), None, reason, self.version)
