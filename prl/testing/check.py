"""Run the conformance laws on an advantage or a loss."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from prl.errors import ConfigError
from prl.testing import advantage_laws, loss_laws
from prl.testing.laws import Law, judge
from prl.testing.report import Finding, Report
from prl.testing.subject import Slope, Subject, advantage_subject, loss_subject


def check_advantage(
    fn: Callable[..., Any],
    *,
    streams: Sequence[str] | None = None,
    batch: bool = False,
    without: Mapping[str, str] | None = None,
) -> Report:
    """Run the laws of advantages on `fn(rewards[group]) -> [group]`.

    Args:
      fn: a function of the rewards of one prompt, pure; settings bound with functools.partial.
        One with a keyword `valid` is also asked that invalid rollouts count for nothing.
      streams: what it takes, in order: "rewards", "lengths", "output_tokens",
        "input_tokens", "turns", each [group]. Default: its required parameters.
      batch: it also takes [*batch, group].
      without: laws that need not hold, each with the reason, {"permutation": "an EMA depends on order"}.

    Returns:
      A Report with a row for each law: passed, FAILED with the smallest counterexample
      tried, not applicable, or waived. The same function always gets the same report, in about
      a second; the first one of a process waits some seconds longer for torch.compile.

    Raises:
      ConfigError: a parameter that is no stream, an unknown law, a waiver without reason.
    """
    return _report("check_advantage", advantage_subject(fn, streams, batch=batch), advantage_laws.LAWS, without)


def check_loss(
    fn: Callable[..., Any],
    *,
    streams: Sequence[str] | None = None,
    on_policy_slope: Slope | None = None,
    without: Mapping[str, str] | None = None,
) -> Report:
    """Run the laws of losses on `fn(trainer_logprobs, inference_logprobs, advantages) -> TokenLoss`.

    Args:
      fn: an unreduced loss, pure; settings bound with functools.partial. One with a
        keyword `mask` is also asked that masked tokens count for nothing.
      streams: what it takes, in order: "trainer_logprobs", "inference_logprobs",
        "advantages", "ref_logprobs", each [*tokens], and "topk_trainer_logprobs",
        "topk_inference_logprobs", each [*tokens, topk]. Default: its required parameters.
      on_policy_slope: from the streams by name to d per_token / d trainer_logprobs where
        pi = mu. Default: -advantages, for a loss that takes the streams of the rl component.
      without: laws that need not hold, each with the reason, {"split": "one ratio per sequence"}.

    Returns:
      A Report, as of `check_advantage`.

    Raises:
      ConfigError: a parameter that is no stream, an unknown law, a waiver without reason.
    """
    return _report("check_loss", loss_subject(fn, streams, on_policy_slope), loss_laws.LAWS, without)


def _report(where: str, subject: Subject, laws: tuple[Law, ...], without: Mapping[str, str] | None) -> Report:
    waived = without or {}
    _check_waivers(where, waived, [law.name for law in laws])
    findings: list[Finding] = []
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        # A function that draws gets the same report every time, and the caller keeps its generator.
        torch.manual_seed(0)
        for law in laws:
            if law.name in waived:
                findings.append(Finding(law.name, "waived", waived[law.name]))
            elif findings and findings[0].result == "FAILED":
                findings.append(Finding(law.name, "not run", f"needs `{laws[0].name}`"))
            else:
                findings.append(judge(law, subject))
    return Report(subject.call, tuple(findings))


def _check_waivers(where: str, waived: Mapping[str, str], known: list[str]) -> None:
    for name, why in waived.items():
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1) or known
            raise ConfigError(f"{where}: without names no law {name!r}; did you mean {', '.join(map(repr, nearest))}?")
        if name == known[0] or not why.strip():
            raise ConfigError(f"{where}: without[{name!r}] needs a reason, and {known[0]!r} cannot be waived.")
