"""Lockstep rounds: the engine runs when every live branch waits for it, on requests sorted by key.

So what a round holds depends on what the episodes did, never on how long they took.
"""

import asyncio
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field

from prl.engines.base import Completion, Engine, Request
from prl.errors import DataError, EngineError

_HINT = "Branches of an episode must be forked with agents.gather(...), so that rounds are reproducible."


@dataclass(eq=False)
class Branch:
    """One line of control in an episode. `path` is (fork, child, fork, child, ...) from the root."""

    episode: str
    path: tuple[int, ...] = ()
    forks: int = 0
    created: int = 0
    asking: str | None = None
    last: str | None = None
    task: "asyncio.Task[object] | None" = None
    stalled: str | None = None


current_branch: ContextVar[Branch] = ContextVar("prl_branch")


@dataclass(eq=False)
class _Waiting:
    request: Request
    future: "asyncio.Future[Completion]" = field(repr=False)


def _in_order(waiting: Iterable[_Waiting]) -> list[_Waiting]:
    """By key, so that a round does not depend on who asked first."""
    return sorted(waiting, key=lambda w: w.request.key)


class Lockstep:
    """The only batcher between episodes and engines."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._live: set[Branch] = set()
        self._waiting: dict[Branch, _Waiting] = {}
        self._round: asyncio.Task[None] | None = None

    def enter(self, branch: Branch) -> None:
        """The branch is live: no round starts before it waits or leaves."""
        self._live.add(branch)

    def leave(self, branch: Branch) -> None:
        """The branch ended, or waits for the branches it forked. A request it left behind is dropped."""
        self._live.discard(branch)
        if (orphan := self._waiting.pop(branch, None)) is not None:
            orphan.future.cancel()
        self._start_round()

    async def ask(self, request: Request, agent: str) -> Completion:
        """The request's completion.

        Raises:
          DataError: the branch already waits for a request, or is not live (it ended, or waits for
            the branches it forked), so somebody forked by other means.
        """
        branch = current_branch.get()
        if branch not in self._live:
            raise DataError(
                f"Episode {branch.episode!r}: agent {agent!r} asks in a branch that has ended or waits for its own "
                f"branches. {_HINT}"
            )
        if branch.asking is not None:
            raise DataError(
                f"Episode {branch.episode!r}: agent {agent!r} asks while agent {branch.asking!r} of the same branch "
                f"waits. {_HINT}"
            )
        branch.asking = branch.last = agent
        try:
            if not self._engine.lockstep:
                return (await self._engine.generate([request]))[0]
            waiting = _Waiting(request, asyncio.get_running_loop().create_future())
            self._waiting[branch] = waiting
            self._start_round()
            return await waiting.future
        finally:
            branch.asking = None
            self._waiting.pop(branch, None)

    def _start_round(self) -> None:
        idle = self._round is None or self._round.done()
        if idle and self._waiting and self._live <= self._waiting.keys():
            self._round = asyncio.get_running_loop().create_task(self._run_round())

    async def _run_round(self) -> None:
        batch = _in_order(self._waiting.values())
        answers: list[Completion | Exception] = []
        try:
            answers = [*await self._engine.generate([w.request for w in batch])]
            if len(answers) != len(batch):
                raise EngineError(f"The engine gave {len(answers)} completions for {len(batch)} requests.")
        except Exception as error:
            answers = [error] * len(batch)
        finally:
            self._waiting.clear()  # every branch of the round is at work again before the first of them runs
            self._round = None
        for waiting, answer in zip(batch, answers, strict=True):
            if not waiting.future.done():
                give = waiting.future.set_exception if isinstance(answer, Exception) else waiting.future.set_result
                give(answer)  # type: ignore[arg-type]

    async def cancel(self) -> None:
        """Drop every request and stop a running round; its engine call unwinds before this returns."""
        self._live.clear()
        self._waiting.clear()  # or a cancelled branch that leaves would start a round of the others' requests
        if self._round is not None and not self._round.done():
            self._round.cancel()
            await asyncio.wait([self._round])

    def on_stall(self) -> bool:
        """Nothing can wake the loop: end the branches that wait for neither the engine nor any work."""
        stuck = [b for b in self._live if b not in self._waiting and b.task is not None and b.stalled is None]
        asking = {episode: set[str]() for episode in (branch.episode for branch in stuck)}
        for branch in self._waiting:
            asking.get(branch.episode, set()).add(str(branch.asking))
        for branch in stuck:
            others = ", ".join(map(repr, sorted(asking[branch.episode]))) or "no agent"
            branch.stalled = (
                f"Episode {branch.episode!r}: branch {list(branch.path) or 'root'}, last agent {branch.last!r}, waits "
                "for something that is neither the engine nor work in progress, for example a queue filled by another "
                f"branch; {others} of the episode waits for the engine. {_HINT}"
            )
            assert branch.task is not None
            branch.task.cancel()
        return bool(stuck)
