"""Inference engines behind one small protocol."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from prl.config import Sampling
from prl.engines.base import Completion, Engine, Request
from prl.engines.mismatched import MismatchedEngine
from prl.engines.torch import TorchEngine
from prl.errors import ConfigError

__all__ = ["Completion", "Engine", "MismatchedEngine", "Request", "TorchEngine", "build_engine", "stop_ids", "stopping"]


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


def stopping(sampling: Sampling, renderer: Any, tokenizer: Any) -> Sampling:
    """The same settings with `stop` as token ids, the renderer's own included."""
    return sampling.with_stop(stop_ids(sampling.stop, renderer, tokenizer))


def build_engine(engine: str | Engine, module: nn.Module, tokenizer: Any, topk_logprobs: int) -> Engine:
    """The engine as given, or one in this process by name: "torch" or "vllm".

    Raises:
      ConfigError: another name.
    """
    if not isinstance(engine, str):
        return engine
    if engine == "torch":
        return TorchEngine(module)
    if engine == "vllm":
        from prl.engines.vllm import VLLMEngine

        return VLLMEngine(module, tokenizer, topk_logprobs=topk_logprobs)
    raise ConfigError(
        f"Runner: unknown engine {engine!r}; need 'torch', 'vllm', or an Engine object such as a ServerEngine."
    )
