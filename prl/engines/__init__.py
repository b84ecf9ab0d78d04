"""Inference engines behind one small protocol."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from prl.engines.base import Completion, Engine, Request
from prl.engines.torch import TorchEngine
from prl.errors import ConfigError

__all__ = ["Completion", "Engine", "Request", "TorchEngine", "build_engine", "stop_ids"]


def stop_ids(stop: Sequence[int | str], renderer: Any, tokenizer: Any) -> tuple[int, ...]:
    """Token ids that end a completion: the renderer's own, then `stop`, whose strings must be one token each.

    Raises:
      ConfigError: a string is several tokens.
    """
    ids = list(renderer.get_stop_token_ids())
    for entry in stop:
        found = [entry] if isinstance(entry, int) else tokenizer.encode(entry, add_special_tokens=False)
        if len(found) != 1:
            raise ConfigError(
                f"Sampling: stop={entry!r} is {len(found)} tokens for this tokenizer; need one, or its id."
            )
        ids += found
    return tuple(dict.fromkeys(ids))


def build_engine(engine: str | Engine, module: nn.Module) -> Engine:
    """The engine as given, or the embedded one for "torch".

    Raises:
      ConfigError: another name.
    """
    if isinstance(engine, str) and engine != "torch":
        raise ConfigError(f"Runner: unknown engine {engine!r}; need 'torch' or an Engine object.")
    return TorchEngine(module) if isinstance(engine, str) else engine
