"""A law: something that holds for every input, checked on one small case at a time."""

import textwrap
from collections.abc import Callable
from typing import NamedTuple

from prl.testing.cases import CASES
from prl.testing.report import Finding
from prl.testing.subject import Subject


class NotApplicable(NamedTuple):
    """Why a law says nothing about a case."""

    why: str


Outcome = str | NotApplicable | None
"""How a case ended: what was wrong, that the law says nothing about it, or None where the law holds."""


class Law(NamedTuple):
    """`check(subject, size, seed)` looks at one case; `advice` says what the law wants and how to get it."""

    name: str
    check: Callable[[Subject, int, int], Outcome]
    advice: str
    cases: tuple[tuple[int, int], ...] = CASES


def outcome(law: Law, subject: Subject, size: int, seed: int) -> Outcome:
    """The case's outcome; a function that raises breaks the law."""
    try:
        found = law.check(subject, size, seed)
    except Exception as error:  # whatever a user's function raises is a finding about it
        first = textwrap.shorten(str(error).strip().partition("\n")[0], 200, placeholder=" ...")
        found = f"{_count(size, subject.noun)}: it raised {type(error).__name__}: {first.rstrip('.')}."
    return f"{found} {law.advice}" if isinstance(found, str) else found


def _count(size: int, noun: str) -> str:
    return f"{size} {noun}{'s' * (size != 1)}"


def judge(law: Law, subject: Subject) -> Finding:
    """The law's finding over its cases. They grow, so the first that fails is the smallest that does."""
    silent = None
    applied = False
    for size, seed in law.cases:
        found = outcome(law, subject, size, seed)
        if isinstance(found, str):
            return Finding(law.name, "FAILED", found)
        applied |= found is None
        silent = found or silent
    if applied or silent is None:
        return Finding(law.name, "passed")
    return Finding(law.name, "not applicable", silent.why)
