"""What an algorithm is: credit for one group at a time, with its state passed in and out."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from prl.errors import ConfigError
from prl.types import Group


@runtime_checkable
class Algorithm(Protocol):
    """Turns a group's rewards into streams on its samples.

    `component` is the loss component of action tokens: "rl", "ce" or "ref_kl".
    State is made of dicts, lists, strings, numbers, tensors and NamedTuples of them.
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
