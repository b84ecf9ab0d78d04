"""Randomness of an environment, apart for each branch."""

import random
from typing import Any

from prl.randomness import Key, python_random
from prl.rollouts.lockstep import current_branch


class BranchRandom(random.Random):
    """A `random.Random` whose stream belongs to the branch that draws, so the order of branches does not matter."""

    def __init__(self, key: Key) -> None:
        self._key: Key = key
        self._streams: dict[tuple[int, ...], random.Random] = {}
        super().__init__()

    def _own(self) -> random.Random:
        path = current_branch.get().path
        if path not in self._streams:
            self._streams[path] = python_random((*self._key, ".".join(map(str, path))))
        return self._streams[path]

    def random(self) -> float:
        return self._own().random()

    def getrandbits(self, k: int, /) -> int:
        return self._own().getrandbits(k)

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        return self._own().gauss(mu, sigma)

    def seed(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: the key is the seed."""
