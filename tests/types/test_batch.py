"""Rows and batches: derived masks, moves, cell names."""

import pytest
import torch

from prl.trajectories import pack
from prl.types import TrainingSample, supervised


def rl(id, prompt, completion):
    mask = [0] * len(prompt) + [1] * len(completion)
    return TrainingSample(id, [*prompt, *completion], mask, [-1.0 * m for m in mask], advantages=mask)


BATCH = pack([rl("x", [1, 2], [3]), rl("y", [4], [5]), supervised([6], [7, 8, 9], id="z")], max_tokens=8)


def test_where_names_every_cell():
    # Longest first, at most 8 cells: [z x] of width 4, then y.
    assert [tuple(rows.token_ids.shape) for rows in BATCH.rows] == [(2, 4), (1, 2)]
    names = [[("z", i) for i in range(4)], [("x", i) for i in range(3)], [("y", i) for i in range(2)]]
    for row, cells in enumerate(names):
        assert [BATCH.where(row, col) for col in range(len(cells))] == cells


@pytest.mark.parametrize(("row", "col"), [(1, 3), (3, 0), (0, 4), (-1, 0), (2, -1), (0, -1)])
def test_where_refuses_padding_and_what_does_not_exist(row, col):
    with pytest.raises(IndexError, match=f"Batch.where: row {row}, column {col} is padding or does not exist"):
        BATCH.where(row, col)


def test_a_shared_prompt_names_its_first_sample():
    batch = pack([rl("x", [1, 2], [3]), rl("y", [1, 2], [4])], max_tokens=99)
    assert [batch.where(0, col) for col in range(4)] == [("x", 0), ("x", 1), ("x", 2), ("y", 2)]


def test_tokens_trained_and_weights():
    first = BATCH.rows[0]
    assert BATCH.tokens == 4 + 3 + 2
    assert first.trained.tolist() == [[False, True, True, True], [False, False, True, False]]
    assert first.weights["ce"][0].tolist() == [0, 1, 1, 1] and first.weights["rl"][1].tolist() == [0, 0, 1, 0]
    assert first.one_sample_per_row


def test_to_changes_floating_streams_only():
    moved = BATCH.rows[0].to(torch.device("cpu"), torch.float64)
    assert (moved.advantages.dtype, moved.token_ids.dtype, moved.mask.dtype) == (torch.float64, torch.int64, torch.bool)
