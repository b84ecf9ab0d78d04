"""What a call gave: its tensors by name, its gradient, and what else it did."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from prl.testing.cases import LEAVES
from prl.testing.compare import apart, numbers
from prl.testing.subject import Subject
from prl.types import TokenLoss


def named(out: Any) -> dict[str, Tensor]:
    """The tensors of a result by name."""
    if not isinstance(out, TokenLoss):
        return {"advantages": out}
    return {"per_token": out.per_token, "kept": out.kept, **{f"metrics[{k!r}]": v for k, v in out.metrics.items()}}


def slopes(
    subject: Subject, values: Mapping[str, Tensor], on: Tensor | None = None, via: Callable[..., Any] | None = None
) -> dict[str, Tensor]:
    """`named`, and the gradient of the summed loss with respect to each stream that the trainer computes.

    Of an advantage: the gradient of the sum of squares (the sum is often 0 whatever the rewards) with respect to them.
    """
    leaves = {name: values[name].clone().requires_grad_() for name in LEAVES if name in values}
    out = named(subject({**values, **leaves}, on, via))
    total = out["per_token"].sum() if "per_token" in out else out["advantages"].square().sum()
    found = [torch.zeros_like(leaf) for leaf in leaves.values()]
    if total.requires_grad:
        found = torch.autograd.grad(total, [*leaves.values()], allow_unused=True, materialize_grads=True)
    return {**out, **{LEAVES[name]: slope for name, slope in zip(leaves, found, strict=True)}}


def impurity(subject: Subject, values: Mapping[str, Tensor], on: Tensor | None) -> str | None:
    """What the call does besides returning a function of its arguments, or None."""
    given = {name: value.clone() for name, value in values.items()}
    args, keywords = subject.arguments(given, on)
    before = torch.random.get_rng_state()
    first = named(subject.fn(*args, **keywords))
    drew = not torch.equal(before, torch.random.get_rng_state())
    for name, value in given.items():
        if apart({name: value}, {name: values[name]}, 0.0):
            return f"it wrote into {name}, which now is {numbers(value)}"
    if drew:
        return "it drew from torch's global generator"
    wrong = apart(named(subject(values, on)), first, 0.0)
    return wrong and f"a second call gave another result, {wrong}"
