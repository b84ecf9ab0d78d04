"""Kuhn poker, solved by its whole tree: value, best responses, exploitability.

Three cards 0 < 1 < 2 (J, Q, K), one each, an ante of 1. A history is a string of actions:
c check, b bet, f fold, k call. A policy gives P(bet), or P(call) where a bet is faced, for
each of the 12 (history, own card): a mapping, or a [12] tensor or sequence in the order of
`INFOSETS`. One policy holds both seats, since the history says whose turn it is.
"""

import itertools
from collections.abc import Mapping, Sequence

from torch import Tensor

from prl.errors import DataError

ACTIONS = {"": "cb", "c": "cb", "b": "fk", "cb": "fk"}
"""Passive and active action at each history where somebody moves; seat 0 moves at "" and "cb"."""

INFOSETS = tuple((history, card) for history in ACTIONS for card in range(3))
DEALS = tuple(itertools.permutations(range(3), 2))
_STAKES = {"cc": 1, "bk": 2, "cbk": 2}
_FOLDS = {"bf": 1, "cbf": -1}

Infoset = tuple[str, int]
Policy = Mapping[Infoset, float | int | Tensor] | Sequence[float | int] | Tensor


def seat_of(history: str) -> int:
    """Who moves: 0 or 1."""
    return len(history) % 2


def payoff(history: str, cards: tuple[int, int]) -> int:
    """What seat 0 wins at the end of `history`; seat 1 loses it."""
    if history in _FOLDS:
        return _FOLDS[history]
    return _STAKES[history] if cards[0] > cards[1] else -_STAKES[history]


def nash(alpha: float | int) -> dict[Infoset, float]:
    """The equilibrium in which seat 0 bets the jack with probability alpha in [0, 1/3]; value -1/18.

    Raises:
      DataError: alpha is outside [0, 1/3].
    """
    if not 0 <= alpha <= 1 / 3:
        raise DataError(f"kuhn.nash: got alpha={alpha}; equilibria have 0 <= alpha <= 1/3.")
    first = {"": (alpha, 0.0, 3 * alpha), "cb": (0.0, alpha + 1 / 3, 1.0)}
    second = {"c": (1 / 3, 0.0, 1.0), "b": (0.0, 1 / 3, 1.0)}
    return {(history, card): p for history, row in (first | second).items() for card, p in enumerate(row)}


def uniform() -> dict[Infoset, float]:
    """Both actions equally likely everywhere."""
    return dict.fromkeys(INFOSETS, 0.5)


def outcomes(policy: Policy) -> dict[int, float]:
    """{what seat 0 wins: probability} when the policy plays itself."""
    table, chances = read(policy), {won: 0.0 for won in (-2, -1, 1, 2)}
    for cards in DEALS:
        for history, chance in _ends(table, cards, "", 1 / len(DEALS)):
            chances[payoff(history, cards)] += chance
    return chances


def value(policy: Policy) -> float:
    """Expected win of seat 0 when the policy plays itself; -1/18 at every equilibrium."""
    return sum(won * chance for won, chance in outcomes(policy).items())


def best_response(policy: Policy, seat: int) -> float:
    """Most that `seat` can win on average against the policy in the other seat."""
    table = read(policy)
    return sum(
        _best(table, seat, own, "", {card: 1 / len(DEALS) for card in range(3) if card != own}) for own in range(3)
    )


def nash_conv(policy: Policy) -> float:
    """Sum of both best responses: 0 at an equilibrium, 11/12 for uniform play. Half of it is the exploitability."""
    return best_response(policy, 0) + best_response(policy, 1)


def exploitability(policy: Policy) -> float:
    """What a best response wins on average over the two seats: nash_conv / 2."""
    return nash_conv(policy) / 2


def average(policies: Sequence[Policy]) -> dict[Infoset, float]:
    """The policy that wins what the policies win on average against any opponent.

    Each decision is weighted with the probability that the policy's own earlier actions
    lead there. Where none of them leads there, it is the plain mean.

    Raises:
      DataError: no policy.
    """
    tables = [read(policy) for policy in policies]
    if not tables:
        raise DataError("kuhn.average: got no policy; need at least 1.")
    return {infoset: _mean(tables, infoset) for infoset in INFOSETS}


def read(policy: Policy) -> dict[Infoset, float]:
    """A policy as {(history, card): probability of the active action}.

    Raises:
      DataError: an information set is missing or unknown, or a probability is outside [0, 1].
    """
    if isinstance(policy, Mapping):
        table = {infoset: float(p) for infoset, p in policy.items()}
    else:
        numbers = policy.tolist() if isinstance(policy, Tensor) else list(policy)
        if len(numbers) != len(INFOSETS) or any(isinstance(p, list) for p in numbers):
            raise DataError(f"kuhn: got {len(numbers)} entries; need 12 probabilities in the order of kuhn.INFOSETS.")
        table = dict(zip(INFOSETS, map(float, numbers), strict=True))
    wrong = [i for i in INFOSETS if i not in table] + [i for i in table if i not in INFOSETS]
    if wrong:
        raise DataError(f"kuhn: the policy fits no information set at {wrong}; need exactly those of kuhn.INFOSETS.")
    for infoset, p in table.items():
        if not 0 <= p <= 1:
            raise DataError(f"kuhn: probability {p} at {infoset}; need 0 <= p <= 1.")
    return table


def _choices(table: Mapping[Infoset, float], history: str, card: int) -> tuple[tuple[str, float], ...]:
    """(longer history, its probability) for both actions."""
    p = table[history, card]
    return (history + ACTIONS[history][0], 1 - p), (history + ACTIONS[history][1], p)


def _ends(
    table: Mapping[Infoset, float], cards: tuple[int, int], history: str, chance: float
) -> list[tuple[str, float]]:
    """(final history, probability) of everything that can follow."""
    if history not in ACTIONS:
        return [(history, chance)]
    following = _choices(table, history, cards[seat_of(history)])
    return [end for longer, p in following for end in _ends(table, cards, longer, chance * p)]


def _best(table: Mapping[Infoset, float], seat: int, own: int, history: str, reach: Mapping[int, float]) -> float:
    """Best total over the opponent's cards, each counted with `reach`: the chance that it holds it and comes here."""
    if history not in ACTIONS:
        hands = {card: (own, card) if seat == 0 else (card, own) for card in reach}
        return sum(w * payoff(history, hands[card]) for card, w in reach.items()) * (1 if seat == 0 else -1)
    if seat_of(history) == seat:
        return max(_best(table, seat, own, history + action, reach) for action in ACTIONS[history])
    moved = {card: _choices(table, history, card) for card in reach}
    after = [{card: w * moved[card][i][1] for card, w in reach.items()} for i in (0, 1)]
    return sum(_best(table, seat, own, history + ACTIONS[history][i], after[i]) for i in (0, 1))


def _mean(tables: Sequence[Mapping[Infoset, float]], infoset: Infoset) -> float:
    history, card = infoset
    # Of all decisions only that at "cb" follows an earlier one of the same seat: the check.
    reach = [1 - table["", card] if history == "cb" else 1.0 for table in tables]
    if sum(reach) == 0:
        reach = [1.0] * len(tables)
    return sum(r * table[infoset] for r, table in zip(reach, tables, strict=True)) / sum(reach)
