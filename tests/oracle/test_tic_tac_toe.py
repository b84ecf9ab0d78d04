"""Tic-tac-toe: known shares of random play, small ends by hand, given policies."""

import pytest

from prl.errors import DataError
from prl.oracle import tic_tac_toe
from prl.oracle.tic_tac_toe import legal, outcomes, uniform, winner


def first(board):
    """Always the first empty cell."""
    return {legal(board)[0]: 1.0}


def test_uniform_play():
    got = outcomes()
    assert got == pytest.approx((737 / 1260, 121 / 420, 8 / 63))
    assert got == pytest.approx((0.5849206, 0.2880952, 0.1269841), abs=5e-8)
    assert got.value == pytest.approx(0.2968254)
    # mu^2 / E[R^2]: what a baseline per seat can take out of the second moment
    assert got.value**2 / (got.x + got.o) == pytest.approx(0.101, abs=5e-4)


def test_the_second_moment_counts_all_and_every_board_is_asked_once():
    asked = []

    def counted(board):
        asked.append(board)
        return uniform(board)

    assert sum(outcomes(counted, counted)) == pytest.approx(1)
    assert len(asked) == len(set(asked)) == 4520  # boards of 5,478 that are not finished


def test_one_move_before_the_end_by_hand():
    # X to move, cells 2 and 8 empty: 2 completes the first row; after 8, O must take 2, and nobody has three.
    assert outcomes(board="XX.OOXXO.") == (0.5, 0, 0.5)
    # O to move with two cells: 2 wins its first row; after 8 X takes 2 and wins the last column, or draws.
    assert outcomes(board="OO.XXOXX.").o == pytest.approx(0.5)
    assert outcomes(board="XXXOO....") == (1, 0, 0)


def test_given_policies():
    # X takes 0, 2, 4, 6 while O takes 1, 3, 5: the diagonal 2, 4, 6 wins at the seventh stone.
    assert outcomes(first, first) == (1, 0, 0)
    against_random = outcomes(first, uniform)
    assert sum(against_random) == pytest.approx(1) and against_random.x > outcomes().x
    assert outcomes(uniform, first).x < against_random.x


def test_lines():
    assert [winner("XXX......"), winner("O..O..O.."), winner("X...X...X"), winner("..O.O.O..")] == ["X", "O", "X", "O"]
    assert winner("XOXXOOOXX") is None and winner(tic_tac_toe.EMPTY) is None


@pytest.mark.parametrize("moves", [{4: 0.5}, {0: 1.0, 1: -1.0, 2: 1.0}, {9: 1.0}, {0: float("nan")}])
def test_a_policy_that_is_none_is_refused(moves):
    with pytest.raises(DataError, match=r"on board '.{9}' the policy of X gives .*; need probabilities over the empty"):
        outcomes(lambda board: moves)


def test_a_taken_cell_is_refused():
    with pytest.raises(DataError, match=r"on board 'X........' the policy of O gives \{0: 1.0\}"):
        outcomes(first, lambda board: {0: 1.0})
