"""The loop in a thread: results, errors, and an end that is said and not waited for."""

import asyncio

import pytest

from prl.errors import TrainingError
from prl.loop import LoopThread


async def answer(value):
    await asyncio.sleep(0)
    return value


def test_results_and_errors_come_back():
    async def fail():
        raise KeyError("here")

    thread = LoopThread()
    assert thread.run(answer(3)) == 3
    with pytest.raises(KeyError, match="here"):
        thread.run(fail())
    assert thread.run(answer(4)) == 4
    thread.close()


def test_inside_a_running_loop():
    thread = LoopThread()

    async def cell():
        return thread.run(answer(5))

    assert asyncio.run(cell()) == 5
    thread.close()


def test_after_close_it_says_so():
    thread = LoopThread()
    thread.close()
    with pytest.raises(TrainingError, match=r"its thread has ended, by close\(\)"):
        thread.run(answer(1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_fails_is_an_error_and_not_a_hang():
    thread = LoopThread()

    def stall():
        raise RuntimeError("the loop itself fails")

    async def forever():
        await asyncio.get_running_loop().create_future()

    thread.loop.on_stall = stall
    with pytest.raises(TrainingError, match="by a failure printed above"):
        thread.run(forever())
