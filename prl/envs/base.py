"""What an environment is."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Protocol, runtime_checkable

from prl.types import Task


@runtime_checkable
class Env(Protocol):
    """Tasks, and a way to play one.

    name:   short and unique within a run.
    agents: the roles that take part; traces of an episode stand in this order.

    `tasks(split)` gives the problems of "train" or "test"; keys are unique in a split
    and stay the same from run to run.

    `play` is ordinary async Python. `agents["agent"]` answers messages,
    `agents.new(role)` starts another trace of a role, `agents.gather(...)` runs branches
    at once. It returns the reward: one number for every trace, or {role or Agent: number}.
    `rng` is the only randomness a play may use.
    """

    name: str
    agents: tuple[str, ...] = ("agent",)

    def tasks(self, split: str) -> Sequence[Task]: ...

    async def play(self, task: Task, agents: Any, rng: Random) -> float | Mapping[Any, float]: ...
