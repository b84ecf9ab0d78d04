"""Models that answer in text: their replies become tokens of the policy's own rendering."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from prl.config import Sampling
from prl.engines.base import Completion, Request
from prl.errors import EngineError
from prl.randomness import Key


@runtime_checkable
class Chat(Protocol):
    """Messages in; text, reasoning and finish_reason out, as `prl.engines.chat.ChatEngine` gives them."""

    async def reply(
        self, messages: Sequence[Mapping[str, Any]], sampling: Sampling, key: Key, *, tools: Any = None
    ) -> Any: ...


async def complete(
    chat: Chat, request: Request, messages: Sequence[Mapping[str, Any]], renderer: Any, tools: Any
) -> Completion:
    """The chat's reply to `messages` as the tokens that the policy would have written, without log-probabilities.

    It ends with the first stop token of `request.sampling`, or without one where the reply was
    cut short. A frozen model has no version.

    Raises:
      EngineError: the renderer does not continue its own prompt with the reply.
    """
    said_by = request.sampling.model_copy(update={"stop": (), "topk_logprobs": None})
    reply = await chat.reply(messages, said_by, request.key, tools=tools)
    said = {"role": "assistant", "content": reply.text}
    said |= {"reasoning_content": reply.reasoning} if reply.reasoning else {}
    prompt = list(renderer.render(messages, tools=tools, add_generation_prompt=True).token_ids)
    whole = list(renderer.render([*messages, said], tools=tools).token_ids)
    if whole[: len(prompt)] != prompt:
        raise EngineError(
            "frozen model's reply: the renderer shows it after another prompt than the one that asked for it, so it "
            "cannot become training tokens. Use a renderer whose history stays as it was rendered."
        )
    ids = whole[len(prompt) :]
    end = next((i for i, token in enumerate(ids) if token in request.sampling.stop), len(ids))
    ids = ids[: end + (reply.finish_reason == "stop")]
    return Completion(np.array(ids, np.int32), None, None, reply.finish_reason, None)
