"""The determinism checks can fail: each goes red when what it guards is broken."""

import pytest

import prl.runner
from prl.rollouts import lockstep
from tests.determinism import backwards, check_resume, check_sleeps_do_not_matter, forwards
from tests.test_randomness import check_processes_agree

HASHED = "prl.randomness.seed_of = lambda key: hash(key) % 2**128"


def test_unsorted_requests_are_noticed(monkeypatch):
    monkeypatch.setattr(lockstep, "_in_order", list)
    with pytest.raises(AssertionError, match="rounds differ"):
        check_sleeps_do_not_matter(forwards, backwards)


def test_the_order_of_a_round_reaches_the_tokens(monkeypatch):
    monkeypatch.setattr(lockstep, "_in_order", lambda waiting: sorted(waiting, key=lambda w: w.request.key)[::-1])
    check_sleeps_do_not_matter(forwards, backwards)  # any fixed order will do


def test_seeds_from_hash_are_noticed():
    with pytest.raises(AssertionError):
        check_processes_agree(HASHED)


@pytest.mark.parametrize(("a", "b"), [("step", "draws"), ("algorithms", "curricula"), ("totals", "algorithms")])
def test_swapped_fields_of_the_committed_state_are_noticed(a, b, tmp_path, monkeypatch):
    read_state = prl.runner.read_state

    def swapped(*args):
        state, slots = read_state(*args)
        commit = state["commit"]
        state["commit"] = commit._replace(**{a: getattr(commit, b), b: getattr(commit, a)})
        return state, slots

    check_resume(tmp_path / "whole")
    monkeypatch.setattr(prl.runner, "read_state", swapped)
    with pytest.raises((AssertionError, AttributeError, KeyError, TypeError)):
        check_resume(tmp_path / "swapped")
