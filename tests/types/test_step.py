"""A step holds what it is given, read-only, and refuses streams that do not line up."""

import numpy as np
import pytest
import torch

from prl.errors import DataError
from prl.types import Step, TopK
from prl.types.step import call_parents, new_prompt_tokens


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_lists_arrays_and_tensors_are_held_as_read_only_arrays(kind):
    step = Step(
        kind([1, 2]), kind([3]), kind([-0.5]), prompt_roles=kind([1, 2]), prompt_content=kind([False, True]),
        prompt_messages=kind([-1, 0]), topk=TopK(kind([[3, 4]]), kind([[-0.5, -1.0]])), temperature=2,
    )  # fmt: skip
    streams = {"prompt_ids": np.int32, "completion_ids": np.int32, "completion_logprobs": np.float32}
    streams |= {"prompt_roles": np.int8, "prompt_content": np.bool_, "prompt_messages": np.int32}
    arrays = [(getattr(step, name), dtype) for name, dtype in streams.items()]
    for array, dtype in [*arrays, (step.topk.ids, np.int32), (step.topk.logprobs, np.float32)]:
        assert isinstance(array, np.ndarray) and array.dtype == dtype and not array.flags.writeable
    assert step.prompt_ids.tolist() == [1, 2] and step.topk.ids.tolist() == [[3, 4]]


def test_changing_what_was_given_changes_nothing():
    ids = np.array([1, 2], np.int32)
    step = Step(ids, [3], None)
    ids[0] = 9
    assert step.prompt_ids.tolist() == [1, 2]


def test_an_empty_completion_is_fine():
    assert len(Step([1], [], []).completion_ids) == 0


def test_lengths_that_do_not_fit_are_all_named():
    text = (
        "Step of agent 'solver': completion_logprobs has 2, needs 3; topk.ids has 1, needs 3; "
        "topk.logprobs has 2, needs 3; prompt_roles has 1, needs 2. One entry per token"
    )
    with pytest.raises(DataError, match=text):
        Step(
            [1, 2], [3, 4, 5], [-1, -1], prompt_roles=[0], agent="solver", topk=TopK([[1]], [[-1.0], [-1.0]])
        )  # fmt: skip


def test_parents_are_the_longest_exact_prefix():
    calls = [([1, 2], [3]), ([1, 2, 3, 4], [5]), ([1, 9], [10]), ([1, 2, 3, 4, 5, 6], [7]), ([1, 2, 3, 8], [9])]
    steps = [Step(prompt, completion, None) for prompt, completion in calls]
    assert call_parents(steps) == [None, 0, None, 1, 0]
    assert new_prompt_tokens(steps) == [2, 1, 2, 1, 1]


def test_of_equal_prefixes_the_latest_is_the_parent():
    steps = [Step([1, 2], [3], None), Step([1, 2], [3], None), Step([1, 2, 3, 4], [5], None)]
    assert call_parents(steps) == [None, None, 1]
