"""Laws that advantages and losses share: of rollouts or tokens, with `valid` or `mask` as the switch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from prl.testing.cases import cast, generator, junked, stack, switch, take
from prl.testing.compare import apart, numbers, show
from prl.testing.laws import NotApplicable, Outcome
from prl.testing.results import impurity, named, slopes
from prl.testing.subject import Subject, compiled, unchecked


def permutation(subject: Subject, size: int, seed: int) -> Outcome:
    """The order does not matter."""
    values = subject.make(subject.streams, size, seed)
    order = torch.randperm(size, generator=generator(size, seed))
    wrong = apart(slopes(subject, take(values, order)), take(slopes(subject, values), order))
    return wrong and f"{show(values)} taken in the order {numbers(order)}: {wrong}."


def batch_axis(subject: Subject, size: int, seed: int) -> Outcome:
    """A batch axis in front equals a loop over it."""
    if not subject.batch:
        return NotApplicable("pass batch=True if it takes [*batch, group]")
    streams, one, loop = _rows(subject, size, seed)
    wrong = apart(named(one(*streams)), loop)
    return wrong and f"Three rows at once, {_show_rows(subject, streams)}: {wrong}."


def vmap(subject: Subject, size: int, seed: int) -> Outcome:
    """`torch.func.vmap` over a batch axis equals a loop over it."""
    streams, one, loop = _rows(subject, size, seed)
    wrong = apart(named(torch.func.vmap(one, randomness="different")(*streams)), loop)
    return wrong and f"vmap over three rows, {_show_rows(subject, streams)}: {wrong}."


def leak(subject: Subject, size: int, seed: int) -> Outcome:
    """Whatever stands where the switch is off changes nothing; result and gradient there are exactly 0."""
    if not subject.switched:
        return NotApplicable(f"{subject.name} takes no `{subject.switch}`")
    values, on = subject.make(subject.streams, size, seed), switch(size, seed)
    want = slopes(subject, values, on)
    for dirty in junked(values, on, seed):
        got = slopes(subject, dirty, on)
        where = f"{show(dirty)}, {subject.switch}={numbers(on)}"
        if wrong := apart(got, want, 0.0):
            return f"{where}: {wrong} as with harmless numbers there."
        for name in (name for name in got if not name.startswith("metrics")):
            if (got[name][~on] != 0).any():
                return f"{where}: {name} is {numbers(got[name])}; need exactly 0 where {subject.switch} is False."
    return None


def left_out(subject: Subject, size: int, seed: int) -> Outcome:
    """What is switched off counts as if it were not there."""
    if not subject.switched:
        return NotApplicable(f"{subject.name} takes no `{subject.switch}`")
    values, on = subject.make(subject.streams, size, seed), switch(size, seed)
    if not on.any():
        return NotApplicable(f"no {subject.noun} left")
    wrong = apart(take(slopes(subject, values, on), on), slopes(subject, take(values, on)))
    return wrong and f"{show(values)}, {subject.switch}={numbers(on)}: among those left, {wrong} as by themselves."


def float32(subject: Subject, size: int, seed: int) -> Outcome:
    """float32 stays near float64."""
    values = subject.make(subject.streams, size, seed)
    wrong = apart(slopes(subject, cast(values, torch.float32)), slopes(subject, values), 1e-5)
    return wrong and f"{show(values)} in float32: {wrong}."


def purity(subject: Subject, size: int, seed: int) -> Outcome:
    """Inputs stay as they were, a second call gives the same bits, torch's generator is not touched."""
    values = subject.make(subject.streams, size, seed)
    wrong = impurity(subject, values, switch(size, seed) if subject.switched else None)
    return wrong and f"{show(values)}: {wrong}."


def compiles(subject: Subject, size: int, seed: int) -> Outcome:
    """`torch.compile(fullgraph=True)` gives the same numbers, with the switch and without."""
    values = subject.make(subject.streams, size, seed)
    fast = compiled(subject.fn)
    for on in (None, switch(size, seed)) if subject.switched else (None,):
        with unchecked():
            got = slopes(subject, values, on, fast)
        if wrong := apart(got, slopes(subject, values, on)):
            return f"{show(values)}: {wrong}."
    return None


def _rows(subject: Subject, size: int, seed: int) -> tuple[tuple[Tensor, ...], Callable[..., Any], dict[str, Tensor]]:
    """Three rows of every stream, the switch last; the function of one row of them; and its results row by row."""
    values = stack([subject.make(subject.streams, size, seed + i) for i in range(3)])
    switches = (torch.stack([switch(size, seed + i) for i in range(3)]),) if subject.switched else ()

    def one(*row: Tensor) -> Any:
        return subject(dict(zip(values, row, strict=False)), row[-1] if subject.switched else None)

    streams = (*values.values(), *switches)
    return streams, one, stack([named(one(*row)) for row in zip(*streams, strict=True)])


def _show_rows(subject: Subject, streams: tuple[Tensor, ...]) -> str:
    names = (*subject.streams, subject.switch)
    return show(dict(zip(names, streams, strict=False)))
