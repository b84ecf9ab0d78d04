"""What holds for every advantage function, whatever it computes."""

import torch
from torch import Tensor

from prl.testing import common_laws
from prl.testing.cases import CASES, CONSTANTS, cast, extreme_rollouts, rollouts
from prl.testing.compare import numbers, show
from prl.testing.laws import Law, NotApplicable, Outcome
from prl.testing.results import slopes
from prl.testing.subject import Subject

DTYPES = {"float64": torch.float64, "float32": torch.float32}
NO_REWARDS = NotApplicable("it takes no rewards")


def returns(subject: Subject, size: int, seed: int) -> Outcome:
    """One number per rollout, of the dtype of the rewards."""
    for name, dtype in DTYPES.items():
        values = cast(rollouts(subject.streams, size, seed), dtype)
        got = subject(values)
        if not isinstance(got, Tensor):
            return f"{show(values)} gave a {type(got).__name__}."
        if got.shape != (size,) or got.dtype != dtype:
            return f"{show(values)} of {name} gave shape {list(got.shape)} of {got.dtype}."
    return None


def constant_group(subject: Subject, size: int, seed: int) -> Outcome:
    """Equal rewards give exactly 0.0, in float32 too."""
    if "rewards" not in subject.streams:
        return NO_REWARDS
    for reward in CONSTANTS:
        for name, dtype in DTYPES.items():
            values = {**rollouts(subject.streams, size, seed), "rewards": torch.full((size,), reward)}
            got = subject(cast(values, dtype))
            if (got != 0).any():
                return f"{show(values)} of {name} gave {numbers(got)}; need exactly 0."
    return None


def single_rollout(subject: Subject, size: int, seed: int) -> Outcome:
    """A group of one gives exactly 0.0."""
    if "rewards" not in subject.streams:
        return NO_REWARDS
    values = rollouts(subject.streams, 1, 16 * size + seed)
    got = subject(values)
    return f"{show(values)} gave {numbers(got)}; need exactly 0." if (got != 0).any() else None


def finite(subject: Subject, size: int, seed: int) -> Outcome:
    """No inf and no NaN, for tiny and for huge differences, in float32 too."""
    for name, dtype in DTYPES.items():
        values = cast(extreme_rollouts(subject.streams, size, seed), dtype)
        got = subject(values)
        if not got.isfinite().all():
            return f"{show(values)} of {name} gave {numbers(got)}."
    return None


def gradient(subject: Subject, size: int, seed: int) -> Outcome:
    """The gradient with respect to the rewards is finite, on equal rewards too."""
    if "rewards" not in subject.streams:
        return NO_REWARDS
    values = rollouts(subject.streams, size, seed)
    for rewards in (values["rewards"], torch.full_like(values["rewards"], CONSTANTS[seed % 4])):
        given = {**values, "rewards": rewards}
        got = slopes(subject, given)
        if not got["gradient"].isfinite().all():
            return f"{show(given)}: the gradient is {numbers(got['gradient'])}."
        if not got["advantages"].requires_grad:
            return NotApplicable("the result does not depend on the rewards by a gradient")
    return None


LAWS = (
    Law("returns", returns, "It must give a tensor with one number per rollout, of the rewards' dtype."),
    Law(
        "permutation", common_laws.permutation,
        "The rollouts of a prompt have no order, so their credit must not depend on one.",
    ),
    Law(
        "constant group", constant_group,
        "Equal rewards carry no signal, and r - mean(r) leaves rounding residue; subtract one of the rewards first: "
        "(r - r[0]) - mean(r - r[0]).",
        cases=tuple((size, seed) for size, seed in CASES if size > 1),
    ),
    Law("single rollout", single_rollout, "A rollout without siblings has nothing to be compared with."),
    Law(
        "finite", finite,
        "Branch with torch.where before a division that may be 0/0 and before an exp that may overflow.",
    ),
    Law(
        "gradient", gradient,
        "The branch that torch.where does not take still sends its gradient, and 0 * inf is NaN; give that branch a "
        "harmless input, with a second where.",
    ),
    Law(
        "vmap", common_laws.vmap,
        "Use no .item(), no `if` on values, no boolean index, and do not write into a new tensor.",
    ),
    Law("batch axis", common_laws.batch_axis, "Reduce over the last axis only, with keepdim=True."),
    Law("float32", common_laws.float32, "Training runs in float32; take no difference of large numbers."),
    Law("valid leak", common_laws.leak, "0 * nan is NaN; select with torch.where(valid, rewards, 0.0) first of all."),
    Law("left out", common_laws.left_out, "Count valid rollouts only, in the mean's denominator too."),
    Law("purity", common_laws.purity, "An advantage is a function of its arguments and of nothing else."),
    Law("compile", common_laws.compiles, "Use tensor operations only, without a branch on values.", cases=((4, 0),)),
)  # fmt: skip
