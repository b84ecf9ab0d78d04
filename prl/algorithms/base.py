"""What an algorithm is: credit for one group at a time, with its state passed in and out."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from prl.config import ModelRef
from prl.engines.base import Engine
from prl.errors import ConfigError, DataError
from prl.types import Group, Task, TrainingSample


class Models(NamedTuple):
    """What a reference may ask while it scores one sample of `task`.

    score(model, token_ids) gives log p(token t | tokens < t) [tokens] in nats at temperature 1,
    0.0 at position 0, under "policy", a FrozenModel, or an engine of this process, such as a
    TorchEngine of a teacher. `renderer` and `tokenizer` are the policy's.
    """

    score: Callable[[ModelRef | Engine, np.ndarray], Awaitable[np.ndarray]]
    task: Task
    renderer: Any
    tokenizer: Any


Reference = Callable[[TrainingSample, Models], Awaitable[np.ndarray]]
"""async (sample, models) -> a stream [tokens] of the sample; what it says outside the loss mask is not used."""


@runtime_checkable
class Algorithm(Protocol):
    """Turns a group's rewards into streams on its samples.

    `component` is the loss component of action tokens: "rl", "ce" or "ref_kl".
    State is made of dicts, lists, strings, numbers, tensors and NamedTuples of them.

    Two more are optional: `references`, a mapping {stream: Reference} that is asked once for
    each sample before `score_group`, and `sampling` with the `source` of its rollouts, else
    the policy.
    """

    component: str

    def init_state(self) -> Any: ...

    def score_group(self, group: Group, state: Any) -> tuple[Group, Any]: ...


class FunctionAlgorithm:
    """A bare function fn(group, state) -> (group, state) as an algorithm; its first state is an empty dict."""

    component = "rl"

    def __init__(self, fn: Callable[[Group, Any], tuple[Group, Any]]) -> None:
        self._fn = fn

    def __repr__(self) -> str:
        return f"function {getattr(self._fn, '__qualname__', self._fn)}"

    def init_state(self) -> Any:
        return {}

    def score_group(self, group: Group, state: Any) -> tuple[Group, Any]:
        return self._fn(group, state)


class AdvantageAlgorithm:
    """A function of one group's rewards [group] -> advantages [group] as an algorithm without memory."""

    component = "rl"

    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        self._fn = fn

    def __repr__(self) -> str:
        return f"advantage {getattr(self._fn, '__qualname__', self._fn)}"

    def init_state(self) -> Any:
        """No memory."""
        return {}

    def score_group(self, group: Group, state: Any) -> tuple[Group, Any]:
        """The function, called once on the rewards of the rollouts that count.

        Raises:
          DataError: it returned something else than one number per rollout.
        """
        if not group.traces:
            return group, state
        credit = self._fn(group.rewards)
        if not isinstance(credit, Tensor) or credit.shape != group.rewards.shape:
            got = f"shape {list(credit.shape)}" if isinstance(credit, Tensor) else type(credit).__name__
            raise DataError(
                f"advantage: returned {got} for group {group.id!r}; need a tensor of shape "
                f"{list(group.rewards.shape)}, one number per rollout of the group."
            )
        return group.assign(advantages=credit), state


def choose(algorithm: Any, advantage: Any, where: str) -> Algorithm | None:
    """The algorithm that one of the two stands for; None where both are None.

    Raises:
      ConfigError: both are given, or `algorithm` is none.
    """
    if algorithm is not None and advantage is not None:
        raise ConfigError(f"{where}: got both advantage= and algorithm=; the one replaces the other, so give one.")
    if advantage is not None:
        return AdvantageAlgorithm(advantage)
    return None if algorithm is None else as_algorithm(algorithm)


def as_algorithm(algorithm: Any) -> Algorithm:
    """An algorithm as given, or a function wrapped as one.

    Raises:
      ConfigError: neither.
    """
    methods = [getattr(algorithm, name, None) for name in ("init_state", "score_group")]
    if all(map(callable, methods)) and not isinstance(algorithm, type):
        return algorithm
    if callable(algorithm) and not isinstance(algorithm, type):
        fn: Any = algorithm
        return FunctionAlgorithm(fn)
    raise ConfigError(
        f"algorithm: got {algorithm!r}; need a config such as GRPO(), an object with init_state() and "
        "score_group(group, state), or a function fn(group, state) -> (group, state)."
    )


def references_of(algorithm: Any) -> Mapping[str, Reference]:
    """The algorithm's references by stream; none where it declares none."""
    return getattr(algorithm, "references", {})


def source_of(algorithm: Any) -> ModelRef:
    """The model that samples the algorithm's rollouts."""
    sampling = getattr(algorithm, "sampling", None)
    return "policy" if sampling is None else sampling.source
