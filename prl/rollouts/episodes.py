"""Plays episodes side by side and records what became of each."""

import asyncio
import math
import traceback
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from prl.envs.base import Env
from prl.errors import DataError
from prl.randomness import Key
from prl.rollouts.agents import Agent, Agents, Setting
from prl.rollouts.branch_random import BranchRandom
from prl.rollouts.chat import Chat
from prl.rollouts.lockstep import Branch, current_branch
from prl.trajectories import interleave
from prl.types import Episode, Task, Trace


class Play(NamedTuple):
    """One episode to play. All its randomness comes from `key`.

    `chats` speak for roles instead of the policy, nothing is learned from `pinned` roles, and
    where the reward is not `needed` the environment may return None.
    """

    id: str
    env: Env
    task: Task
    key: Key
    chats: Mapping[str, Chat] = MappingProxyType({})
    pinned: Collection[str] = ()
    needed: bool = True


class Played(NamedTuple):
    """The record of an episode, and the exception that ended it, if one did."""

    episode: Episode
    error: Exception | None


async def play_all(plays: Sequence[Play], setting: Setting) -> list[Played]:
    """All episodes at once against one engine, in order.

    An episode that raises is recorded with its traceback, its traces not valid; the
    others go on. Cancelling this call cancels every episode and the engine's round.
    """
    branches = [Branch(play.id) for play in plays]
    for branch in branches:
        setting.lockstep.enter(branch)
    for branch, play in zip(branches, plays, strict=True):
        branch.task = asyncio.create_task(_play(branch, play, setting))
    tasks: list[Any] = [branch.task for branch in branches]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)  # gather would cancel them before `finally`
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await setting.lockstep.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _play(branch: Branch, play: Play, setting: Setting) -> Played:
    current_branch.set(branch)
    agents = Agents(play.env.agents, play.key, setting, play.chats, play.pinned)
    error, rewards = None, {}
    try:
        outcome = await play.env.play(play.task, agents, BranchRandom((*play.key, "rng")))
        rewards = agents.rewards(outcome, needed=play.needed)
        if not rewards:
            raise DataError(
                f"Episode {play.id!r}: play() ended and no agent had spoken, so there is nothing to learn from."
            )
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        if branch.stalled is None and task is not None and task.cancelling():
            raise  # from outside: the whole call ends
        error = DataError(branch.stalled or f"Episode {play.id!r}: play() was cancelled by something it awaits.")
        error.__cause__ = cancelled  # its traceback shows where play() was
    except SystemExit as raised:
        error = DataError(f"Episode {play.id!r}: play() raised {raised!r}.")
        error.__cause__ = raised
    except Exception as raised:
        error = raised
    finally:
        setting.lockstep.leave(branch)
    return Played(_episode(play, agents, rewards, error), error)


def _episode(play: Play, agents: Agents, rewards: dict[Agent, float], error: Exception | None) -> Episode:
    text = None if error is None else "".join(traceback.format_exception(error))
    spoke = agents.in_order()
    numbers = {role: 0 for role in play.env.agents}
    traces = []
    for agent in spoke:
        number, numbers[agent.role] = numbers[agent.role], numbers[agent.role] + 1
        name = agent.role if number == 0 else f"{agent.role}.{number}"
        traces.append(_trace(f"{play.id}/{name}", agent, rewards.get(agent, math.nan), error is None))
    return Episode(play.id, tuple(traces), text)


def _trace(id: str, agent: Agent, reward: float, valid: bool) -> Trace:
    samples = tuple(interleave(agent.steps, id=id))
    return Trace(
        id, agent.role, tuple(agent.steps), samples, reward, valid=valid, trainable=agent.trainable,
        messages=tuple(agent.messages),
    )  # fmt: skip
