"""Frames: rows worked by hand for samples, rollouts, groups and steps."""

import math

import numpy as np
import polars as pl
import pytest
import torch

from prl import frames
from prl.types import Batch, Episode, Group, Step, StepReport, Task, Trace, TrainingSample

NOTHING = ("ref_logprob", "rl_weight", "ce_weight", "ref_kl_weight", "temperature", "version")
TRACEBACK = """Traceback (most recent call last):
  File "env.py", line 3, in play
    answer()
TimeoutError: no answer in 10 s
and a second line
"""


def letters(ids):
    return "".join("abcdefgh"[i] for i in ids)


def sample(name="g/e0/agent#0", advantages=(0, 0.5, -1.5), **streams):
    streams |= {} if advantages is None else {"advantages": advantages}
    arrays = {key: np.array(values) for key, values in streams.items()}
    return TrainingSample(name, np.arange(3), np.array([False, True, True]), np.array([0, -0.25, -0.5]), **arrays)


def trace(name="g/e0/agent", reward=1.0, samples=(), truncated=False, **given):
    first = Step(np.array([0]), np.array([1, 2]), np.array([-0.25, -0.5]))
    second = Step(np.arange(4), np.array([4]), np.array([-1.0]), truncated=truncated)
    return Trace(name, "agent", (first, second), samples, reward, **given)


def group(*episodes, name="g"):
    return Group(name, "sums", Task("1+1", "What is 1+1?"), episodes)


def test_a_sample_has_one_row_per_token():
    full = sample(roles=[2, 3, 3], step=[0, 0, 0], message=[0, 1, -1], rl_weights=[0, 1, 0.5], version=[4, 4, 4])
    frame = frames.tokens(full, decode=letters)
    assert frame.columns[:6] == ["sample_id", "position", "token_id", "text", "mask", "role"]
    assert frame.row(2, named=True) == {
        "sample_id": "g/e0/agent#0", "position": 2, "token_id": 2, "text": "c", "mask": True, "role": "assistant",
        "step": 0, "message": -1, "advantage": -1.5, "inference_logprob": -0.5, "ref_logprob": None,
        "rl_weight": 0.5, "ce_weight": None, "ref_kl_weight": None, "temperature": None, "version": 4,
    }  # fmt: skip
    assert frame["role"].to_list() == ["user", "assistant", "assistant"]


def test_absent_streams_are_null_and_typed():
    frame = frames.tokens(sample(advantages=None))
    assert "text" not in frame.columns
    assert all(frame[name].null_count() == 3 for name in (*NOTHING, "advantage", "role", "step", "message"))
    assert frame.schema == frames.tokens([]).schema == frames.tokens(sample(roles=[0, 3, 3])).schema


def test_a_nan_logprob_stays_a_nan():
    silent = sample(advantages=None).with_streams(inference_logprobs=np.array([0, np.nan, -1.0]))
    assert math.isnan(frames.tokens(silent)["inference_logprob"][1])


def test_group_batch_and_sequences_give_their_samples_in_order():
    one, two = sample("one"), sample("two")
    both = group(Episode("e0", (trace(samples=(one,)),)), Episode("e1", (trace("t1", samples=(two,)),)))
    batch = Batch((), {"rl": torch.tensor(2.0)}, (two,))
    ids = frames.tokens([both, [batch, one]])["sample_id"].unique(maintain_order=True).to_list()
    assert ids == ["one", "two"]
    assert len(frames.tokens(both)) == 6
    assert frames.tokens([both, [batch, one]])["sample_id"].to_list()[6:9] == ["two"] * 3


def test_rollout_row():
    frame = frames.rollouts([group(Episode("g/e0", (trace(samples=(sample(),), truncated=True),)))], decode=letters)
    assert frame.to_dicts() == [
        {
            "group_id": "g", "env": "sums", "task_key": "1+1", "episode_id": "g/e0", "trace_id": "g/e0/agent",
            "agent": "agent", "reward": 1.0, "valid": True, "trainable": True, "error": None,
            "output_tokens": 3,  # 2 + 1
            "turns": 2, "truncated": True,
            "mean_advantage": -0.5,  # (0.5 - 1.5) / 2
            "completion": "bc\n\ne",
        }
    ]  # fmt: skip


def test_rollouts_keep_failures_and_traces_that_do_not_take_part():
    odd = group(
        Episode("failed", (), TRACEBACK),
        Episode("invalid", (trace(reward=float("nan"), valid=False),)),
        Episode("bare", (Trace("t", "judge", (), (), 0.0, trainable=False),)),
    )
    frame = frames.rollouts([odd])
    assert "completion" not in frame.columns
    assert frame["episode_id"].to_list() == ["failed", "invalid", "bare"]
    assert frame["error"].to_list() == ["TimeoutError: no answer in 10 s", None, None]
    assert frame["trace_id"].to_list() == [None, "g/e0/agent", "t"]
    assert frame["reward"].to_list() == [None, None, 0.0]
    assert frame["mean_advantage"].to_list() == [None] * 3
    assert frame["valid"].to_list() == [False, False, True]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (None, None),
        ("", ""),
        ("ValueError: bad\nmore", "ValueError: bad"),
        (TRACEBACK, "TimeoutError: no answer in 10 s"),
        (
            f"{TRACEBACK}\nDuring handling ...\n\n{TRACEBACK.replace('TimeoutError', 'KeyError')}",
            "KeyError: no answer in 10 s",
        ),
        ("Traceback (most recent call last):\n  File x", "Traceback (most recent call last):"),
        ("\n \n", ""),
    ],
)
def test_error_line(error, line):
    assert frames.error_line(error) == line


def test_group_row_counts_only_valid_trainable_traces():
    mixed = group(
        Episode("e0", (trace(reward=1.0, samples=(sample(),)),)),
        Episode("e1", (trace("t1", reward=0.0, samples=(sample(advantages=(0, 0, 0)),)),)),
        Episode("e2", (trace("t2", reward=9.0, samples=(sample(),), valid=False),)),
        Episode("e3", (), "boom"),
    )
    assert frames.groups([mixed]).to_dicts() == [
        {
            "group_id": "g", "env": "sums", "task_key": "1+1", "rollouts": 2, "errors": 1,
            "mean_reward": 0.5, "min_reward": 0.0, "max_reward": 1.0, "signal": True,
        }
    ]  # fmt: skip


def test_signal_is_false_on_zeros_and_null_before_scoring():
    def signal(*advantages):
        one = trace(samples=(sample(advantages=advantages or None),))
        return frames.groups([group(Episode("e", (one,)))])["signal"][0]

    assert signal(0, 0, 0) is False
    assert signal(0, 0, -1e-30) is True
    assert signal() is None


def test_an_empty_group_has_a_row_of_nulls():
    row = frames.groups([group()]).row(0, named=True)
    assert (row["rollouts"], row["errors"], row["mean_reward"], row["signal"]) == (0, 0, None, None)
    assert len(frames.rollouts([group()])) == len(frames.groups([])) == len(frames.rollouts([])) == 0
    assert frames.tokens(group()).is_empty()


def test_steps_join_terms_and_metrics_of_different_reports():
    history = [
        StepReport(1, 1, 0.5, {"rl": 0.5}, {"rl/kept": 0.9}, 0.25, 1.5, 100, 2.0),
        StepReport(2, 2, 0.75, {"rl": 0.5, "ce": 0.25}, {}, None, 1.0, 50, 1.0),
    ]
    frame = frames.steps(history)
    fixed = ["step", "version", "loss", "reward", "grad_norm", "tokens", "seconds"]
    assert frame.columns == [*fixed, "loss/rl", "rl/kept", "loss/ce"]
    assert frame["loss/ce"].to_list() == [None, 0.25]
    assert frame["rl/kept"].to_list() == [0.9, None]
    assert frame["reward"].to_list() == [0.25, None]
    assert frames.steps([]).columns == fixed
    assert frame.schema["reward"] == pl.Float64


def test_frames_leave_the_streams_alone():
    original = sample()
    before = original.advantages.copy()
    frames.tokens(original)
    assert np.array_equal(original.advantages, before) and not original.advantages.flags.writeable
