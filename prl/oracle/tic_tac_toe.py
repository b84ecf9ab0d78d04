"""Tic-tac-toe, by its whole tree: how often each side wins.

A board is a string of nine cells, row by row: "X", "O" or "." for empty. X moves first.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from prl.errors import DataError

EMPTY = "." * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))

Policy = Callable[[str], Mapping[int, float]]
"""fn(board) -> {empty cell: probability}."""


class Outcomes(NamedTuple):
    """Probabilities of the three ends of a game."""

    x: float
    o: float
    draw: float

    @property
    def value(self) -> float:
        """Expected reward of X where a win pays 1 and a loss -1."""
        return self.x - self.o


def legal(board: str) -> list[int]:
    """Empty cells."""
    return [cell for cell, mark in enumerate(board) if mark == "."]


def winner(board: str) -> str | None:
    """ "X" or "O" where three of them stand in a line, else None."""
    return next((board[a] for a, b, c in LINES if board[a] != "." and board[a] == board[b] == board[c]), None)


def uniform(board: str) -> dict[int, float]:
    """Every empty cell equally likely."""
    cells = legal(board)
    return dict.fromkeys(cells, 1 / len(cells))


def outcomes(x: Policy = uniform, o: Policy = uniform, board: str = EMPTY) -> Outcomes:
    """Exact probabilities of the ends of a game of policy `x` against policy `o`, from `board` on.

    Each policy is asked once per board that can come up.

    Raises:
      DataError: a policy plays on a taken cell, or its probabilities do not sum to 1.
    """
    known: dict[str, Outcomes] = {}

    def after(board: str) -> Outcomes:
        if board not in known:
            known[board] = ended(board) or expand(board)
        return known[board]

    def expand(board: str) -> Outcomes:
        mark, policy = ("X", x) if board.count("X") == board.count("O") else ("O", o)
        moves = _checked(board, mark, policy(board))
        ends = [(p, after(board[:cell] + mark + board[cell + 1 :])) for cell, p in moves.items() if p > 0]
        return Outcomes(*(sum(p * end[i] for p, end in ends) for i in range(3)))

    return after(board)


def ended(board: str) -> Outcomes | None:
    """The certain outcome of a finished game, else None."""
    won = winner(board)
    if won is None and "." in board:
        return None
    return Outcomes(float(won == "X"), float(won == "O"), float(won is None))


def _checked(board: str, mark: str, moves: Mapping[int, float]) -> Mapping[int, float]:
    taken = sorted(set(moves) - set(legal(board)))
    total = math.fsum(moves.values())
    if taken or not abs(total - 1) <= 1e-6 or min(moves.values()) < 0:
        raise DataError(
            f"tic_tac_toe: on board {board!r} the policy of {mark} gives {dict(moves)}; need probabilities over the "
            f"empty cells {legal(board)} that sum to 1."
        )
    return moves
