"""Lockstep rounds: what a round holds depends on what episodes did, not on how long they took."""

import asyncio
import time

import pytest

from prl.engines.scripted import ScriptedEngine
from prl.errors import EngineError
from tests.determinism import any_delay, backwards, busy_run, check_sleeps_do_not_matter, forwards
from tests.helpers import END, echoing, errors, play_tasks, saying


def test_random_sleeps_leave_every_bit_in_place():
    first = busy_run(any_delay)
    for _ in range(2):
        assert busy_run(any_delay) == first


def test_so_do_opposite_orders_of_arrival():
    check_sleeps_do_not_matter(forwards, backwards)


def test_a_round_waits_for_every_live_branch_and_is_sorted_by_key():
    async def play(task, agents, rng):
        number = int(task.key[1:])
        await asyncio.sleep(0.01 * (3 - number))
        for _ in range(1 + number):
            await agents["agent"].respond("hello")
        return 0.0

    engine = saying("hi")
    play_tasks(play, engine)
    rounds = [[(episode, turn) for *_, episode, _, turn in keys] for keys in engine.rounds]
    assert rounds == [[(0, 0), (1, 0), (2, 0)], [(1, 1), (2, 1)], [(2, 2)]]


def test_a_parent_is_not_waited_for_while_its_branches_run():
    async def play(task, agents, rng):
        await agents.gather(*(agents.new("agent").respond(str(i)) for i in range(3)))
        await agents["agent"].respond("done")
        return 0.0

    engine = echoing()
    play_tasks(play, engine, episodes=2)
    assert [len(keys) for keys in engine.rounds] == [6, 2]


def plain_gather(which):
    """Episode e1 forks in a forbidden way, the others talk."""

    async def play(task, agents, rng):
        if task.key == "t1":
            await which(agents)
        await agents["agent"].respond("one")
        await agents["agent"].respond("two")
        return 1.0

    return play


async def asyncio_gather(agents):
    await asyncio.gather(agents["agent"].respond("a"), agents["other"].respond("b"))


async def same_agent_twice(agents):
    await agents.gather(agents["agent"].respond("a"), agents["agent"].respond("b"))


async def queue_between_branches(agents):
    queue = asyncio.Queue()

    async def fill():
        await agents["agent"].respond("a")
        await queue.put(1)

    await agents.gather(queue.get(), fill())


async def queue_nobody_fills(agents):
    await agents["agent"].respond("a")
    await asyncio.Queue().get()


async def task_beside_a_gather(agents):
    async def ask():
        await asyncio.sleep(0.01)
        await agents["other"].respond("b")

    side = asyncio.create_task(ask())

    async def wait():
        await side

    await agents.gather(wait())


FORBIDDEN = {
    asyncio_gather: "Episode 'e1': agent 'other' asks while agent 'agent' of the same branch waits",
    same_agent_twice: "Episode 'e1': agent 'agent' asks while it waits for its last reply",
    queue_between_branches: "Episode 'e1': branch [0, 0], last agent None, waits for something that is neither the "
    "engine nor work in progress, for example a queue filled by another branch; 'agent' of the episode waits",
    queue_nobody_fills: "Episode 'e1': branch root, last agent 'agent', waits for something",
    task_beside_a_gather: "Episode 'e1': agent 'other' asks in a branch that has ended or waits for its own branches",
}


@pytest.mark.parametrize("which", FORBIDDEN, ids=lambda fn: fn.__name__)
def test_other_ways_to_fork_are_errors_and_the_other_episodes_go_on(which):
    played = play_tasks(plain_gather(which), saying("hi"), agents=("agent", "other"))
    assert errors(played)[::2] == [None, None]
    assert FORBIDDEN[which] in errors(played)[1]
    assert FORBIDDEN[which] in played[1].episode.error and "Traceback" in played[1].episode.error
    assert [len(p.episode.traces[0].steps) for p in played[::2]] == [2, 2]


def test_a_thread_is_work_and_no_stall():
    async def play(task, agents, rng):
        await agents["agent"].respond("a")
        await asyncio.to_thread(time.sleep, 0.03)
        return 1.0

    assert errors(play_tasks(play, saying("hi"))) == [None] * 3


def test_an_engine_error_reaches_every_episode_of_the_round():
    def fail(request):
        raise EngineError("out of order")

    async def play(task, agents, rng):
        try:
            await agents["agent"].respond("a")
        except EngineError:
            return 1.0

    played = play_tasks(play, ScriptedEngine(fail))
    assert ["no agent had spoken" in e for e in errors(played)] == [True] * 3


def test_an_engine_with_too_few_answers_is_an_error():
    class Short(ScriptedEngine):
        async def generate(self, requests):
            return (await super().generate(requests))[:-1]

    async def play(task, agents, rng):
        await agents["agent"].respond("a")

    played = play_tasks(play, Short(lambda request: [END]))
    assert errors(played) == ["EngineError: The engine gave 2 completions for 3 requests."] * 3


def test_an_engine_without_rounds_is_asked_at_once():
    async def play(task, agents, rng):
        await agents["agent"].respond("a")
        return 1.0

    engine = ScriptedEngine(lambda request: [END], lockstep=False)
    assert errors(play_tasks(play, engine)) == [None] * 3
    assert [len(keys) for keys in engine.rounds] == [1, 1, 1]


def test_a_failing_branch_takes_its_siblings_out_of_the_round_however_late_it_fails():
    def play(sleep):
        async def fail():
            await asyncio.sleep(sleep)
            raise ValueError("no")

        async def deep(agents):
            await agents.gather(agents.new("agent").respond("x"), agents.new("agent").respond("y"))

        async def play(task, agents, rng):
            if task.key == "t1":
                await agents.gather(deep(agents), fail())
            await agents["agent"].respond("hello")
            return 1.0

        return play

    rounds = []
    for sleep in (0, 0.02):
        engine = saying("hi")
        played = play_tasks(play(sleep), engine)
        assert errors(played) == [None, "ValueError: no", None]
        rounds.append(engine.rounds)
    assert rounds[0] == rounds[1] and [len(keys) for keys in rounds[0]] == [2]
