"""Conformance kit: the laws that every advantage and every loss must keep, to run on your own.

prl.testing.check_advantage(lambda r: r - r.mean())
prl.testing.check_loss(my_loss)
"""

from prl.testing.check import check_advantage, check_loss
from prl.testing.report import Finding, Report

__all__ = ["Finding", "Report", "check_advantage", "check_loss"]
