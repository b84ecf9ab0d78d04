"""MaxRL on a group: credit over the mean reward."""

from prl.algorithms import MaxRL
from tests.algorithms.groups import f32, group, streams, trace


def test_reward_over_mean():
    rows = group(trace("a", 1.0, [5, 6]), trace("b", 0.0, [7]), trace("c", 0.0, [8]), trace("d", 0.0, [9]))
    scored, state = MaxRL().score_group(rows, {})
    # mean 1/4: (1 - 1/4) / (1/4) = 3, (0 - 1/4) / (1/4) = -1
    assert streams(scored) == [[0, 0, 3, 3], [0, 0, -1], [0, 0, -1], [0, 0, -1]]
    assert state == {}


def test_invalid_rollouts_leave_the_mean_alone():
    rows = group(trace("a", 1.0, [5]), trace("b", 0.5, [6]), trace("c", 9.0, [7], trainable=False))
    scored, _ = MaxRL().score_group(rows, {})
    assert streams(scored) == f32([[0, 0, 1 / 3], [0, 0, -1 / 3]])  # mean 3/4


def test_all_fail_has_no_signal():
    scored, _ = MaxRL().score_group(group(trace("a", 0.0, [5]), trace("b", 0.0, [6])), {})
    assert streams(scored) == [[0, 0, 0], [0, 0, 0]]
