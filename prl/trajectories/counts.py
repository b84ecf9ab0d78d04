"""What a rollout cost: tokens written, tokens read, model calls."""

import math
from collections.abc import Collection, Iterable, Sequence

from prl.errors import DataError
from prl.types import Step
from prl.types.step import new_prompt_tokens

_INTO_SUBAGENT = "subagent_call"
_STAYS_INSIDE = (_INTO_SUBAGENT, "continuation", "compaction_attempt", "compaction")


def token_counts(
    steps: Sequence[Step], *, subagents: Collection[int] = (), subagent_token_weight: float | int = 1.0
) -> tuple[float, float, int]:
    """(output, input, turns) of one rollout, each call counted once.

    output = sum_k w_k |completion_k|, input = sum_k w_k (tokens of prompt_k that its
    longest earlier prefix does not have), turns = number of calls.

    Args:
      steps: calls in the order in which they were made.
      subagents: indices of the calls made by sub-agents, see `subagent_steps`.
      subagent_token_weight: w of those; every other call has 1. It leaves the turns alone.

    Returns:
      Tokens, tokens, calls; zeros without a call. A prefix that several branches share
      counts once, in the branch that made it.

    Raises:
      DataError: an index outside the steps, or a weight that is negative or not finite.

    Source: algorithms page, "Default Advantage" (`linear` and `linear-subagent`).
    """
    if strangers := sorted(k for k in subagents if not 0 <= k < len(steps)):
        raise DataError(f"token_counts: subagents holds {strangers}; the rollout has {len(steps)} calls, from 0 on.")
    if not 0 <= subagent_token_weight < math.inf:
        raise DataError(
            f"token_counts: got subagent_token_weight={subagent_token_weight}; need a number >= 0: 0 leaves "
            "sub-agents' tokens out, 1 counts them fully."
        )
    weights = [subagent_token_weight if k in subagents else 1.0 for k in range(len(steps))]
    output = sum(w * len(step.completion_ids) for w, step in zip(weights, steps, strict=True))
    fresh = sum(w * n for w, n in zip(weights, new_prompt_tokens(steps), strict=True))
    return float(output), float(fresh), len(steps)


def subagent_steps(edges: Iterable[tuple[int, int, str]]) -> set[int]:
    """The calls made by sub-agents, nested ones included.

    They are the targets of "subagent_call" edges, and what follows from them along
    "subagent_call", "continuation", "compaction_attempt" and "compaction". Other edges
    (return, cancel, message, unknown ones) lead nowhere.

    Args:
      edges: (source, target, type), sources and targets being indices of steps.

    Returns:
      Indices of steps; empty without edges, where every call counts fully.

    Source: algorithms page, "Default Advantage" (`linear-subagent`).
    """
    followed: dict[int, list[int]] = {}
    found: set[int] = set()
    for source, target, kind in edges:
        if kind in _STAYS_INSIDE:
            followed.setdefault(source, []).append(target)
        if kind == _INTO_SUBAGENT:
            found.add(target)
    waiting = list(found)
    while waiting:
        fresh = set(followed.get(waiting.pop(), ())) - found
        found |= fresh
        waiting += fresh
    return found
