"""Renderers: conversations to tokens and back.

Model families come from the `renderers` package. `ChatML` here serves SmolLM2 and
the tiny models. Both satisfy the package's `Renderer` protocol.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from renderers import ParsedResponse, RenderedTokens, config_from_name, create_renderer
from renderers.base import MODEL_RENDERER_MAP, Renderer, extract_message_tool_names
from transformers import PreTrainedTokenizerBase

from prl.errors import ConfigError, DataError
from prl.types.step import ROLES

Message = Mapping[str, Any]


class ChatML:
    """`<|im_start|>role\\n body <|im_end|>\\n` for each message: no tools, no thinking.

    Prefix-stable, and every turn bridges. Bodies are tokenized on their own, so that a
    prompt is cut exactly where the model starts to write; a control token typed inside
    a body is plain text. `default_system` is put in front of conversations that do not
    start with a system message; its tokens belong to no message (index -1).

    Raises:
      ConfigError: the tokenizer lacks `<|im_start|>` or `<|im_end|>` as special tokens.
    """

    is_prefix_stable = True
    effective_thinking_retention = "all"

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, default_system: str | None = None) -> None:
        missing = {"<|im_start|>", "<|im_end|>"} - set(tokenizer.all_special_tokens)
        if missing:
            raise ConfigError(
                f"ChatML: tokenizer {tokenizer.name_or_path!r} has no special token {' or '.join(sorted(missing))}. "
                "Both mark the turns. Add them as special tokens, or choose another renderer."
            )
        self.tokenizer: Any = tokenizer
        self.default_system = default_system
        self._start, self._end = self.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
        # A group asks with one prompt many times, and every message has its role's header.
        self._encode = lru_cache(maxsize=4096)(self._tokenize)
        self._newline = self._encode("\n")

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """Token ids of a conversation, each with its message (-1: none) and whether it is body text.

        Raises:
          DataError: a role outside `prl.types.ROLES`, a body that is not a str, or
            something that ChatML cannot show (tool calls, reasoning).
          ConfigError: tools.
        """
        out = self._empty(messages, tools)
        if self.default_system is not None and (not messages or messages[0]["role"] != "system"):
            self._add_message(out, -1, {"role": "system", "content": self.default_system})
        for index, message in enumerate(messages):
            self._add_message(out, index, message)
        if add_generation_prompt:
            self._add(out, [self._start, *self._encode("assistant\n")], -1)
        return out

    def render_ids(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """`render(...).token_ids`."""
        return self.render(messages, **options).token_ids

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
    ) -> RenderedTokens | None:
        """The next prompt: prompt + completion exactly as they were, then the new messages.

        A completion cut off before its stop token is closed with one. Indices count in
        `new_messages`; what was there before has index -1. None where there is nothing
        to extend or nothing new, or where a new message is the assistant's.
        """
        if not previous_prompt_ids or not new_messages or any(m["role"] == "assistant" for m in new_messages):
            return None
        out = self._empty(new_messages, tools)
        self._add(out, [*previous_prompt_ids, *previous_completion_ids], -1)
        closed = len(previous_completion_ids) > 0 and previous_completion_ids[-1] == self._end
        self._add(out, [*([] if closed else [self._end]), *self._newline], -1)
        for index, message in enumerate(new_messages):
            self._add_message(out, index, message)
        self._add(out, [self._start, *self._encode("assistant\n")], -1)
        return out

    def parse_response(
        self,
        token_ids: Sequence[int],
        *,
        tools: Sequence[Any] | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> ParsedResponse:
        """The text before the first `<|im_end|>`; bytes that are not UTF-8 decode to U+FFFD."""
        ids = list(token_ids)
        body = ids[: ids.index(self._end)] if self._end in ids else ids
        return ParsedResponse(self.tokenizer.decode(body, clean_up_tokenization_spaces=False))

    def get_stop_token_ids(self) -> list[int]:
        """[the id of `<|im_end|>`]."""
        return [self._end]

    def _tokenize(self, text: str) -> tuple[int, ...]:
        # Without split_special_tokens a body that quotes <|im_end|> would end its own turn.
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def _empty(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> RenderedTokens:
        if tools:
            raise ConfigError(f"ChatML: got {len(tools)} tools; it has no way to show them. Choose another renderer.")
        plain: Any = list(messages)
        names = extract_message_tool_names(plain)
        return RenderedTokens(message_roles=[m["role"] for m in messages], message_tool_names=names)

    def _add_message(self, out: RenderedTokens, index: int, message: Message) -> None:
        _check(message, index)
        by_model = message["role"] == "assistant"
        self._add(out, [self._start, *self._encode(message["role"] + "\n")], index)
        self._add(out, self._encode(message["content"]), index, content=index >= 0, sampled=by_model)
        self._add(out, [self._end], index, content=by_model, sampled=by_model)
        self._add(out, self._newline, index)

    @staticmethod
    def _add(
        out: RenderedTokens, ids: Sequence[int], index: int, *, content: bool = False, sampled: bool = False
    ) -> None:
        out.token_ids += ids
        out.message_indices += [index] * len(ids)
        out.is_content += [content] * len(ids)
        out.sampled_mask += [sampled] * len(ids)


def _check(message: Message, index: int) -> None:
    where = f"ChatML, message {index}"
    if message["role"] not in ROLES[1:]:
        raise DataError(f"{where}: role is {message['role']!r}; one of {', '.join(ROLES[1:])}.")
    if not isinstance(message.get("content"), str):
        kind = type(message.get("content")).__name__
        raise DataError(f"{where}: content is of type {kind}; need a str, the only thing ChatML shows.")
    if lost := [key for key in ("tool_calls", "reasoning", "reasoning_content") if message.get(key)]:
        raise DataError(f"{where}: it has {' and '.join(lost)}, which ChatML would drop. Choose another renderer.")


def create(tokenizer: PreTrainedTokenizerBase, name: str) -> Renderer:
    """A renderer by name.

    "chatml" is `ChatML`. "auto" takes the family that the `renderers` package maps
    `tokenizer.name_or_path` to. "default" applies the tokenizer's chat template: it
    never bridges. Any other name is a family of the package, asked to keep all
    thinking, so that a conversation extends itself at user turns too.

    Raises:
      ConfigError: unknown name, "auto" for a tokenizer that is not mapped, or a family
        whose control tokens the tokenizer lacks.
    """
    families = sorted(set(MODEL_RENDERER_MAP.values()))
    if name == "auto":
        if tokenizer.name_or_path not in MODEL_RENDERER_MAP:
            raise ConfigError(
                f"renderer='auto': no family is known for tokenizer {tokenizer.name_or_path!r}, and a wrong one would "
                f"train on a foreign format. Name it: chatml, default or {', '.join(families)}."
            )
        name = MODEL_RENDERER_MAP[tokenizer.name_or_path]
    if name == "chatml":
        return ChatML(tokenizer)
    names = ["auto", "chatml", "default", *families]
    if name not in names:
        nearest = get_close_matches(name, names, n=1, cutoff=0)[0]
        raise ConfigError(f"renderer={name!r}: unknown; did you mean {nearest!r}? One of {', '.join(names)}.")
    config: Any = config_from_name(name)
    try:
        return create_renderer(tokenizer, config if name == "default" else type(config)(thinking_retention="all"))
    except (AssertionError, ValueError) as error:
        where = f"renderer={name!r} does not fit tokenizer {tokenizer.name_or_path!r}"
        raise ConfigError(f"{where}: {error}. Choose the family that the tokenizer belongs to.") from error
