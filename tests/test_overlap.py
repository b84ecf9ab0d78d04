"""One step of overlap: which version samples what, the same bits however it is driven, interrupted or resumed."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from prl.config import IPO, AdamW, Sampling
from prl.engines.scripted import ScriptedEngine
from prl.errors import TrainingError
from prl.losses import ipo
from prl.runner import Runner
from tests.helpers import END, PlayEnv, Remember, fingerprint, one_reply, pay, runner, small, weights
from tests.test_checkpoint import ROOT, everything

BOTH = pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])


class Log(ScriptedEngine):
    """Answers with a byte that tells episodes of a group apart; writes down every load and call."""

    def __init__(self):
        super().__init__(lambda request: [97 + request.key[4], END])
        self.events = []

    def load_weights(self, named_tensors, version):
        super().load_weights(named_tensors, version)
        self.events.append(("load", version))

    async def generate(self, requests):
        self.events.append(("sample", self.version, [r.key[3] for r in requests]))
        await asyncio.sleep(0)
        return await super().generate(requests)


def versions(groups):
    return {step.version for group in groups for trace in group.traces for step in trace.steps}


@pytest.mark.parametrize(("overlap", "behind"), [(False, 1), (True, 2)], ids=["in turn", "overlapped"])
def test_the_version_schedule_and_the_task_order(overlap, behind):
    engine = Log()
    run = runner(engine=engine, overlap=overlap)
    seen = []
    for _ in range(5):
        groups = run.collect()
        seen.append((versions(groups), [g.id for g in groups]))
        run.update(run.pack(groups))
    assert [v for v, _ in seen] == [{max(0, n - behind)} for n in range(1, 6)]
    assert [ids for _, ids in seen] == [[f"env/train{(2 * n + i) % 4}@{2 * n + i}" for i in range(2)] for n in range(5)]
    assert [r.version for r in run.history] == [1, 2, 3, 4, 5]
    sampled = [(e[1], sorted(set(e[2]))) for e in engine.events if e[0] == "sample"]
    ahead = [(max(0, n - behind), [2 * (n - 1), 2 * n - 1]) for n in range(1, 6 + (behind - 1))]
    assert sampled == ahead  # each step's draws once, by the scheduled version, nothing sampled twice


def test_learning_and_collecting_take_turns_within_an_update():
    """With several micro-batches the engine is asked between them, not before or after all of them."""
    events = []

    class Engine(Log):
        async def generate(self, requests):
            events.append("sample")
            return await super().generate(requests)

    def loss(trainer_logprobs, inference_logprobs, advantages):
        events.append("learn")
        return ipo(trainer_logprobs, inference_logprobs, advantages)

    run = runner(engine=Engine(), overlap=True, loss=loss, max_tokens=64, batch_size=16)
    batch = run.pack(run.collect())
    assert len(batch.rows) > 2
    events.clear()
    run.update(batch)
    assert events.index("sample") < len(events) - 1 - events[::-1].index("learn")


@BOTH
def test_cells_equal_steps(overlap):
    steps, cells = runner(algorithm=Remember(), overlap=overlap), runner(algorithm=Remember(), overlap=overlap)
    steps.fit(3)
    for _ in range(3):
        groups = cells.collect()
        assert fingerprint(cells.collect()) == fingerprint(groups)
        batch = cells.pack(groups)
        cells.losses(batch)
        cells.update(batch)
        cells.evaluate("test", 2)
    assert everything(cells) == everything(steps)
    assert fingerprint(cells.collect()) == fingerprint(steps.collect())


CONTINUE = """
import sys
from tests.helpers import *
run = runner(algorithm=Remember(), overlap=True)
assert run.load(sys.argv[1]) == []
run.fit(3)
run.save(sys.argv[2])
"""


def test_three_steps_save_another_process_three_steps_equal_six(tmp_path):
    straight, first, second = (runner(algorithm=Remember(), overlap=True) for _ in range(3))
    straight.fit(6)
    first.fit(3)
    first.save(tmp_path / "three")
    command = [sys.executable, "-c", CONTINUE, str(tmp_path / "three"), str(tmp_path / "six")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ, timeout=200)
    assert done.returncode == 0, done.stderr
    second.load(tmp_path / "six")
    assert everything(second) == everything(straight)
    assert fingerprint(second.step()) == fingerprint(straight.step())


def test_the_two_modes_differ_and_a_checkpoint_says_so(tmp_path):
    ahead, in_turn = runner(overlap=True), runner()
    ahead.fit(3)
    in_turn.fit(3)
    assert fingerprint(ahead.history[0]) == fingerprint(in_turn.history[0])  # both sample step 1 from version 0
    assert fingerprint(ahead.history[2]) != fingerprint(in_turn.history[2])
    with pytest.warns(UserWarning, match="overlap: True -> False"):
        in_turn.load(ahead.save(tmp_path / "ahead"))


def interrupted(where):
    """(run, expected) after 4 steps, one of which was interrupted in its update by a real SIGINT."""
    armed = []

    def ctrl_c():
        if armed:
            armed.pop()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

    async def play(task, agents, rng):
        reply = await agents["agent"].respond(task.prompt)
        if where == "collect":
            ctrl_c()
            await asyncio.sleep(0.01)
        return pay(reply.content)

    def loss(trainer_logprobs, inference_logprobs, advantages):
        if where == "learn":
            ctrl_c()
        return ipo(trainer_logprobs, inference_logprobs, advantages)

    run, expected = (runner(PlayEnv(play), algorithm=Remember(), overlap=True, loss=loss) for _ in range(2))
    run.fit(2)
    batch = run.pack(run.collect())
    armed.append(True)
    with pytest.raises(KeyboardInterrupt):
        run.update(batch)
    assert [r.step for r in run.history] == [1, 2, 3] and run._ahead.groups is None
    return run, expected


@pytest.mark.parametrize("where", ["collect", "learn"])
def test_an_interrupt_keeps_the_update_and_collects_again_from_the_same_weights(where, tmp_path):
    run, expected = interrupted(where)
    run.evaluate("test", 2)  # brings newer weights to the engine in between
    run.step()
    expected.fit(4)
    assert everything(run) == everything(expected)


def test_save_after_an_interrupt_collects_first(tmp_path):
    run, expected = interrupted("collect")
    folder = run.save(tmp_path / "saved")
    other = runner(run._streams[0].env, algorithm=Remember(), overlap=True, loss=run.loss)
    other.load(folder)
    other.step()
    expected.fit(4)
    assert fingerprint(other.history) == fingerprint(expected.history)
    assert torch.equal(weights(other), weights(expected))


def test_a_failed_update_leaves_what_was_collected():
    run, expected = runner(overlap=True), runner(overlap=True)
    run.fit(2)
    groups, state = run.collect(), run._state
    run.loss = lambda lp, mu, adv: ipo(lp, mu, adv)._replace(per_token=lp * float("inf"))
    with pytest.raises(TrainingError, match="Runner.update, step 3: the rl loss is"):
        run.update(run.pack(groups))
    assert run._state is state and run.collect() is groups
    run.loss = IPO()
    run.step()
    expected.fit(3)
    assert torch.equal(weights(run), weights(expected))


def test_a_failure_in_what_is_collected_ahead_is_raised_by_the_next_call():
    broken = []

    async def play(task, agents, rng):
        reply = await agents["agent"].respond(task.prompt)
        if broken:
            raise KeyError("typo")
        return pay(reply.content)

    run, expected = runner(PlayEnv(play), overlap=True), runner(PlayEnv(play), overlap=True)
    run.step()
    batch = run.pack(run.collect())
    broken.append(True)
    run.update(batch)
    with pytest.raises(TrainingError, match="all 8 episodes failed; the first with KeyError"):
        run.step()
    assert len(run.history) == 2
    broken.clear()
    run.step()
    expected.fit(3)
    assert fingerprint(run.history) == fingerprint(expected.history)


def test_a_hand_made_batch_does_not_collect_ahead():
    run = Runner(small(), PlayEnv(one_reply), overlap=True, batch_size=8, group_size=4, optimizer=AdamW(lr=1e-2),
                 sampling=Sampling(max_tokens=5))  # fmt: skip
    samples = [s for g in run.collect() for s in g.samples]
    run.update(run.pack(samples))
    assert run._ahead.weights is None and [r.step for r in run.history] == [1]
