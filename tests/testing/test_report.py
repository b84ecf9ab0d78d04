"""The table that a user reads."""

from prl.testing import Finding, Report

FINDINGS = (
    Finding("returns", "passed"),
    Finding("split", "FAILED", "trainer_logprobs=[-1, -2] cut before token 1: " + "per_token[1] is 3, not 1. " * 4),
    Finding("mask leak", "not applicable", "mine takes no `mask`"),
    Finding("shapes", "waived", "the Runner passes equal ones"),
)
TABLE = """\
mine(trainer_logprobs): 1 of 2 laws FAILED
  returns    passed
  split      FAILED          trainer_logprobs=[-1, -2] cut before token 1: per_token[1] is 3, not 1. per_token[1] is 3,
                             not 1. per_token[1] is 3, not 1. per_token[1] is 3, not 1.
  mask leak  not applicable  mine takes no `mask`
  shapes     waived          the Runner passes equal ones"""


def test_the_repr_is_the_table():
    report = Report("mine(trainer_logprobs)", FINDINGS)
    assert repr(report) == str(report) == TABLE
    assert max(map(len, TABLE.splitlines())) <= 120


def test_only_a_failed_law_makes_it_not_ok():
    assert not Report("mine()", FINDINGS).ok
    good = Report("mine()", tuple(finding for finding in FINDINGS if finding.result != "FAILED"))
    assert good.ok and repr(good).startswith("mine(): all 1 laws hold\n")
    assert [finding.law for finding in Report("mine()", FINDINGS).failed] == ["split"]
