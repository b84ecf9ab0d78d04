"""The sampler's candidates at the door: of calls and of samples alike."""

import numpy as np
import pytest

from prl.errors import DataError
from prl.types import Step, TopK, TrainingSample

NONE = -np.inf


def step(ids, logprobs):
    return Step([1], [2, 3], [-1.0, -1.0], topk=TopK(ids, logprobs))


def sample(ids, logprobs):
    return TrainingSample("s", [1, 2], [0, 1], [0.0, -1.0], topk=TopK(ids, logprobs))


@pytest.mark.parametrize(("make", "name"), [(step, "Step of agent 'agent'"), (sample, "TrainingSample 's'")])
@pytest.mark.parametrize(
    ("ids", "logprobs", "text"),
    [
        ([[4, 5], [6, 6]], [[-1, -2], [-1, -2]], "topk.ids holds id 6 twice at token 1"),
        ([[7, 5, 7], [6, 8, 9]], [[-1, -2, -3], [-1, -2, -3]], "topk.ids holds id 7 twice at token 0"),
        ([[4, 5], [6, 7]], [[-1, -2], [-1, float("nan")]], "topk.logprobs is nan at token 1, entry 1; -inf means no"),
        ([[4], [5]], [[-1, -2], [-1, -2]], r"topk.ids has shape \[2, 1\], topk.logprobs \[2, 2\]; need \[tokens, top"),
        ([4, 5], [-1, -2], r"topk.ids has shape \[2\], topk.logprobs \[2\]; need \[tokens, topk\]"),
    ],
)
def test_refused(make, name, ids, logprobs, text):
    with pytest.raises(DataError, match=f"{name}: {text}"):
        make(ids, logprobs)


@pytest.mark.parametrize("make", [step, sample])
def test_an_id_may_repeat_where_there_is_no_entry(make):
    head = make([[4, 0, 0], [0, 5, 4]], [[-1, NONE, NONE], [-1, -2, NONE]]).topk
    assert head.ids.tolist() == [[4, 0, 0], [0, 5, 4]]
