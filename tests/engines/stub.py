"""A small HTTP server of the standard library that misbehaves as told. It listens on a real socket."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME, CONTEXT = "stub", 64
Reply = Any
"""What one request gets: an object for JSON, text or bytes as they are, (status, object), seconds to wait before
a good answer, or "close" to hang up in the middle."""


def completion(body: dict, **changes: Any) -> dict:
    """A correct answer to a completion request: token 5 over and over, each of log-probability -1."""
    n, topk = body["max_tokens"], body.get("logprobs") or 0
    row = {"token_id:5": -1.0} | {f"token_id:{100 + i}": -2.0 - i for i in range(topk)}
    choice = {
        "index": 0, "token_ids": [5] * n, "prompt_token_ids": body["prompt"], "finish_reason": "length",
        "logprobs": {"token_logprobs": [-1.0] * n, "top_logprobs": [row] * n},
    }  # fmt: skip
    if "prompt_logprobs" in body:
        choice["prompt_logprobs"] = [None, *({str(token): {"logprob": -3.0}} for token in body["prompt"][1:])]
    return {"choices": [choice | changes]}


class Stub:
    """Counts what comes in: `bodies` with their paths, `headers`, and the `most` requests at the same time.

    `probe` is the log-probability of a token that has no competitor; `info` what /server_info says.
    """

    def __init__(self, answer: Callable[[str, dict], Reply]) -> None:
        self.answer, self.bodies, self.headers, self.probe, self.info = answer, [], [], 0.0, None
        self.most, self._now, self._lock = 0, 0, threading.Lock()
        self.url = ""

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        yield
        with self._lock:
            self._now -= 1


@contextlib.contextmanager
def serving(answer: Callable[[str, dict], Reply]) -> Iterator[Stub]:
    """A running stub. /v1/models and the probe of the log-probabilities' mode are answered well."""
    stub = Stub(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # a client may keep its connection

        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            models = {"data": [{"id": NAME, "max_model_len": CONTEXT}]}
            content = models if self.path == "/v1/models" else stub.info
            self._send(200 if content else 404, content)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "null")
            if isinstance(body, dict) and "allowed_token_ids" in body:
                return self._send(200, completion(body, logprobs={"token_logprobs": [stub.probe]}))
            stub.bodies.append((self.path, body))
            stub.headers.append(dict(self.headers))
            with stub.counted():
                self._reply(stub.answer(self.path, body), body)

        def _reply(self, reply: Reply, body: dict) -> None:
            if isinstance(reply, float):
                time.sleep(reply)
                reply = completion(body)
            if reply == "close":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b'{"choices": [')
                self.close_connection = True
            else:
                self._send(*(reply if isinstance(reply, tuple) else (200, reply)))

        def _send(self, status: int, content: Any) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            with contextlib.suppress(ConnectionError):  # a client that gave up
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def in_turn(*replies: Reply) -> Callable[[str, dict], Reply]:
    """One reply after the other; the last for ever. A callable is given the request."""
    left = list(replies)

    def answer(path: str, body: dict) -> Reply:
        reply = left.pop(0) if len(left) > 1 else left[0]
        return reply(body) if callable(reply) else reply

    return answer
