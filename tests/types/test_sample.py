"""A training sample is checked when it is built: what it refuses, by the text of the error."""

import numpy as np
import pytest
import torch

from prl.errors import DataError
from prl.types import TopK, TrainingSample, supervised

MASK = [False, False, True, True]
LOGPROBS = [0, 0, -1, -2]
NAN = float("nan")


def sample(**streams):
    return TrainingSample(**{"id": "e/t@0/1/agent#0", "token_ids": [5, 6, 7, 8], "loss_mask": MASK, **streams})


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_lists_arrays_and_tensors_are_held_as_read_only_arrays(kind):
    got = sample(loss_mask=kind([0, 0, 1, 1]), inference_logprobs=kind(LOGPROBS), advantages=kind([0, 0, 1, 1]))
    held = {"token_ids": np.int32, "loss_mask": np.bool_, "inference_logprobs": np.float32, "advantages": np.float32}
    for name, dtype in held.items():
        array = getattr(got, name)
        assert isinstance(array, np.ndarray) and array.dtype == dtype and not array.flags.writeable
    assert got.loss_mask.tolist() == MASK and len(got) == 4


def test_changing_what_was_given_changes_nothing():
    advantages = np.array([0, 0, 1, 1], np.float32)
    got = sample(inference_logprobs=LOGPROBS, advantages=advantages)
    advantages[2] = 9
    assert got.advantages.tolist() == [0, 0, 1, 1]


def test_weights_of_none_are_spelled_out():
    bare = sample()
    credited = sample(inference_logprobs=LOGPROBS, advantages=[0, 0, 1, 1])
    assert {c: bare.weights(c).tolist() for c in ("rl", "ce", "ref_kl")} == dict.fromkeys(
        ("rl", "ce", "ref_kl"), [0] * 4
    )
    assert credited.weights("rl").tolist() == [0, 0, 1, 1] and not credited.members("ce").any()
    assert sample(ce_weights=[0, 0.5, 0, 0]).members("ce").tolist() == [
        False,
        True,
        False,
        False,
    ]  # echo, outside the mask


def test_supervised_trains_ce_on_the_completion():
    got = supervised([1, 2], [3])
    assert (got.token_ids.tolist(), got.loss_mask.tolist()) == ([1, 2, 3], [False, False, True])
    assert got.weights("ce").tolist() == [0, 0, 1] and got.inference_logprobs is None


BAD = {  # name: (streams, text)
    "a short stream": (
        dict(inference_logprobs=[0, 0, -1]),
        "TrainingSample 'e/t@0/1/agent#0': inference_logprobs has 3 tokens, token_ids has 4. Every stream spans",
    ),
    "a long stream": (dict(advantages=[0, 0, 1, 1, 1]), "advantages has 5 tokens, token_ids has 4"),
    "all that do not fit": (
        dict(loss_mask=MASK[:3], advantages=[0] * 5, topk=TopK([[1]] * 3, [[-1.0]] * 4)),
        "loss_mask has 3 tokens, advantages has 5 tokens, topk.ids has 3 tokens, token_ids has 4",
    ),
    "a column": (dict(advantages=[[0], [0], [1], [1]]), r"advantages has shape \[4, 1\], token_ids has 4"),
    "NaN on a trained token": (
        dict(inference_logprobs=[0, 0, -1, NAN], advantages=[0, 0, 1, 1]),
        r"'e/t@0/1/agent#0': inference_logprobs is nan at token 3, which the rl component trains \(1 such tokens\)",
    ),
    "an infinite advantage": (
        dict(inference_logprobs=LOGPROBS, advantages=[0, 0, float("inf"), 1]),
        "advantages is inf at token 2, which the rl component trains",
    ),
    "NaN in the reference": (
        dict(inference_logprobs=LOGPROBS, ref_logprobs=[0, 0, NAN, -1], ref_kl_weights=[0, 0, 1, 0]),
        "ref_logprobs is nan at token 2, which the ref_kl component trains",
    ),
    "rl without advantages": (
        dict(inference_logprobs=LOGPROBS, rl_weights=[0, 0, 1, 1]),
        "2 rl tokens, and advantages is None. The rl component needs it on each of them",
    ),
    "rl without log-probabilities": (dict(advantages=[0, 0, 1, 1]), "2 rl tokens, and inference_logprobs is None"),
    "ref_kl without a reference": (
        dict(inference_logprobs=LOGPROBS, ref_kl_weights=[0, 0, 0, 1]),
        "1 ref_kl tokens, and ref_logprobs is None",
    ),
    "a negative weight": (dict(ce_weights=[0, 0.5, -0.25, 0]), "ce_weights is -0.25 at token 2; need >= 0"),
    "a weight that is no number": (dict(ce_weights=[0, NAN, 0, 0]), "ce_weights is nan at token 1; need >= 0"),
    "credit outside the mask": (
        dict(inference_logprobs=LOGPROBS, advantages=[0, 3, 1, 1]),
        r"advantages is 3.0 at token 1, outside loss_mask; need 0.0 there \(1 such tokens\)",
    ),
    "NaN outside the mask": (dict(inference_logprobs=[NAN, 0, -1, -1]), "inference_logprobs is nan at token 0, out"),
    "an rl weight outside the mask": (
        dict(inference_logprobs=LOGPROBS, advantages=[0, 0, 1, 1], rl_weights=[0, 1, 1, 1]),
        "rl_weights is 1.0 at token 1, outside loss_mask",
    ),
    "a first token that was sampled": (dict(loss_mask=[True] * 4), "trained token at position 0, which nothing pre"),
    "a first token with a ce weight": (dict(ce_weights=[1, 0, 0, 0]), "1 trained token at position 0"),
}  # fmt: skip


@pytest.mark.parametrize(("streams", "text"), BAD.values(), ids=BAD)
def test_what_is_refused(streams, text):
    with pytest.raises(DataError, match=text):
        sample(**streams)


def test_a_log_probability_that_no_component_needs_may_be_missing():
    sample(inference_logprobs=[0, 0, NAN, -1], ce_weights=[0, 0, 1, 1])
    sample(inference_logprobs=[0, 0, NAN, -1], advantages=[0, 0, 1, 1], rl_weights=[0, 0, 0, 1])


def test_with_streams_checks_again_and_leaves_the_old_one():
    old = sample(inference_logprobs=LOGPROBS)
    assert old.with_streams(advantages=[0, 0, 1, 1]).advantages.tolist() == [0, 0, 1, 1] and old.advantages is None
    with pytest.raises(DataError, match="advantages has 1 tokens"):
        old.with_streams(advantages=[1])
