"""Interleaving: a table of trajectories worked by hand, golden cases, invariants."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.trajectories import interleave
from prl.types import ROLES, Step, TopK

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "interleave.json").read_text())
NONE, USER, ASSISTANT = (ROLES.index(name) for name in ("none", "user", "assistant"))


def step(prompt, completion, **settings):
    return Step(prompt, completion, [-1.0] * len(completion), **settings)


def drawn(sample):
    """A sample as text; trained tokens have a star."""
    pairs = zip(sample.token_ids.tolist(), sample.loss_mask, strict=True)
    return " ".join(f"{token}*" if trained else f"{token}" for token, trained in pairs)


def up_to(n, first=1):
    return list(range(first, n + 1))


REJECTED = {"trainable": False}
CASES = {  # name: (calls (prompt, completion[, settings]), samples)
    "each call extends the last": (
        [([1, 2], [3, 4]), (up_to(6), [7, 8]), (up_to(9), [10])],
        ["1 2 3* 4* 5 6 7* 8* 9 10*"],
    ),
    "the earlier turns count as prefix, not just the last one": (
        [([1, 2], [3]), ([1, 2, 3, 4], [5]), (up_to(6), [7])],
        ["1 2 3* 4 5* 6 7*"],
    ),
    "the history is rewritten at call 4": (
        [
            ([1, 2], [3, 4]), (up_to(6), [7, 8]), (up_to(10), [11, 12]),
            ([1, 2, 3, 5, 6, 7, 9, 10, 20], [21]), ([1, 2, 3, 5, 6, 7, 9, 10, 20, 21, 22], [23]),
        ],
        ["1 2 3* 4* 5 6 7* 8* 9 10 11* 12*", "1 2 3 5 6 7 9 10 20 21* 22 23*"],
    ),
    "two agents alternate": (
        [
            ([1, 2], [3, 4], {"agent": "a"}), (up_to(6), [7, 8], {"agent": "a"}),
            ([100, 101], [102, 103], {"agent": "b"}), (up_to(10), [11, 12], {"agent": "a"}),
            (up_to(104, 100), [105], {"agent": "b"}),
        ],
        ["1 2 3* 4* 5 6 7* 8* 9 10 11* 12*", "100 101 102* 103* 104 105*"],
    ),
    "the longest open prefix wins": (
        [([1, 2], [3]), ([1, 2], [3, 4, 5]), ([1, 2, 3, 4, 5, 6], [7]), ([1, 2, 3, 8], [9])],
        ["1 2 3* 8 9*", "1 2 3* 4* 5* 6 7*"],
    ),
    "of two equal prefixes the oldest wins": (
        [([1, 2], [3]), ([1, 2], [3]), ([1, 2, 3, 4], [5]), ([1, 2, 3, 6], [7])],
        ["1 2 3* 4 5*", "1 2 3* 6 7*"],
    ),
    "a fork after a sampled turn": (
        [([1, 2], [3, 4]), (up_to(5), [6]), ([1, 2, 3, 4, 9], [10])],
        ["1 2 3* 4* 5 6*", "1 2 3 4 9 10*"],
    ),
    "the same prompt twice": ([([1, 2], [3, 4]), ([1, 2], [5, 6])], ["1 2 3* 4*", "1 2 5* 6*"]),
    "a completion token comes back as another": (
        [([1, 2], [3, 4]), ([1, 2, 3, 99, 5], [6])],
        ["1 2 3* 4*", "1 2 3 99 5 6*"],
    ),
    "two sampled tokens come back as one: a=1, b=2, ab=3": ([([9], [1, 2]), ([9, 3, 5], [6])], ["9 1* 2*", "9 3 5 6*"]),
    "a template drops the thinking of turn 1": (
        [([1, 2], [70, 71, 3]), ([1, 2, 3, 4], [70, 72, 5])],
        ["1 2 70* 71* 3*", "1 2 3 4 70* 72* 5*"],
    ),
    "a cut turn whose close the renderer adds": (
        [([1, 2], [3, 4], {"truncated": True}), ([1, 2, 3, 4, 50, 5], [6, 51])],
        ["1 2 3* 4* 50 5 6* 51*"],
    ),
    "an empty completion, then more": ([([1, 2], []), ([1, 2, 3], [4])], ["1 2 3 4*"]),
    "no sampled token": ([([1, 2], [])], []),
    "no call": ([], []),
    "resumed where it stopped": ([([1, 2], [3, 4]), ([1, 2, 3, 4], [5])], ["1 2 3* 4* 5*"]),
    "compaction": (
        [([1, 2], [3]), ([1, 2, 3, 4], [5]), ([1, 2, 3, 4, 5, 60], [61, 62]), ([1, 61, 62], [7])],
        ["1 2 3* 4 5* 60 61* 62*", "1 61 62 7*"],
    ),
    "a rejected attempt is context, the accepted one trains": (
        [([1, 2], [3]), ([1, 2, 3, 60], [61], REJECTED), ([1, 2, 3, 60], [62]), ([1, 62], [7])],
        ["1 2 3* 60 61", "1 2 3 60 62*", "1 62 7*"],
    ),
    "all attempts rejected": (
        [([1, 2], [3]), ([1, 2, 3, 60], [61], REJECTED), ([1, 2, 3, 60], [62], REJECTED)],
        ["1 2 3* 60 61"],
    ),
    "a prompt shorter than the prefix": ([([1, 2, 3], [4]), ([1, 2], [5])], ["1 2 3 4*", "1 2 5*"]),
    "a sub-agent shares the system prompt": (
        [([1, 2], [3]), ([1, 9], [10]), ([1, 2, 3, 10], [4])],
        ["1 2 3* 10 4*", "1 9 10*"],
    ),
    "an agent whose prompt extends another's stream": (
        [([1, 2], [3], {"agent": "a"}), ([1, 2, 3, 4], [5], {"agent": "b"})],
        ["1 2 3* 4 5*"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("calls", "expected"), CASES.values(), ids=CASES)
def test_case(calls, expected):
    steps = [step(prompt, completion, **dict(*rest)) for prompt, completion, *rest in calls]
    samples = interleave(steps, id="t")
    assert [drawn(sample) for sample in samples] == expected
    assert [sample.id for sample in samples] == [f"t#{i}" for i in range(len(expected))]


def test_golden():
    for case in GOLDEN:
        samples = interleave([step(*call) for call in case["steps"]])
        got = [[s.token_ids.tolist(), s.loss_mask.astype(int).tolist()] for s in samples]
        assert got == case["samples"]


def test_the_calls_that_made_a_sample_need_not_be_neighbours():
    calls = [(up_to(2), [3]), ([9], [8]), (up_to(4), [5]), ([9, 8, 7], [6])]
    samples = interleave([step(*call) for call in calls])
    assert [sorted(set(sample.step.tolist())) for sample in samples] == [[0, 2], [1, 3]]


@pytest.mark.parametrize("turns", [1, 4, 16])
def test_merging_saves_what_the_history_repeats(turns):
    # Each turn adds 3 sampled and 2 observed tokens: merged 5T - 2 + 1, unmerged the sum over turns.
    tokens, steps = [0], []
    for turn in range(turns):
        steps.append(step(tokens, [10 + turn] * 3))
        tokens = [*tokens, *[10 + turn] * 3, 1, 2]
    (sample,) = interleave(steps)
    assert len(sample) == 1 + 5 * turns - 2 and sample.loss_mask.sum() == 3 * turns
    broken = [step([100 + i, *s.prompt_ids.tolist()], s.completion_ids.tolist()) for i, s in enumerate(steps)]
    assert sum(map(len, interleave(broken))) == sum(1 + 1 + 5 * k + 3 for k in range(turns))


def test_by_agent_keeps_a_hand_off_apart():
    steps = [step([1, 2], [3], agent="a"), step([1, 2, 3, 4], [5], agent="b"), step([1, 2, 3, 6], [7], agent="a")]
    assert [drawn(s) for s in interleave(steps, by_agent=True)] == ["1 2 3* 6 7*", "1 2 3 4 5*"]


def test_every_stream_of_a_merged_sample():
    first = Step(
        [1, 2], [3, 4], [-0.1, -0.2], prompt_roles=[NONE, USER], prompt_content=[False, True],
        prompt_messages=[-1, 0], temperature=0.5, version=6,
    )  # fmt: skip
    second = Step(
        [1, 2, 3, 4, 5], [6], [-0.3], prompt_roles=[NONE, USER, NONE, NONE, USER], version=7,
        prompt_content=[False] * 4 + [True], prompt_messages=[-1, 0, -1, -1, 2], temperature=2,
    )  # fmt: skip
    (got,) = interleave([first, second])
    assert got.loss_mask.tolist() == [False, False, True, True, False, True]
    assert got.inference_logprobs.tolist() == pytest.approx([0, 0, -0.1, -0.2, 0, -0.3])
    assert got.temperatures.tolist() == [1, 1, 0.5, 0.5, 1, 2]
    assert got.roles.tolist() == [NONE, USER, ASSISTANT, ASSISTANT, USER, ASSISTANT]
    assert got.content.tolist() == [False, True, True, True, True, True]
    assert got.message.tolist() == [-1, 0, 1, 1, 2, 3]
    assert got.step.tolist() == [0, 0, 0, 0, 1, 1]
    assert got.version.tolist() == [-1, -1, 6, 6, -1, 7]
    assert (got.advantages, got.rl_weights, got.topk) == (None, None, None)


def test_without_attribution_content_is_unknown():
    (got,) = interleave([step([1, 2], [3])])
    assert got.content is None and got.roles.tolist() == [NONE, NONE, ASSISTANT]


def test_log_probabilities_of_untrained_calls_are_left_out():
    (got,) = interleave([step([1, 2], [3]), Step([1, 2, 3, 4], [5], None, trainable=False)])
    assert got.inference_logprobs.tolist() == [0, 0, -1, 0, 0]
    (got,) = interleave([step([1, 2], [3]), Step([1, 2, 3, 4], [5], None)])
    assert got.inference_logprobs is None  # one trained call has none


def test_candidates_stand_at_trained_tokens():
    narrow = step([1], [2], topk=TopK([[2]], [[-0.5]]))
    wide = step([1, 2, 3], [4], topk=TopK([[4, 5]], [[-0.1, -2.0]]))
    rejected = step([1, 2, 3, 4], [5], topk=TopK([[7, 8, 9]], [[-1, -1, -1]]), trainable=False)
    (got,) = interleave([narrow, wide, rejected])
    assert got.topk.ids.tolist() == [[0, 0], [2, 0], [0, 0], [4, 5], [0, 0]]
    low = -np.inf
    want = [[low, low], [-0.5, low], [low, low], [-0.1, -2.0], [low, low]]
    np.testing.assert_allclose(got.topk.logprobs, want, rtol=1e-6)
    assert interleave([narrow, step([1, 2, 3], [4])])[0].topk is None


@st.composite
def trajectories(draw, first=0):
    """Calls of one agent: each extends an earlier one, or breaks with it; some are rejected."""
    tokens = st.integers(first + 1, first + 4)
    steps = []
    for _ in range(draw(st.integers(1, 7))):
        base = draw(st.sampled_from([None, *steps]))
        stem = [first] if base is None else [*base.prompt_ids.tolist(), *base.completion_ids.tolist()]
        stem = stem[: draw(st.integers(1, len(stem)))] if draw(st.booleans()) else stem
        prompt = [*stem, *draw(st.lists(tokens, max_size=3))]
        completion = draw(st.lists(tokens, max_size=3))
        steps.append(step(prompt, completion, trainable=draw(st.booleans()), agent=f"agent{first}"))
    return steps


@settings(deadline=None)
@given(trajectories())
def test_every_trained_token_trains_once(steps):
    trained = sum(int(sample.loss_mask.sum()) for sample in interleave(steps))
    assert trained == sum(len(s.completion_ids) for s in steps if s.trainable)


@settings(deadline=None)
@given(trajectories())
def test_a_sample_is_the_prompt_and_completion_of_its_last_call(steps):
    for sample in interleave(steps):
        last = steps[sample.step.max()]
        assert sample.token_ids.tolist() == [*last.prompt_ids.tolist(), *last.completion_ids.tolist()]
        assert all(sample.step[i] <= sample.step[i + 1] for i in range(len(sample) - 1))


@settings(deadline=None)
@given(trajectories())
def test_every_sample_is_one_call_if_and_only_if_every_call_breaks(steps):
    steps = [s for s in steps if s.trainable and len(s.completion_ids)]
    whole = [[*s.prompt_ids.tolist(), *s.completion_ids.tolist()] for s in steps]
    extends = [any(s.prompt_ids.tolist()[: len(w)] == w for w in whole[:i]) for i, s in enumerate(steps)]
    assert all(len(set(sample.step.tolist())) == 1 for sample in interleave(steps)) == (not any(extends))


@settings(deadline=None)
@given(trajectories(), trajectories(first=100), st.randoms(use_true_random=False))
def test_independent_agents_may_run_in_any_order(a, b, random):
    turns = random.sample([0] * len(a) + [1] * len(b), len(a) + len(b))
    queues = iter(a), iter(b)
    shuffled = [next(queues[turn]) for turn in turns]
    assert sorted(map(drawn, interleave(shuffled))) == sorted(map(drawn, interleave([*a, *b])))
    assert sorted(map(drawn, interleave(shuffled, by_agent=True))) == sorted(map(drawn, interleave([*a, *b])))


@settings(deadline=None)
@given(trajectories())
def test_calls_stay_as_they_were(steps):
    before = [(s.prompt_ids.tolist(), s.completion_ids.tolist()) for s in steps]
    interleave(steps)
    assert before == [(s.prompt_ids.tolist(), s.completion_ids.tolist()) for s in steps]
