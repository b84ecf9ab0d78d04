"""Models that answer in text: their replies become tokens of the policy's own rendering."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from prl.config import Sampling
from prl.engines.base import Completion, Request
from prl.errors import EngineError
from prl.randomness import Key


class ChatReply(NamedTuple):
    """What an endpoint said. finish_reason is "stop" or "length"."""

    text: str
    reasoning: str | None
    finish_reason: str


@runtime_checkable
class Chat(Protocol):
    """Messages in, text out."""

    async def reply(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling, key: Key) -> ChatReply: ...


async def complete(
    chat: Chat, request: Request, messages: Sequence[Mapping[str, Any]], renderer: Any, tools: Any
) -> Completion:
    """The chat's reply to `messages` as the tokens that the policy would have written, without log-probabilities.

    The stop token is the last one, unless the reply was cut short. Version None: a frozen model has none.

    Raises:
      EngineError: the renderer does not continue its own prompt with the reply.
    """
    reply = await chat.reply(messages, request.sampling, request.key)
    said = {"role": "assistant", "content": reply.text}
    said |= {"reasoning_content": reply.reasoning} if reply.reasoning else {}
    prompt = list(renderer.render(messages, tools=tools, add_generation_prompt=True).token_ids)
    whole = list(renderer.render([*messages, said], tools=tools).token_ids)
    if whole[: len(prompt)] != prompt:
        raise EngineError(
            "sft source: the renderer shows the reply after another prompt than the one it was asked with, so it "
            "cannot become training tokens. Use a renderer whose history stays as it was rendered."
        )
    stops = set(renderer.get_stop_token_ids())
    ids = whole[len(prompt) :]
    end = next((i for i, token in enumerate(ids) if token in stops), len(ids))
    ids = ids[: end + (reply.finish_reason == "stop")]
    return Completion(np.array(ids, np.int32), None, None, reply.finish_reason, None)
