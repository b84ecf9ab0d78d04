"""prl.save and prl.load: the same bits back, and clear errors for everything else."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

import prl
from prl.errors import DataError
from prl.trajectories import interleave, pack
from prl.types import Commit, Episode, Group, Groups, Step, Task, Trace


class State(NamedTuple):
    baselines: dict
    mean: torch.Tensor


def group(rewards=(1.0, 0.0)):
    episodes = []
    for i, reward in enumerate(rewards):
        step = Step(np.array([1, 2, 3]), np.array([4, 5 + i]), np.array([-0.5, -1.5], np.float32), version=0)
        samples = tuple(interleave([step], id=f"e{i}"))
        episodes.append(Episode(f"e{i}", (Trace(f"e{i}", "agent", (step,), samples, reward),)))
    return Group("g", "env", Task("k", "question", "answer", {"n": 3}), tuple(episodes))


def test_groups_come_back_with_their_credit_and_commit(tmp_path):
    commit = Commit(3, 7, {"env": State({"a": 0.25}, torch.tensor([1.0, 2.0]))}, {}, {"episodes": 2.0})
    groups = Groups([group().assign(advantages=torch.tensor([0.5, -0.5]))], commit)
    back = prl.load(prl.save(groups, tmp_path / "groups.safetensors"))
    assert back[0].task == groups[0].task
    assert torch.equal(back[0].rewards, groups[0].rewards)
    for mine, theirs in zip(back[0].samples, groups[0].samples, strict=True):
        assert np.array_equal(mine.advantages, theirs.advantages)
        assert np.array_equal(mine.inference_logprobs, theirs.inference_logprobs)
        assert not mine.advantages.flags.writeable
    state = back[0].commit.algorithms["env"]
    assert (
        isinstance(state, State)
        and state.baselines == {"a": 0.25}
        and torch.equal(state.mean, torch.tensor([1.0, 2.0]))
    )


def test_a_batch_comes_back_equal(tmp_path):
    batch = pack(group().assign(advantages=torch.tensor([0.5, -0.5])).samples, max_tokens=64)
    back = prl.load(prl.save(batch, tmp_path / "batch.safetensors"))
    for mine, theirs in zip(back.rows, batch.rows, strict=True):
        given = {name: value for name, value in vars(theirs).items() if value is not None}
        assert all(torch.equal(getattr(mine, name), value) for name, value in given.items())
        assert mine.topk_ids is mine.topk_logprobs is None
    assert back.counts == batch.counts and back.where(0, 0) == batch.where(0, 0)


def test_equal_values_give_equal_bytes(tmp_path):
    one, two = (prl.save(Groups([group()], Commit(1, 2, {}, {}, {})), tmp_path / name) for name in "ab")
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    "value",
    [None, 3, -0.5, "text", [1, [2, (3,)]], {"a": {1: True}}, float("inf"), [], {}],
    ids=repr,
)
def test_plain_values(value, tmp_path):
    assert prl.load(prl.save(value, tmp_path / "value")) == value


def test_a_value_that_cannot_be_written_leaves_the_old_file(tmp_path):
    prl.save([1], tmp_path / "value")
    with pytest.raises(DataError, match="type object; can write dicts"):
        prl.save([object()], tmp_path / "value")
    assert prl.load(tmp_path / "value") == [1]
    assert [file.name for file in tmp_path.iterdir()] == ["value"]


def test_damaged_and_foreign_files(tmp_path):
    path = prl.save({"a": torch.ones(4)}, tmp_path / "value")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="cannot be read"):
        prl.load(path)
    with pytest.raises(DataError, match="cannot be read"):
        prl.load(tmp_path / "missing")
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "other")
    with pytest.raises(DataError, match=r"not written by prl.save"):
        prl.load(tmp_path / "other")


def test_nothing_is_imported_for_a_file(tmp_path):
    class Local(NamedTuple):
        x: int

    path = prl.save(Local(1), tmp_path / "state")
    with pytest.raises(DataError, match="Local of module .*test_files, which this program has not imported"):
        prl.load(path)
