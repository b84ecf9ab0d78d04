"""Episodes: one that fails is recorded and the others go on; nothing is left running."""

import _thread
import asyncio
import gc
import math
import sys
import threading
import time

import pytest

from prl.config import Sampling
from prl.engines.scripted import ScriptedEngine
from prl.loop import LoopThread
from prl.rollouts import Lockstep, Play, Setting, play_all
from prl.types import Task
from tests.helpers import PlayEnv, errors, play_tasks, runner, saying, small


def test_an_error_is_recorded_with_its_traceback_and_its_trace_is_not_valid():
    async def play(task, agents, rng):
        await agents["agent"].respond(task.prompt)
        if task.key == "t1":
            raise KeyError("broken")
        return 1.0

    played = play_tasks(play, saying("hi"))
    assert errors(played) == [None, "KeyError: 'broken'", None]
    assert 'raise KeyError("broken")' in played[1].episode.error
    (trace,) = played[1].episode.traces
    assert not trace.valid and math.isnan(trace.reward) and len(trace.steps) == 1
    assert [p.episode.id for p in played] == ["e0", "e1", "e2"]


def test_a_prompt_longer_than_the_model_is_that_episodes_error():
    async def play(task, agents, rng):
        await agents["agent"].respond("x" * 100 if task.key == "t1" else "x")
        return 1.0

    played = play_tasks(play, saying("hi"), policy=small(max_positions=64))
    assert errors(played)[::2] == [None, None]
    assert "Agent 'agent', turn 0: the prompt has 119 tokens, the model's context is 64" in errors(played)[1]


def test_an_episode_in_which_nobody_speaks_is_an_error():
    async def play(task, agents, rng):
        return 1.0

    (error,) = errors(play_tasks(play, saying("hi"), episodes=1))
    assert "Episode 'e0': play() ended and no agent had spoken" in error


async def exits():
    sys.exit(3)


async def cancels_itself():
    task = asyncio.create_task(asyncio.sleep(1))
    task.cancel()
    await task


async def times_out():
    async with asyncio.timeout(0.01):
        await asyncio.sleep(1)


WAYS_OUT = {
    exits: "Episode 'e1': play() raised SystemExit(3)",
    cancels_itself: "Episode 'e1': play() was cancelled by something it awaits",
    times_out: "TimeoutError",
}


@pytest.mark.parametrize("way", WAYS_OUT, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("forked", [False, True])
def test_no_way_out_of_play_ends_the_others(way, forked):
    async def play(task, agents, rng):
        await agents["agent"].respond("x")
        if task.key == "t1":
            await (agents.gather(way()) if forked else way())
        return 1.0

    played = play_tasks(play, saying("hi"))
    assert errors(played)[::2] == [None, None]
    assert WAYS_OUT[way] in errors(played)[1]


class Slow(ScriptedEngine):
    """Decodes for ever, and counts its steps."""

    steps = 0

    async def generate(self, requests):
        while True:
            self.steps += 1
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("one_sleeps", [False, True], ids=["a round is running", "a round would start without e0"])
def test_cancelling_stops_every_episode_and_the_engine(one_sleeps):
    ended, policy, engine = [], small(), Slow(lambda request: [])

    async def play(task, agents, rng):
        try:
            if task.key != "t0":
                await agents.gather(agents.new("agent").respond("x"), agents.new("agent").respond("y"))
            await asyncio.sleep(60 if one_sleeps else 0)
            await agents["agent"].respond("x")
        finally:
            ended.append(task.key)

    async def main():
        setting = Setting(Lockstep(engine), policy.renderer, Sampling(), policy.context)
        plays = [Play(f"e{i}", PlayEnv(play), Task(f"t{i}", ""), (i,)) for i in range(3)]
        work = asyncio.create_task(play_all(plays, setting))
        await asyncio.sleep(0.03)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        steps = engine.steps
        await asyncio.sleep(0.03)
        assert engine.steps == steps, "a round runs on"
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert sorted(ended) == ["t0", "t1", "t2"] and (engine.steps > 0) != one_sleeps


def test_an_interrupted_call_has_unwound_when_it_returns():
    thread, unwound = LoopThread(), []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.03)
            unwound.append(True)

    def interrupt():
        time.sleep(0.05)
        _thread.interrupt_main()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        thread.run(work())
    assert unwound == [True]
    thread.close()


def test_a_runner_that_is_gone_leaves_no_thread():
    gc.collect()
    before = threading.active_count()
    run = runner()
    run.rollout(1)
    assert threading.active_count() == before + 1
    del run
    gc.collect()
    assert threading.active_count() == before
