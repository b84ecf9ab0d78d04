"""Checks of "one seed, the same bits", as functions, so that tests/test_mutations.py can see each of them fail."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prl.config import Sampling
from prl.engines.torch import TorchEngine
from tests.helpers import Remember, fingerprint, pay, play_tasks, runner, small, weights

Delay = Callable[[int], float]
"""Seconds to sleep, given a number that differs between branches."""


class Recorded(TorchEngine):
    """The torch engine, with the keys of each round."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.rounds: list[Any] = []

    async def generate(self, requests: Any) -> Any:
        self.rounds.append([request.key for request in requests])
        return await super().generate(requests)


def any_delay(_: int) -> float:
    return random.SystemRandom().uniform(0, 0.004)


def forwards(number: int) -> float:
    return 0.002 * number


def backwards(number: int) -> float:
    return 0.002 * (20 - number)


def busy_play(delay: Delay) -> Callable[..., Any]:
    """Two turns, a fork into three with a fork inside one of them, draws of rng everywhere, sleeps in between."""

    async def solve(agents: Any, rng: Any, number: int) -> float:
        await asyncio.sleep(delay(number))
        solver = agents.new("solver")
        first = await solver.respond(f"try {rng.randrange(1000)}")
        await asyncio.sleep(delay(number))
        return pay(first.content) + pay((await solver.respond("again")).content)

    async def nested(agents: Any, rng: Any, number: int) -> float:
        await asyncio.sleep(delay(number))
        inner = await agents.gather(*(solve(agents, rng, number + i) for i in range(2)))
        return sum(inner) + pay((await agents.new("solver").respond(f"sum {rng.random():.3f}")).content)

    async def play(task: Any, agents: Any, rng: Any) -> dict[str, float]:
        number = int(task.key[1:])
        await asyncio.sleep(delay(number))
        await agents["proposer"].respond(task.prompt)
        branches = [solve(agents, rng, number + 5), nested(agents, rng, number + 9), solve(agents, rng, number + 2)]
        paid = await agents.gather(*branches)
        await agents["proposer"].respond(f"they got {paid}")
        return {"solver": sum(paid), "proposer": rng.random()}

    return play


def busy_run(delay: Delay) -> tuple[Any, Any]:
    """(rounds, fingerprint) of three busy episodes on a tiny model."""
    policy = small(hidden=64, layers=2, max_positions=512)
    engine = Recorded(policy.module)
    played = play_tasks(
        busy_play(delay), engine, agents=("proposer", "solver"), policy=policy, sampling=Sampling(max_tokens=6)
    )
    assert [p.error for p in played] == [None] * 3
    return engine.rounds, fingerprint(played)


def check_sleeps_do_not_matter(first: Delay, second: Delay) -> None:
    one, two = busy_run(first), busy_run(second)
    assert one[0] == two[0], "rounds differ"
    assert one[1] == two[1], "episodes differ"


def check_resume(folder: Path, *, before: int = 2, after: int = 2) -> None:
    """before + after steps straight equal before, save, another Runner, load, after."""
    straight, first, second = (runner(algorithm=Remember()) for _ in range(3))
    expected = [straight.step() for _ in range(before + after)]
    for _ in range(before):
        first.step()
    second.load(first.save(folder))
    for _ in range(after):
        second.step()
    assert fingerprint(second.history) == fingerprint(expected)
    assert fingerprint(second._state) == fingerprint(straight._state)
    assert fingerprint(weights(second)) == fingerprint(weights(straight))
