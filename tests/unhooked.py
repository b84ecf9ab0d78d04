"""Functions without the type hook, for torch.compile, which cannot trace through it."""

import inspect
from types import FunctionType


def bare(fn):
    """`fn` and every prl function it calls, without the checks that the import hook added."""
    fn = inspect.unwrap(fn)
    names = {name: fn.__globals__[name] for name in fn.__code__.co_names if name in fn.__globals__}
    inner = {name: bare(f) for name, f in names.items() if inspect.isfunction(f) and f.__module__.startswith("prl.")}
    copy = FunctionType(fn.__code__, {**fn.__globals__, **inner}, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy
