"""Any OpenAI-compatible chat endpoint: text in, text out, for sft from a model that prl cannot sample itself."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from prl.config import FrozenModel, Sampling
from prl.engines.http import Endpoint
from prl.engines.limits import request_seed
from prl.errors import EngineError
from prl.randomness import Key

_PATH = "/chat/completions"


class ChatReply(NamedTuple):
    """What the model said. finish_reason is "stop" or "length"; reasoning is None where the server sends none apart."""

    text: str
    reasoning: str | None
    finish_reason: str


class ChatEngine:
    """A client of the frozen model's /chat/completions. The server renders the messages; log-probabilities do not come.

    `concurrency`, `timeout_s` (seconds of one request) and `retries` are those of `prl.engines.http.Endpoint`.

    Raises:
      ConfigError: a setting out of range; the variable that holds the key is not set.
    """

    def __init__(
        self, model: FrozenModel, *, concurrency: int = 64, timeout_s: float = 600.0, retries: int = 2
    ) -> None:
        self._model = model.name
        self._endpoint = Endpoint(
            "ChatEngine", model.base_url, model.api_key(), concurrency=concurrency, timeout_s=timeout_s, retries=retries
        )

    async def reply(
        self, messages: Sequence[Mapping[str, Any]], sampling: Sampling, key: Key, *, tools: Any = None
    ) -> ChatReply:
        """The model's reply to the conversation. `sampling.stop` holds strings here; the server has its own end token.

        Raises:
          EngineError: tools, candidates or token ids to stop at are asked for; the server could not
            be asked, or its answer is no text.
        """
        if tools is not None or any(message.get("tool_calls") for message in messages):
            raise EngineError("ChatEngine: got tools; this version talks without them. Leave tools out.")
        if sampling.topk_logprobs or any(isinstance(stop, int) for stop in sampling.stop):
            raise EngineError(
                f"ChatEngine: got topk_logprobs={sampling.topk_logprobs}, stop={sampling.stop}; a chat endpoint "
                "gives no candidates and stops at strings only. Leave token ids out; the model ends its turn itself."
            )
        body = {
            "model": self._model, "messages": [dict(message) for message in messages], "seed": request_seed(key),
            "temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_tokens,
        }  # fmt: skip
        body |= {"stop": list(sampling.stop)} if sampling.stop else {}
        body |= {"top_k": sampling.top_k} if sampling.top_k else {}
        return self._said(await self._endpoint.ask(_PATH, lambda: body))

    def _said(self, answer: Any) -> ChatReply:
        try:
            (choice,) = answer["choices"]
            message, reason = choice["message"], choice["finish_reason"]
            text, calls = message.get("content"), message.get("tool_calls")
            reasoning = message.get("reasoning") or message.get("reasoning_content")
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise self._fault(f"answered {self._endpoint.shown(answer)}; need an object with one choice.") from error
        if calls or reason not in ("stop", "length"):
            raise self._fault(
                f"finish_reason is {reason!r}, tool_calls {self._endpoint.shown(calls)}; need text alone."
            )
        if not isinstance(text, str | None) or not isinstance(reasoning, str | None):
            raise self._fault(f"content is {self._endpoint.shown(text)}, reasoning {self._endpoint.shown(reasoning)}.")
        return ChatReply(text or "", reasoning, reason)

    def _fault(self, what: str) -> EngineError:
        return self._endpoint.fault(_PATH, what)
