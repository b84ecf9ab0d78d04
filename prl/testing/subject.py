"""The function under test, and how the laws call it."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jaxtyping
import torch
from torch import Tensor

from prl.errors import ConfigError
from prl.testing.cases import ADVANTAGE_STREAMS, LOSS_STREAMS, RL_STREAMS, Streams, rollouts, tokens

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Slope = Callable[[Mapping[str, Tensor]], Tensor]
"""The expected gradient per token at pi = mu, from the streams."""


@dataclass(frozen=True)
class Subject:
    """A user's function and what it takes.

    `make(streams, size, seed)` gives it ordinary inputs, so many of `noun`. `switch` names
    the boolean keyword of its kind: `valid` of an advantage, `mask` of a loss. `batch`: it
    takes axes in front. `slope`: a loss's gradient at pi = mu.
    """

    fn: Callable[..., Any]
    streams: tuple[str, ...]
    make: Callable[[Sequence[str], int, int], Streams]
    noun: str
    switch: str
    batch: bool
    slope: Slope | None = None

    def __call__(
        self, values: Mapping[str, Tensor], on: Tensor | None = None, via: Callable[..., Any] | None = None
    ) -> Any:
        """Call the function on fresh copies, so that one which writes into its inputs breaks one law and not all.

        `via` is its compiled form, which gets the leaves of a gradient as they are: it warns of copies.
        """
        kept = {name for name, value in values.items() if via and value.requires_grad}
        copies = {name: value if name in kept else value.clone() for name, value in values.items()}
        args, keywords = self.arguments(copies, on)
        return (via or self.fn)(*args, **keywords)

    @cached_property
    def places(self) -> dict[str, int | None]:
        """Each parameter's position, None for one that is given by name only."""
        parameters = inspect.signature(self.fn).parameters.items()
        return {name: i if p.kind in POSITIONAL else None for i, (name, p) in enumerate(parameters)}

    @property
    def switched(self) -> bool:
        return self.switch in self.places

    @property
    def name(self) -> str:
        return name_of(self.fn)

    @property
    def call(self) -> str:
        """The call as the laws make it: `ipo(trainer_logprobs, inference_logprobs, advantages, mask=, eps=0.1)`."""
        bound = self.fn.keywords if isinstance(self.fn, partial) else {}
        keywords = [f"{self.switch}="] * self.switched + [f"{key}={value!r}" for key, value in bound.items()]
        return f"{self.name}({', '.join([*self.streams, *keywords])})"

    def arguments(self, values: Mapping[str, Any], on: Any = None) -> tuple[list[Any], dict[str, Any]]:
        """Streams go by position, or by name where the function has that name elsewhere; `on` goes to the switch."""
        args, keywords = [], {} if on is None else {self.switch: on}
        for stream, value in values.items():
            if self.places.get(stream, len(args)) != len(args):
                keywords[stream] = value
            else:
                args.append(value)
        return args, keywords


def advantage_subject(fn: Callable[..., Any], streams: Sequence[str] | None = None, *, batch: bool = False) -> Subject:
    """`fn` as an advantage; its first positional is the rewards, whatever its name."""
    streams = tuple(streams) if streams else ("rewards", *_required(fn)[1:])
    return _bindable("check_advantage", Subject(fn, streams, rollouts, "rollout", "valid", batch), ADVANTAGE_STREAMS)


def loss_subject(
    fn: Callable[..., Any], streams: Sequence[str] | None = None, on_policy_slope: Slope | None = None
) -> Subject:
    """`fn` as an unreduced loss; three positionals of other names are the streams of an rl loss."""
    required = _required(fn)
    if streams is None:
        unknown = [name for name in required if name not in LOSS_STREAMS]
        streams = RL_STREAMS if unknown and len(required) == 3 else required
    streams = tuple(streams)
    if on_policy_slope is None and streams[:3] == RL_STREAMS:
        on_policy_slope = _minus_advantages
    return _bindable("check_loss", Subject(fn, streams, tokens, "token", "mask", True, on_policy_slope), LOSS_STREAMS)


def name_of(fn: Callable[..., Any]) -> str:
    """The function's name, under any functools.partial."""
    return name_of(fn.func) if isinstance(fn, partial) else getattr(fn, "__name__", type(fn).__name__)


@contextmanager
def unchecked() -> Iterator[None]:
    """jaxtyping's checks off, which torch.compile cannot trace."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def compiled(fn: Callable[..., Any], backend: str = "aot_eager") -> Callable[..., Any]:
    """`fn` compiled without a graph break. Call it inside `unchecked`."""

    def call(*args: Any, **keywords: Any) -> Any:
        return fn(*args, **keywords)

    # torch allows a code object eight compiled forms, and whatever is wrapped alike shares one.
    call.__code__ = call.__code__.replace()
    return torch.compile(call, fullgraph=True, backend=backend)


def _minus_advantages(values: Mapping[str, Tensor]) -> Tensor:
    return -values["advantages"]


def _required(fn: Callable[..., Any]) -> tuple[str, ...]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(fn).parameters.items()
    return tuple(name for name, p in parameters if p.default is p.empty and p.kind not in variadic)


def _bindable(where: str, subject: Subject, known: tuple[str, ...]) -> Subject:
    need = f"Name what it takes, in order: streams=(...), of {', '.join(known)}; bind the rest with functools.partial."
    unknown = [stream for stream in subject.streams if stream not in known]
    if unknown or not subject.streams:
        raise ConfigError(f"{where}: {subject.name} takes {', '.join(unknown) or 'no stream'}. {need}")
    args, keywords = subject.arguments(dict.fromkeys(subject.streams))
    try:
        inspect.signature(subject.fn).bind(*args, **keywords)
    except TypeError as error:
        raise ConfigError(f"{where}: {subject.call} is no possible call: {error}. {need}") from None
    return subject
