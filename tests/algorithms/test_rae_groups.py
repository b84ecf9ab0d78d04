"""RAE on groups: one baseline per agent, measured before it moves."""

import pytest

from prl.advantages import RAEState
from prl.algorithms import RAE
from tests.algorithms.groups import f32, group, streams, trace


def game(*outcomes):
    """Episodes of two players; outcomes are player0's rewards, player1 gets the opposite."""
    pairs = [
        [trace(f"{i}a", float(r), [5, 6], agent="player0"), trace(f"{i}b", -float(r), [7], agent="player1")]
        for i, r in enumerate(outcomes)
    ]
    return group(episodes=pairs)


def test_baselines_per_agent_before_the_update():
    scored, state = RAE(decay=0.5).score_group(game(1, 1, -1), RAE().init_state())
    # player0: baselines 0, 1/2, 3/4 before rewards 1, 1, -1; player1 the opposite
    assert streams(scored) == [
        [0, 0, 1, 1], [0, 0, -1], [0, 0, 0.5, 0.5], [0, 0, -0.5], [0, 0, -1.75, -1.75], [0, 0, 1.75],
    ]  # fmt: skip
    assert state == RAEState({"player0": -0.125, "player1": 0.125})  # 3/4 / 2 - 1/2


def test_the_state_given_is_left_alone():
    before = RAEState({"player0": 0.5})
    scored, after = RAE(decay=0.5).score_group(game(1), before)
    assert before == RAEState({"player0": 0.5})
    assert after == RAEState({"player0": 0.75, "player1": -0.5})
    assert streams(scored) == [[0, 0, 0.5, 0.5], [0, 0, -1]]


def test_a_group_of_one_is_reinforce_against_its_own_past():
    first, state = RAE().score_group(group(trace("a", 1.0, [5])), RAE().init_state())
    second, _ = RAE().score_group(group(trace("a", 1.0, [5])), state)
    assert streams(first) + streams(second) == f32([[0, 0, 1], [0, 0, 0.95]])  # b = 0.95 * 0 + 0.05 * 1


def test_rollouts_that_do_not_count_move_no_baseline():
    rows = group(
        trace("a", float("nan"), [5], valid=False), trace("b", 3.0, [5], trainable=False), trace("c", 1.0, [5])
    )
    scored, state = RAE(decay=0.5).score_group(rows, RAE().init_state())
    assert streams(scored) == [[0, 0, 1]]
    assert state == RAEState({"agent": 0.5})


@pytest.mark.parametrize("decay", [1.0, -0.1])
def test_decay_out_of_range(decay):
    with pytest.raises(ValueError, match="decay"):
        RAE(decay=decay)
