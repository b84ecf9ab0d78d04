"""Kuhn poker: values known from theory, an independent enumeration, and the laws of averaging."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.errors import DataError
from prl.oracle import kuhn

LAW = settings(deadline=None, max_examples=25)
TABLES = st.lists(st.floats(0, 1), min_size=12, max_size=12).map(lambda row: dict(zip(kuhn.INFOSETS, row, strict=True)))


def second_moment(policy):
    return sum(won**2 * chance for won, chance in kuhn.outcomes(policy).items())


def play(table, cards, history=""):
    """Expected win of seat 0 by following every line of play."""
    if history not in kuhn.ACTIONS:
        return kuhn.payoff(history, cards)
    p, (passive, active) = table[history, cards[len(history) % 2]], kuhn.ACTIONS[history]
    return (1 - p) * play(table, cards, history + passive) + p * play(table, cards, history + active)


def best_of_64(table, seat):
    """The best of the 2^6 deterministic strategies of one seat, each played out against the table."""
    own = [infoset for infoset in kuhn.INFOSETS if len(infoset[0]) % 2 == seat]
    wins = []
    for choice in itertools.product((0, 1), repeat=6):
        mixed = {**table, **dict(zip(own, choice, strict=True))}
        wins.append(sum(play(mixed, cards) for cards in kuhn.DEALS) / 6 * (1 if seat == 0 else -1))
    return max(wins)


def seats(first, second):
    """Seat 0 of one policy with seat 1 of another."""
    return {infoset: (first, second)[kuhn.seat_of(infoset[0])][infoset] for infoset in kuhn.INFOSETS}


def test_the_rules_by_hand():
    # King against jack: the pot is 1 after two checks, 2 after a call; a fold gives 1 to whoever bet.
    wins = {history: kuhn.payoff(history, (2, 0)) for history in ("cc", "bk", "cbk", "bf", "cbf")}
    assert wins == {"cc": 1, "bk": 2, "cbk": 2, "bf": 1, "cbf": -1}
    assert [kuhn.payoff(history, (0, 2)) for history in ("cc", "bk", "cbk", "bf", "cbf")] == [-1, -2, -2, 1, -1]
    assert len(kuhn.INFOSETS) == 12 and len(kuhn.DEALS) == 6


def test_uniform_play():
    # Lines of play: cc 1/4, cbf and cbk 1/8 each, bf and bk 1/4 each. A showdown is won as often as lost, folds
    # give -1/8 + 1/4 = 1/8. Squares: (1/4 + 1/8 + 1/4) * 1 + (1/8 + 1/4) * 4 = 2.125.
    assert kuhn.value(kuhn.uniform()) == pytest.approx(1 / 8)
    assert second_moment(kuhn.uniform()) == pytest.approx(2.125)
    assert kuhn.best_response(kuhn.uniform(), 0) == pytest.approx(1 / 2)
    assert kuhn.best_response(kuhn.uniform(), 1) == pytest.approx(5 / 12)
    assert kuhn.nash_conv(kuhn.uniform()) == pytest.approx(11 / 12)
    assert kuhn.exploitability(kuhn.uniform()) == pytest.approx(11 / 24)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.25, 1 / 3])
def test_every_equilibrium_is_worth_minus_one_eighteenth(alpha):
    policy = kuhn.nash(alpha)
    assert kuhn.value(policy) == pytest.approx(-1 / 18)
    assert kuhn.nash_conv(policy) == pytest.approx(0, abs=1e-15)
    assert kuhn.best_response(policy, 0) == pytest.approx(-1 / 18)


@pytest.mark.parametrize(("alpha", "square"), [(0.0, 1.3889), (1 / 3, 1.8333)])
def test_second_moment_at_equilibrium(alpha, square):
    assert second_moment(kuhn.nash(alpha)) == pytest.approx(square, abs=5e-5)


@LAW
@given(TABLES)
def test_value_and_best_responses_are_those_of_plain_enumeration(table):
    assert kuhn.value(table) == pytest.approx(sum(play(table, cards) for cards in kuhn.DEALS) / 6, abs=1e-12)
    assert sum(kuhn.outcomes(table).values()) == pytest.approx(1)
    for seat in (0, 1):
        assert kuhn.best_response(table, seat) == pytest.approx(best_of_64(table, seat), abs=1e-12)
    assert kuhn.nash_conv(table) >= -1e-12


@LAW
@given(st.lists(TABLES, min_size=1, max_size=4), TABLES)
def test_the_average_wins_what_its_parts_win_on_average_against_anybody(tables, opponent):
    mean = kuhn.average(tables)
    for pair in (lambda own: seats(own, opponent), lambda own: seats(opponent, own)):
        want = sum(kuhn.value(pair(table)) for table in tables) / len(tables)
        assert kuhn.value(pair(mean)) == pytest.approx(want, abs=1e-12)


def test_an_average_counts_a_decision_by_how_often_it_is_reached():
    always = {**kuhn.uniform(), ("", 0): 1.0, ("cb", 0): 1.0}  # bets the jack, so it never faces a bet after a check
    seldom = {**kuhn.uniform(), ("", 0): 0.5, ("cb", 0): 0.2}
    mean = kuhn.average([always, seldom])
    assert mean["", 0] == pytest.approx(0.75) and mean["cb", 0] == pytest.approx(0.2)
    assert kuhn.average([always])["cb", 0] == 1.0  # reached by none of them: the plain mean


@LAW
@given(TABLES)
def test_a_tensor_a_list_and_a_mapping_say_the_same(table):
    row = list(table.values())
    forms = [table, row, torch.tensor(row, dtype=torch.float64)]
    assert len({(kuhn.value(form), kuhn.nash_conv(form)) for form in forms}) == 1


BROKEN = {
    "too short": ([0.5] * 11, "got 11 entries; need 12 probabilities in the order of kuhn.INFOSETS"),
    "two axes": (torch.zeros(12, 2), "got 12 entries; need 12"),
    "an infoset less": ({i: 0.5 for i in kuhn.INFOSETS[1:]}, r"no information set at \[\('', 0\)\]"),
    "an infoset more": ({**kuhn.uniform(), ("bb", 0): 0.5}, r"no information set at \[\('bb', 0\)\]"),
    "no probability": ({**kuhn.uniform(), ("c", 1): 1.5}, r"probability 1.5 at \('c', 1\); need 0 <= p <= 1"),
    "not a number": ({**kuhn.uniform(), ("c", 1): float("nan")}, r"probability nan at \('c', 1\)"),
}


@pytest.mark.parametrize(("policy", "text"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_policy_is_refused(policy, text):
    with pytest.raises(DataError, match=f"kuhn: .*{text}"):
        kuhn.nash_conv(policy)


def test_other_errors():
    with pytest.raises(DataError, match="kuhn.nash: got alpha=0.5; equilibria have 0 <= alpha <= 1/3"):
        kuhn.nash(0.5)
    with pytest.raises(DataError, match="kuhn.average: got no policy; need at least 1"):
        kuhn.average([])
