"""Groups by hand: what takes part, what it counts, and how credit is set."""

import numpy as np
import pytest
import torch

from prl.advantages import group_norm
from prl.errors import DataError
from prl.types import Commit, Episode, Group, Groups, Step, Task, Trace, TrainingSample, commit_of

TASK = Task("k", "What?")


def sample(id, trained):
    n = 2 + trained
    mask = np.arange(n) >= 2
    return TrainingSample(id, range(1, n + 1), mask, -1.0 * mask)


def trace(id, reward, *lengths, steps=(), **options):
    return Trace(
        id,
        options.pop("agent", "agent"),
        list(steps),
        [sample(f"{id}#{i}", n) for i, n in enumerate(lengths)],
        reward,
        **options,
    )


def group(*traces):
    return Group("g", "env", TASK, [Episode(f"e{i}", [t]) for i, t in enumerate(traces)])


def test_lists_are_held_as_tuples_and_an_int_is_a_reward():
    one = group(trace("a", 1, 2))
    assert isinstance(one.episodes, tuple) and isinstance(one.episodes[0].traces, tuple)
    assert isinstance(one.traces[0].samples, tuple) and isinstance(one.traces[0].steps, tuple)
    assert isinstance(one.traces[0].reward, float) and one.rewards.tolist() == [1.0]
    assert one.rewards.dtype == torch.float32


def test_only_valid_trainable_traces_with_a_sampled_token_take_part():
    failed = Episode("e9", [trace("f", 9, 2)], error="Traceback ...")
    silent = Trace("s", "agent", (), [TrainingSample("s#0", [1], [False])], 9.0)
    episodes = [
        Episode("e0", [trace("a", 1, 2), trace("b", 0, 3, agent="other")]),
        failed,
        Episode("e1", [trace("c", 9, 2, valid=False), trace("d", 9, 2, trainable=False), silent, trace("e", 5, 1, 2)]),
    ]
    got = Group("g", "env", TASK, episodes)
    assert [t.id for t in got.traces] == ["a", "b", "e"]
    assert got.rewards.tolist() == [1, 0, 5]
    assert (got.agents, got.episode_ids) == (("agent", "other", "agent"), ("e0", "e0", "e1"))
    assert [s.id for s in got.samples] == ["a#0", "b#0", "e#0", "e#1"]
    assert got.lengths.tolist() == [2, 3, 3]


def test_token_and_turn_counts():
    # Prompt 2; then 3 known + 2 new; then a restart of 4: 2 + 2 + 4 in, 1 + 2 + 1 out, 3 turns.
    steps = [Step([1, 2], [3], None), Step([1, 2, 3, 4, 5], [6, 7], None), Step([1, 9, 9, 9], [8], None)]
    got = group(trace("a", 1, 2, steps=steps))
    assert (got.input_tokens.tolist(), got.output_tokens.tolist(), got.turns.tolist()) == ([8], [4], [3])


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_valid_rollout_has_a_finite_reward(reward):
    with pytest.raises(DataError, match=f"Trace 'a': reward is {reward}; a valid rollout needs a finite number"):
        trace("a", reward, 2)
    assert group(trace("a", reward, 2, valid=False)).traces == ()


def test_a_number_per_trace_is_spread_over_its_trained_tokens():
    got = group(trace("a", 1, 2), trace("x", 7, 4, valid=False), trace("b", 0, 1, 2)).assign(
        advantages=torch.tensor([0.5, -0.5])
    )
    streams = [s.advantages.tolist() for s in got.samples]
    assert streams == [[0, 0, 0.5, 0.5], [0, 0, -0.5], [0, 0, -0.5, -0.5]]
    assert got.episodes[1].traces[0].samples[0].advantages is None  # not valid: no credit


def test_a_rejected_sibling_neither_moves_the_baseline_nor_gets_credit():
    got = group(trace("a", 1, 1), trace("b", 0, 1), trace("c", 5, 1, valid=False))
    credit = group_norm(got.rewards)
    assert credit.tolist() == [0.5, -0.5]
    assert [s.advantages[-1] for s in got.assign(advantages=credit).samples] == [0.5, -0.5]


def test_a_list_gives_each_sample_its_stream_whole_or_aligned():
    got = group(trace("a", 1, 2), trace("b", 0, 1, 2)).assign(
        advantages=[[0, 0, 1, 2], [3], torch.tensor([4.0, 5.0])], ce_weights=[[0, 1, 0, 0], [1], [0, 0]]
    )
    assert [s.advantages.tolist() for s in got.samples] == [[0, 0, 1, 2], [0, 0, 3], [0, 0, 4, 5]]
    assert [s.ce_weights.tolist() for s in got.samples] == [[0, 1, 0, 0], [0, 0, 1], [0, 0, 0, 0]]


def test_one_sample_in_two_traces_gets_each_trace_s_credit():
    shared = sample("s", 1)
    got = group(Trace("a", "agent", (), [shared], 1), Trace("b", "agent", (), [shared], 0))
    assert [s.advantages[-1] for s in got.assign(advantages=torch.tensor([2.0, -2.0])).samples] == [2, -2]


def test_assign_leaves_the_group_and_keeps_its_commit():
    commit = Commit(3, 8, {}, {}, {})
    old = Group("g", "env", TASK, [Episode("e", [trace("a", 1, 2)])], commit)
    new = old.assign(advantages=torch.tensor([1.0]))
    assert old.samples[0].advantages is None and new.commit is commit


BAD = {
    "a tensor of another length": (
        dict(advantages=torch.zeros(3)),
        r"Group 'g', assign\(advantages=...\): a tensor of shape \[3\]; need \[2\], one per trace",
    ),
    "a tensor per token": (dict(advantages=torch.zeros(2, 4)), r"a tensor of shape \[2, 4\]; need \[2\]"),
    "an unknown stream": (
        dict(advantage=torch.zeros(2)),
        "assign.advantage=...*: unknown stream; one of advantages, ref_",
    ),
    "a list of another length": (dict(advantages=[[1, 1], [1]]), "2 streams for 3 samples; give one per sample"),
    "a stream of another length": (
        dict(advantages=[[1, 1], [1], [1, 1, 1]]),
        "sample 'b#1': stream has 3 entries; need 4, one per token, or 2, one per trained token",
    ),
    "a list of numbers": (dict(advantages=[1.0, 0.0, 0.0]), r"sample 'a#0': got shape \[\]; .* give a tensor"),
}


@pytest.mark.parametrize(("streams", "text"), BAD.values(), ids=BAD)
def test_what_assign_refuses(streams, text):
    with pytest.raises(DataError, match=text):
        group(trace("a", 1, 2), trace("b", 0, 1, 2)).assign(**streams)


def test_the_commit_of_groups():
    first, second = Commit(1, 4, {}, {}, {}), Commit(1, 6, {}, {}, {})
    plain = group(trace("a", 1, 2))
    assert commit_of([plain]) is None and commit_of([]) is None
    committed = Groups([plain], first)
    assert committed[0].commit is first and commit_of(Groups([], first)) is first
    assert commit_of([*committed, *Groups([plain], second)]) is second
