"""The chat client, against a stub for every fault and against a real server for every success."""

import asyncio

import pytest

from prl.config import FrozenModel, Sampling
from prl.engines import http
from prl.engines.chat import ChatEngine, ChatReply
from prl.errors import ConfigError, EngineError
from tests.engines import live
from tests.engines.stub import NAME, in_turn, serving

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(http, "_BACKOFF_S", 0.01)


def said(message, reason="stop"):
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}


def reply(url, *, name=NAME, messages=HELLO, key=("test", 0), tools=None, **sampling):
    engine = ChatEngine(FrozenModel(name=name, base_url=url))
    return asyncio.run(engine.reply(messages, Sampling(**sampling), key, tools=tools))


REPLIES = {
    "text": (said({"content": "hi"}), ("hi", None, "stop")),
    "cut short": (said({"content": "h"}, "length"), ("h", None, "length")),
    "vLLM's reasoning": (said({"content": "hi", "reasoning": "why"}), ("hi", "why", "stop")),
    "others' reasoning": (said({"content": "hi", "reasoning_content": "why"}), ("hi", "why", "stop")),
    "cut in its reasoning": (said({"content": None, "reasoning": "wh"}, "length"), ("", "wh", "length")),
    "no tools used": (said({"content": "hi", "tool_calls": []}), ("hi", None, "stop")),
}


@pytest.mark.parametrize(("answer", "expected"), REPLIES.values(), ids=REPLIES)
def test_replies(answer, expected):
    with serving(in_turn((500, "once"), answer)) as stub:
        assert reply(stub.url) == ChatReply(*expected)
        assert len(stub.bodies) == 2


def test_what_is_sent():
    with serving(in_turn(said({"content": "hi"}))) as stub:
        reply(stub.url, temperature=0.5, max_tokens=7, top_p=0.9)
        reply(stub.url, key=("test", 1), top_k=3, stop=("END",))
    (path, first), (_, second) = stub.bodies
    seed = first.pop("seed")
    assert path == "/v1/chat/completions" and 0 <= seed < 2**63 and second["seed"] != seed
    assert first == {"model": NAME, "messages": HELLO, "temperature": 0.5, "max_tokens": 7, "top_p": 0.9}
    assert (second["top_k"], second["stop"]) == (3, ["END"])


FAULTS = {
    "400": ((400, "no such field"), "ChatEngine http.*: /chat/completions: status 400: .*no such field"),
    "no JSON": (b"<html>", "answered '<html>'; need JSON"),
    "no choice": ({"choices": []}, "need an object with one choice"),
    "no message": ({"choices": [{"finish_reason": "stop"}]}, "need an object with one choice"),
    "filtered": (said({"content": "hi"}, "content_filter"), "finish_reason is 'content_filter'"),
    "a tool": (
        said({"content": None, "tool_calls": [{"id": "a"}]}, "tool_calls"),
        "tool_calls .*'id': 'a'.*; need text alone",
    ),
    "parts": (said({"content": [{"type": "text"}]}), r"content is .*'type': 'text'"),
}


@pytest.mark.parametrize(("answer", "text"), FAULTS.values(), ids=FAULTS)
def test_what_is_wrong_is_an_error(answer, text):
    with serving(in_turn(answer)) as stub, pytest.raises(EngineError, match=text):
        reply(stub.url)


CALLS = [{"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}]
REFUSED = {
    "tools": (dict(tools=[]), "ChatEngine: got tools; this version talks without them"),
    "tool messages": (dict(messages=CALLS), "ChatEngine: got tools"),
    "candidates": (dict(topk_logprobs=3), "got topk_logprobs=3, .* gives no candidates"),
    "token ids": (dict(stop=(5,)), r"stop=\(5,\); a chat endpoint .* stops at strings only"),
}


@pytest.mark.parametrize(("asked", "text"), REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_do_is_an_error(asked, text):
    with pytest.raises(EngineError, match=text):
        reply("http://localhost:1/v1", **asked)


def test_a_key_that_is_not_set():
    model = FrozenModel(name=NAME, base_url="http://localhost:1/v1", api_key_var="PRL_NO_SUCH_VARIABLE")
    with pytest.raises(ConfigError, match="PRL_NO_SUCH_VARIABLE"):
        ChatEngine(model)


@live.needs_vllm
@live.quiet
def test_a_real_server(server):
    first, again, other = (reply(server, name=live.NAME, key=("test", k), max_tokens=12) for k in (0, 0, 1))
    assert first == again != other and first.text and first.finish_reason == "length"
    with pytest.raises(EngineError, match="status 404: .*does not exist"):
        reply(server, name="another")
    with pytest.raises(EngineError, match="status 400: .*context"):
        reply(server, name=live.NAME, messages=[{"role": "user", "content": "a" * live.CONTEXT}])
