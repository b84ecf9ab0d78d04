"""Agents: histories that extend themselves, who said which token, forks, rewards, randomness of a branch."""

import asyncio

import numpy as np
import pytest
import torch

from prl.config import Sampling
from prl.engines.scripted import ScriptedEngine
from prl.types import ROLES
from tests.helpers import END, echoing, errors, play_tasks, saying

USER, ASSISTANT, SYSTEM = ROLES.index("user"), ROLES.index("assistant"), ROLES.index("system")


def only(play, engine=None, **settings):
    """The one episode of a play."""
    (played,) = play_tasks(play, engine or saying("hi"), episodes=1, **settings)
    assert played.error is None, played.error
    return played.episode


def text(ids):
    return bytes(np.asarray(ids)[np.asarray(ids) < 256].tolist()).decode()


def test_a_reply_is_the_text_without_its_stop_token():
    async def play(task, agents, rng):
        reply = await agents["agent"].respond("2 + 2?")
        assert reply == ("four", None, (), False)
        return 1.0

    (trace,) = only(play, saying("four")).traces
    assert trace.steps[0].completion_ids.tolist() == [*b"four", END]
    assert [(m["role"], m["content"]) for m in trace.messages] == [("user", "2 + 2?"), ("assistant", "four")]
    assert not trace.steps[0].truncated


def test_an_answer_without_stop_token_is_truncated():
    async def play(task, agents, rng):
        reply = await agents["agent"].respond("2 + 2?")
        assert (reply.content, reply.truncated) == ("fo", True)
        return 1.0

    (trace,) = only(play, saying("four"), sampling=Sampling(max_tokens=2)).traces
    assert trace.steps[0].truncated


def test_each_turn_extends_the_last_so_that_a_conversation_is_one_sample():
    async def play(task, agents, rng):
        agent = agents["agent"]
        await agent.respond([{"role": "system", "content": "Be short."}, {"role": "user", "content": "ab"}])
        await agent.respond("cd")
        await agent.respond("efgh")
        return 1.0

    (trace,) = only(play, echoing()).traces
    first, second, third = trace.steps
    for before, after in ((first, second), (second, third)):
        prior = [*before.prompt_ids, *before.completion_ids]
        assert after.prompt_ids[: len(prior)].tolist() == prior
    (sample,) = trace.samples
    assert text(sample.token_ids[sample.loss_mask]) == "abcdefgh"
    assert sample.loss_mask.sum() == 3 + 3 + 5


def test_a_truncated_turn_is_closed_by_a_token_that_nobody_trains():
    async def play(task, agents, rng):
        await agents["agent"].respond("a")
        await agents["agent"].respond("b")
        return 1.0

    (trace,) = only(play, saying("four"), sampling=Sampling(max_tokens=2)).traces
    (sample,) = trace.samples
    at = len(trace.steps[0].prompt_ids) + 2
    assert sample.token_ids[at] == END and not sample.loss_mask[at]
    assert sample.loss_mask[at - 2 : at].all()


def test_every_token_knows_its_message_role_and_whether_it_is_content():
    async def play(task, agents, rng):
        await agents["agent"].respond([{"role": "system", "content": "sys"}, {"role": "user", "content": "usr"}])
        await agents["agent"].respond("more")
        return 1.0

    (trace,) = only(play, saying("yes")).traces
    (sample,) = trace.samples
    said = [(m["role"], m["content"]) for m in trace.messages]
    assert said == [
        ("system", "sys"), ("user", "usr"), ("assistant", "yes"), ("user", "more"), ("assistant", "yes"),
    ]  # fmt: skip
    for i, (role, content) in enumerate(said):
        own = sample.message == i
        assert set(sample.roles[own].tolist()) == {ROLES.index(role)}
        assert text(sample.token_ids[own & sample.content]) == content
    assert set(sample.roles[sample.message == -1].tolist()) == {0}
    assert not sample.content[sample.message == -1].any()
    assert (sample.step == np.repeat([0, 1], [len(sample) - (sample.step == 1).sum(), (sample.step == 1).sum()])).all()


def test_restart_renders_the_new_history_and_opens_a_second_sample():
    async def play(task, agents, rng):
        agent = agents["agent"]
        await agent.respond("a long story")
        agent.restart([{"role": "system", "content": "Summary."}, {"role": "assistant", "content": "Fine."}])
        await agent.respond("go on")
        await agent.respond("and on")
        return 1.0

    (trace,) = only(play, echoing()).traces
    prompt = text(trace.steps[1].prompt_ids)
    assert prompt == "system\nSummary.\nassistant\nFine.\nuser\ngo on\nassistant\n"
    first, second = trace.samples
    assert text(second.token_ids[second.loss_mask]) == "go onand on"
    indices = {int(i): ROLES[int(r)] for i, r in zip(second.message, second.roles, strict=True) if i >= 0}
    assert indices == {2: "system", 3: "assistant", 4: "user", 5: "assistant", 6: "user", 7: "assistant"}


WRONG = {
    "no message": ([], "got no message to respond to"),
    "assistant": (
        [{"role": "assistant", "content": "x"}],
        "got an assistant message; respond.. takes only what is new",
    ),
    "no role": ([{"content": "x"}], "a message is a dict with a 'role' and a 'content'"),
}


@pytest.mark.parametrize(("messages", "message"), WRONG.values(), ids=WRONG)
def test_wrong_messages_are_errors(messages, message):
    async def play(task, agents, rng):
        with pytest.raises(ValueError, match=message):
            await agents["agent"].respond(messages)
        await agents["agent"].respond("the failed call left no trace")
        return 1.0

    (trace,) = only(play).traces
    assert len(trace.messages) == 2


def test_an_unknown_role_is_an_error():
    async def play(task, agents, rng):
        agents["solvr"]

    (error,) = errors(play_tasks(play, saying("hi"), episodes=1, agents=("solver", "judge")))
    assert "unknown role 'solvr'; this environment declares solver, judge" in error


def test_traces_are_numbered_by_role_then_branch_then_order():
    async def branch(agents, name):
        await asyncio.sleep(0.02 if name == "a" else 0)
        for i in range(2):
            await agents.new("solver").respond(f"{name}{i}")

    async def play(task, agents, rng):
        await agents.gather(branch(agents, "a"), branch(agents, "b"))
        await agents.new("solver").respond("root")
        await agents["judge"].respond("judge")
        await agents["solver"].respond("own")
        return 0.0

    traces = only(play, echoing(), agents=("judge", "solver")).traces
    assert [t.id.removeprefix("e0/") for t in traces] == [
        "judge", "solver", "solver.1", "solver.2", "solver.3", "solver.4", "solver.5",
    ]  # fmt: skip
    assert [t.messages[0]["content"] for t in traces] == ["judge", "own", "root", "a0", "a1", "b0", "b1"]


def test_gather_returns_results_in_order_also_when_nested_or_empty():
    async def leaf(agents, i):
        await asyncio.sleep(0.004 * (4 - i))
        return (await agents.new("agent").respond(str(i))).content

    async def play(task, agents, rng):
        async def pair(i):
            return await agents.gather(leaf(agents, i), leaf(agents, i + 1))

        assert await agents.gather(pair(0), pair(2)) == [["0", "1"], ["2", "3"]]
        assert await agents.gather() == []
        return 1.0

    assert len(only(play, echoing()).traces) == 4


def test_a_branch_error_cancels_its_siblings_and_is_raised():
    ended = []

    async def fail():
        raise ValueError("no")

    async def sleeper():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("sleeper")

    async def asker(agents):
        try:
            await agents.new("agent").respond("hello")
        finally:
            ended.append("asker")

    async def play(task, agents, rng):
        with pytest.raises(ValueError, match="no"):
            await agents.gather(sleeper(), asker(agents), fail())
        assert sorted(ended) == ["asker", "sleeper"]
        return pay_after(await agents["agent"].respond("still here"))

    assert [t.messages[0]["content"] for t in only(play, echoing()).traces] == ["still here"]


def pay_after(reply):
    return float(len(reply.content))


def test_rng_belongs_to_the_branch_and_not_to_the_order_of_draws():
    def draws(delays):
        async def branch(rng, delay):
            await asyncio.sleep(delay)
            first = rng.random()
            await asyncio.sleep(delay)
            return first, rng.randrange(10**9), rng.gauss(), rng.sample(range(100), 5), rng.randbytes(4)

        seen = []

        async def play(task, agents, rng):
            before = rng.random()
            inside = await agents.gather(*(branch(rng, d) for d in delays))
            seen.append((before, inside, rng.choice(range(10**6))))
            await agents["agent"].respond("done")
            return 0.0

        assert errors(play_tasks(play, saying("hi"), episodes=2)) == [None, None]
        return sorted(seen)

    one, two = draws([0, 0.004, 0.008]), draws([0.008, 0.004, 0])
    assert one == two
    values = [repr(inside) for _, branches, _ in one for inside in branches]
    assert len(set(values)) == 6


def reward_of(outcome, roles=("agent", "judge")):
    async def play(task, agents, rng):
        for role in roles:
            await agents[role].respond("x")
        return outcome(agents) if callable(outcome) else outcome

    return play_tasks(play, saying("hi"), episodes=1, agents=("agent", "judge"))[0]


REWARDS = {
    "a number": (0.5, [0.5, 0.5]),
    "an int": (1, [1.0, 1.0]),
    "a bool": (True, [1.0, 1.0]),
    "a tensor": (torch.tensor(0.25), [0.25, 0.25]),
    "float32": (0.1, [float(np.float32(0.1))] * 2),
    "by role": ({"agent": 1, "judge": -1}, [1.0, -1.0]),
    "by agent": (lambda agents: {agents["agent"]: 2.0, agents["judge"]: np.float64(3)}, [2.0, 3.0]),
    "agent before role": (lambda agents: {agents["agent"]: 2.0, "agent": 7.0, "judge": 0}, [2.0, 0.0]),
}


@pytest.mark.parametrize(("outcome", "expected"), REWARDS.values(), ids=REWARDS)
def test_rewards(outcome, expected):
    played = reward_of(outcome)
    assert played.error is None and [t.reward for t in played.episode.traces] == expected


WRONG_REWARDS = {
    "unknown role": ({"agent": 1, "judge": 1, "juge": 0}, "a reward for 'juge'; roles are agent, judge"),
    "missing": ({"agent": 1}, "no reward for agent 'judge', which spoke"),
    "nan": (float("nan"), "Reward of play: got nan; need a finite number"),
    "infinite": ({"agent": 1, "judge": float("inf")}, "Reward of judge: got inf"),
    "string": ("1.0", "got '1.0' of type str; need a finite number"),
    "none": (None, "got None of type NoneType"),
}


@pytest.mark.parametrize(("outcome", "message"), WRONG_REWARDS.values(), ids=WRONG_REWARDS)
def test_wrong_rewards_are_errors(outcome, message):
    played = reward_of(outcome)
    assert message in str(played.error)
    assert [t.valid for t in played.episode.traces] == [False, False]


def test_an_agent_that_never_spoke_needs_no_reward_and_leaves_no_trace():
    played = reward_of({"agent": 1}, roles=("agent",))
    assert [t.agent for t in played.episode.traces] == ["agent"]


def test_the_version_and_temperature_of_a_call_are_on_its_step():
    engine = ScriptedEngine(lambda request: [END])
    engine.load_weights([], 7)

    async def play(task, agents, rng):
        await agents["agent"].respond("x")
        return 1.0

    (trace,) = only(play, engine, sampling=Sampling(temperature=0.5)).traces
    assert (trace.steps[0].version, trace.steps[0].temperature) == (7, 0.5)
    assert set(trace.samples[0].temperatures[trace.samples[0].loss_mask].tolist()) == {0.5}
