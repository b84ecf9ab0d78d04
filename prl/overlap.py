"""One step ahead: the next step's rollouts are collected while this one trains."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from prl.types import Groups


class Weights(NamedTuple):
    """The policy's tensors as they were when they had this number; `version` is the step that made them."""

    number: int
    version: int
    tensors: Mapping[str, Tensor]

    def copy(self) -> "Weights":
        """The same weights in memory of their own."""
        return self._replace(tensors={name: tensor.detach().clone() for name, tensor in self.tensors.items()})


class Ahead:
    """The next step's groups, where they are collected already, and the weights scheduled to sample them.

    Weights of None are the committed ones: nothing was overlapped yet.
    """

    def __init__(self, groups: Groups | None = None, weights: Weights | None = None) -> None:
        self.groups, self.weights = groups, weights
        self._task: asyncio.Task[Groups] | None = None

    def start(self, collect: Coroutine[Any, Any, Groups]) -> None:
        """Collect beside what the loop does next."""
        self._task = asyncio.get_running_loop().create_task(collect)

    def cancel(self) -> None:
        """Stop collecting; `finish` then leaves no groups."""
        if self._task is not None:
            self._task.cancel()

    async def finish(self) -> None:
        """Wait for the groups. Where collecting failed or was cancelled there are none: the next call collects again.

        What was wrong is then said by that call, from the same weights and state.
        """
        if self._task is not None:
            await asyncio.wait([self._task])
            failed = self._task.cancelled() or self._task.exception() is not None
            self.groups, self._task = None if failed else self._task.result(), None
