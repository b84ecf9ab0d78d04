"""What a rollout cost: worked examples of both length penalties, then laws."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantages import group_norm, linear_length_penalty
from prl.errors import DataError
from prl.trajectories import subagent_steps, token_counts
from prl.types import Episode, Group, Step, Task, Trace, TrainingSample

LAW = settings(deadline=None)


def call(prompt, completion):
    return Step(prompt, completion, None)


def calls(*lengths):
    """Calls of (parent, new prompt tokens, completion tokens); each token is new, parents are earlier calls or None."""
    steps, tokens = [], iter(range(10_000))
    for parent, fresh, written in lengths:
        stem = [] if parent is None else [*steps[parent].prompt_ids.tolist(), *steps[parent].completion_ids.tolist()]
        steps.append(call([*stem, *(next(tokens) for _ in range(fresh))], [next(tokens) for _ in range(written)]))
    return steps


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], (0, 0, 0)),
        (calls((None, 2, 1)), (1, 2, 1)),
        (calls((None, 2, 1), (0, 3, 4), (1, 0, 5)), (10, 5, 3)),  # a resumed call brings nothing new
        (calls((None, 2, 1), (None, 4, 1)), (2, 6, 2)),  # a rewritten history is read again
        # A shared call of 2 in and 1 out, then branches that write 2 and 4: once each, 7 and 2, where adding up the
        # branches would give 8 and 4.
        (calls((None, 2, 1), (0, 0, 2), (0, 0, 4)), (7, 2, 3)),
        (calls((None, 2, 0), (0, 1, 3)), (3, 3, 2)),  # an empty completion is a turn
        ([call([1, 2], [3, 4]), call([1, 2, 99, 4, 5], [6])], (3, 7, 2)),  # a token came back as another
    ],
)
def test_row(steps, expected):
    assert token_counts(steps) == expected


# The root calls twice; in between a child of two calls asks a grandchild, sums up and goes on from its summary.
#         r1               c1           c2         g1         s1         c3             r2
CALLS = [(None, 10, 5), (None, 20, 30), (1, 8, 12), (None, 7, 9), (2, 3, 15), (None, 16, 11), (0, 4, 6)]
R1, C1, C2, G1, S1, C3, R2 = range(7)
EDGES = [
    (R1, C1, "subagent_call"), (C1, C2, "continuation"), (C2, G1, "subagent_call"), (G1, S1, "return"),
    (C2, S1, "compaction_attempt"), (S1, C3, "compaction"), (C3, R2, "return"), (R1, R2, "continuation"),
]  # fmt: skip
ALONE = calls((None, 10, 5), (0, 4, 6))  # the root without help
REWARDS = torch.tensor([1, 1, 0], dtype=torch.float64)


def test_members_are_reached_from_a_call_and_a_return_leads_out():
    assert subagent_steps(EDGES) == {C1, C2, G1, S1, C3}


@pytest.mark.parametrize("kind", ["return", "cancel", "message", "something new"])
def test_edges_that_lead_nowhere(kind):
    assert subagent_steps([(0, 1, "subagent_call"), (1, 2, kind), (2, 3, "continuation")]) == {1}
    assert subagent_steps([(0, 1, kind)]) == set()


def test_the_order_of_edges_and_circles_do_not_matter():
    assert subagent_steps(reversed(EDGES)) == subagent_steps(EDGES)
    assert subagent_steps([(1, 2, "continuation"), (2, 1, "continuation"), (0, 2, "subagent_call")]) == {1, 2}
    assert subagent_steps([(0, 1, "continuation"), (1, 2, "compaction")]) == set()
    assert subagent_steps([]) == set()


@pytest.mark.parametrize(
    ("weight", "expected"), [(0.0, (11, 14, 7)), (0.5, (49.5, 41, 7)), (1.0, (88, 68, 7)), (0, (11, 14, 7))]
)
def test_sub_agents_tokens_weigh_what_is_asked(weight, expected):
    rollout = calls(*CALLS)
    assert token_counts(rollout, subagents=subagent_steps(EDGES), subagent_token_weight=weight) == expected
    assert token_counts(rollout, subagent_token_weight=weight) == (88, 68, 7)  # nobody is known to be a sub-agent
    assert token_counts(ALONE, subagents=subagent_steps([]), subagent_token_weight=weight) == (11, 14, 2)


@pytest.mark.parametrize(
    ("weight", "turns_weight", "expected"),
    [
        (1.0, 0.1, [0.4976, 0.2512, -0.7488]),  # linear
        (0.0, 0.0, [0.3996, 0.3996, -0.7992]),  # linear-subagent, as the page configures it
        (0.5, 0.0, [0.4327, 0.3333, -0.7661]),
        (1.0, 0.0, [0.4658, 0.2671, -0.7329]),
    ],
)
def test_both_length_penalties_on_sub_agents(weight, turns_weight, expected):
    # The root alone; the root with its sub-agents; the same calls without edges, which count in full.
    rollouts = [(ALONE, []), (calls(*CALLS), EDGES), (calls(*CALLS), [])]
    counts = [token_counts(s, subagents=subagent_steps(e), subagent_token_weight=weight) for s, e in rollouts]
    streams = torch.tensor(counts, dtype=torch.float64).T
    shaped = linear_length_penalty(REWARDS, *streams, num_turns_weight=turns_weight)
    torch.testing.assert_close(group_norm(shaped).tolist(), expected, rtol=0, atol=6e-5)


@st.composite
def rollouts(draw):
    """Calls that each extend an earlier one, possibly cut short, or start anew."""
    steps = []
    for _ in range(draw(st.integers(0, 6))):
        base = draw(st.sampled_from([None, *steps]))
        stem = [] if base is None else [*base.prompt_ids.tolist(), *base.completion_ids.tolist()]
        stem = stem[: draw(st.integers(0, len(stem)))] if draw(st.booleans()) else stem
        tokens = st.lists(st.integers(0, 3), max_size=3)
        steps.append(call([*stem, *draw(tokens)], draw(tokens)))
    return steps


@LAW
@given(rollouts(), st.data())
def test_counts_are_linear_in_the_weight_and_add_up(steps, data):
    members = data.draw(st.sets(st.integers(0, len(steps) - 1))) if steps else set()
    none, half, full = (token_counts(steps, subagents=members, subagent_token_weight=w) for w in (0.0, 0.5, 1.0))
    assert full == token_counts(steps) and full[2] == none[2] == len(steps)
    assert [2 * h for h in half[:2]] == pytest.approx([a + b for a, b in zip(none[:2], full[:2], strict=True)])
    others = set(range(len(steps))) - members
    rest = token_counts(steps, subagents=others, subagent_token_weight=0.0)
    assert [a + b for a, b in zip(none[:2], rest[:2], strict=True)] == list(full[:2])


@LAW
@given(rollouts())
def test_a_group_counts_the_same(steps):
    trace = Trace("t", "agent", steps, [TrainingSample("s", [1, 2], [False, True], [0, -1])], 1)
    group = Group("g", "env", Task("k", "What?"), [Episode("e", [trace])])
    assert (group.output_tokens.item(), group.input_tokens.item(), group.turns.item()) == token_counts(steps)


def test_what_is_refused():
    with pytest.raises(DataError, match=r"token_counts: subagents holds \[-1, 2\]; the rollout has 2 calls, from 0 on"):
        token_counts(ALONE, subagents={2, -1, 0})
    for weight in (-0.5, float("nan"), float("inf")):
        with pytest.raises(DataError, match=f"got subagent_token_weight={weight}; need a number >= 0"):
            token_counts(ALONE, subagent_token_weight=weight)
