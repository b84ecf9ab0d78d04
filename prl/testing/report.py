"""What a check found: one row per law, as a table."""

import textwrap
from dataclasses import dataclass
from typing import Literal, NamedTuple

Result = Literal["passed", "FAILED", "not applicable", "waived", "not run"]


class Finding(NamedTuple):
    """One law's row. `why` is empty for a law that holds."""

    law: str
    result: Result
    why: str = ""


@dataclass(frozen=True, repr=False)
class Report:
    """The laws of one function. Its repr is the table, so the last line of a cell shows it.

    In a script `print(report)`; in a test `assert report.ok, report`.
    """

    subject: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.result == "FAILED")

    @property
    def ok(self) -> bool:
        """True where no law failed. A law that does not apply, or is waived, does not fail."""
        return not self.failed

    def __repr__(self) -> str:
        names, results = (max(len(f[i]) for f in self.findings) for i in (0, 1))
        margin = " " * (names + results + 6)
        rows = (
            textwrap.fill(f"  {f.law:{names}}  {f.result:{results}}  {f.why}", 120, subsequent_indent=margin)
            for f in self.findings
        )
        return "\n".join([f"{self.subject}: {self._verdict()}", *(row.rstrip() for row in rows)])

    def _verdict(self) -> str:
        ran = sum(finding.result in ("passed", "FAILED") for finding in self.findings)
        return f"{len(self.failed)} of {ran} laws FAILED" if self.failed else f"all {ran} laws hold"
