"""What carries no signal leaves; everything else stays."""

import numpy as np

from prl.trajectories import drop_zero_signal
from prl.types import TrainingSample, supervised

MASK = [False, True, True, False, True]


def sample(**streams):
    return TrainingSample("s", [1, 2, 3, 4, 5], MASK, [0, -1, -1, 0, -1], **streams)


def test_tokens_of_zero_advantage_leave_rl():
    (got,) = drop_zero_signal([sample(advantages=[0, 2, 0, 0, -1])])
    assert got.weights("rl").tolist() == [0, 1, 0, 0, 1]
    assert got.advantages.tolist() == [0, 2, 0, 0, -1] and got.loss_mask.tolist() == MASK


def test_weights_of_the_rest_stay():
    (got,) = drop_zero_signal([sample(advantages=[0, 2, 0, 0, -1], rl_weights=[0, 0.5, 0.5, 0, 0.25])])
    assert got.rl_weights.tolist() == [0, 0.5, 0, 0, 0.25]


def test_an_equal_reward_sample_keeps_its_other_components():
    silent = dict(advantages=[0] * 5)
    echo = sample(**silent, ce_weights=[0, 0, 0, 0.1, 0])
    scored = sample(**silent, ref_logprobs=[0, -1, -1, 0, -1], ref_kl_weights=[0, 1, 0, 0, 0])
    assert drop_zero_signal([sample(**silent)]) == []
    kept = drop_zero_signal([echo, sample(**silent), scored])
    assert [s.members("rl").any() for s in kept] == [False, False]
    np.testing.assert_array_equal(kept[0].ce_weights, echo.ce_weights)
    np.testing.assert_array_equal(kept[1].ref_kl_weights, scored.ref_kl_weights)


def test_a_sample_without_any_component_leaves():
    assert drop_zero_signal([sample()]) == []
    assert drop_zero_signal([sample(advantages=[0, 1, 1, 0, 1], rl_weights=[0] * 5)]) == []


def test_what_has_signal_is_the_same_object_in_the_same_order():
    loud, taught = sample(advantages=[0, 1, 2, 0, 3]), supervised([1], [2])
    got = drop_zero_signal([taught, loud])
    assert got[0] is taught and got[1] is loud
