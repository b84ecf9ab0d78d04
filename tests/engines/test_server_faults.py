"""What the client makes of servers that fail, lie or are slow."""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import traceback

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from prl.config import FrozenModel, Sampling
from prl.engines import http
from prl.engines.base import Engine, Request
from prl.engines.server import ServerEngine
from prl.errors import ConfigError, EngineError
from prl.loop import LoopThread
from tests.engines.stub import CONTEXT, NAME, completion, in_turn, serving

LONG_KEY = "sk-0123456789abcdef"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(http, "_BACKOFF_S", 0.01)


def request(prompt=(1, 2), key=0, **sampling):
    return Request(np.array(prompt, np.int32), Sampling(**{"max_tokens": 3, **sampling}), ("test", key))


def generate(stub, *requests, **settings):
    engine = ServerEngine(stub.url, NAME, **settings)
    return asyncio.run(engine.generate(requests or [request()]))


def test_a_good_answer():
    with serving(lambda path, body: completion(body)) as stub:
        engine = ServerEngine(stub.url + "/", NAME)
        assert isinstance(engine, Engine) and not engine.lockstep
        (done,) = asyncio.run(engine.generate([request(topk_logprobs=2)]))
    assert done.token_ids.tolist() == [5, 5, 5] and done.logprobs.tolist() == [-1.0] * 3
    assert (done.topk.ids.tolist(), done.topk.logprobs.tolist()) == ([[5, 100]] * 3, [[-1.0, -2.0]] * 3)
    assert (done.finish_reason, done.version) == ("length", 0)
    assert done.token_ids.dtype == np.int32 and done.logprobs.dtype == np.float32


def test_a_stop_token_and_a_greedy_answer():
    stopped = in_turn(lambda body: completion({**body, "max_tokens": 2}, finish_reason="stop"))
    with serving(stopped) as stub:
        (done,) = generate(stub, request(stop=(9, 5), temperature=0))
    assert (done.finish_reason, done.logprobs.tolist()) == ("stop", [0.0, 0.0])


def test_every_setting_is_said():
    """A server fills in what is left out from the model's generation_config.json."""
    with serving(lambda path, body: completion(body)) as stub:
        generate(stub, request(temperature=0.5, stop=(7,)), request(top_p=0.5, top_k=9))
        (_, plain), (_, cut) = sorted(stub.bodies, key=lambda item: item[1]["top_p"], reverse=True)
    said = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
    said |= {"frequency_penalty": 0.0, "ignore_eos": True, "temperature": 0.5, "stop_token_ids": [7], "logprobs": 0}
    assert said.items() <= plain.items() and (cut["top_p"], cut["top_k"]) == (0.5, 9)
    assert plain["seed"] == cut["seed"] and 0 <= plain["seed"] < 2**63 and plain["cache_salt"] == cut["cache_salt"]


RETRIED = {
    "status 500 once": in_turn((500, "oops"), completion),
    "status 429 twice": in_turn((429, "busy"), (429, "busy"), completion),
    "hung up in the middle": in_turn("close", completion),
}


@pytest.mark.parametrize("answer", RETRIED.values(), ids=RETRIED)
def test_what_passes_is_tried_again(answer):
    with serving(answer) as stub:
        (done,) = generate(stub)
        assert len(stub.bodies) == (3 if answer is RETRIED["status 429 twice"] else 2)
    assert done.token_ids.tolist() == [5, 5, 5]


def changed(**changes):
    return in_turn(lambda body: completion(body, **changes))


def logprobs(values):
    return changed(logprobs={"token_logprobs": values})


FAULTS = {
    "500 for ever": (in_turn((500, "engine died")), "status 500: .*engine died.*log says why. Tries: 3", 3),
    "429 for ever": (in_turn((429, "busy")), "status 429: .*Lower concurrency. Tries: 3", 3),
    "hung up for ever": (in_turn("close"), "RemoteProtocolError: .*Is the server up, and is this.*Tries: 3", 3),
    "400": (in_turn((400, {"error": "too many logprobs"})), "status 400: .*too many logprobs.*does not take", 1),
    "401": (in_turn((401, "no")), "status 401: .*Is the key right", 1),
    "404": (in_turn((404, "no such model")), "status 404: .*no such model.*does the server serve this model", 1),
    "redirect": (in_turn((307, "elsewhere")), "status 307", 1),
    "long answer": (in_turn((400, "x" * 1000)), r"x{299} \.\.\.'", 1),
    "malformed": (in_turn(b'{"choices": ['), "/completions: answered '{\"choices\": \\['; need JSON", 1),
    "empty": (in_turn(b""), "answered 'None'; need an object with one choice", 1),
    "a list": (in_turn([1]), r"answered '\[1\]'; need an object with one choice", 1),
    "no choice": (in_turn({"choices": []}), "need an object with one choice", 1),
    "two choices": (in_turn({"choices": [{}, {}]}), "need an object with one choice", 1),
    "no token ids": (changed(token_ids=None), "token_ids are 'None'; need a vLLM that knows", 1),
    "ids as text": (changed(token_ids=["5"] * 3), "token_ids are .*; need a vLLM", 1),
    "another prompt": (changed(prompt_token_ids=[1, 3]), r"prompt_token_ids '\[1, 3\]' are not the prompt", 1),
    "too many tokens": (changed(token_ids=[5] * 4), "4 tokens came with finish_reason 'length'; max_tokens was 3", 1),
    "too few tokens": (changed(token_ids=[5]), "1 tokens came with finish_reason 'length'; max_tokens was 3", 1),
    "nothing": (changed(token_ids=[], finish_reason="stop"), "0 tokens came with finish_reason 'stop'", 1),
    "aborted": (changed(finish_reason="abort"), "finish_reason is 'abort'; need 'stop' or 'length'", 1),
    "another stop": (changed(finish_reason="stop"), r"at token 5, which is none of stop=\[\].*--generation", 1),
    "no log-probabilities": (changed(logprobs=None), "log-probabilities are 'None'; need 3, one for each token", 1),
    "two for three": (logprobs([-1.0, -1.0]), "need 3, one for each token", 1),
    "one is missing": (logprobs([-1.0, None, -1.0]), "the log-probability of token 1 of 3 is nan", 1),
    "one is text": (logprobs([-1.0, -1.0, "-1"]), "the log-probability of token 2 of 3 is nan", 1),
    "NaN": (logprobs([float("nan"), -1.0, -1.0]), "the log-probability of token 0 of 3 is nan", 1),
    "the sentinel": (logprobs([-1.0, -9999.0, -1.0]), "the log-probability of token 1 of 3 is -9999.0", 1),
    "minus infinity": (logprobs([-1.0, -1.0, -float("inf")]), "the log-probability of token 2 of 3 is -inf", 1),
    "a logit": (logprobs([-1.0, -1.0, 7.5]), "the log-probability of token 2 of 3 is 7.5", 1),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "text", "tries"), FAULTS.values(), ids=FAULTS)
def test_what_is_wrong_is_an_error(answer, text, tries):
    with serving(answer) as stub:
        with pytest.raises(EngineError, match=f"(?s)ServerEngine {stub.url}.*{text}"):
            generate(stub)
        assert len(stub.bodies) == tries


def candidates(rows):
    return changed(logprobs={"token_logprobs": [-1.0] * 3, "top_logprobs": rows})


GOOD = {"token_id:5": -1.0, "token_id:6": -2.0, "token_id:7": -3.0}
HEADS = {
    "none": (None, "top_logprobs are 'None'; need 3 objects of at least 3 entries. .*--max-logprobs 4"),
    "too few rows": ([GOOD] * 2, "need 3 objects of at least 3 entries"),
    "too few entries": ([GOOD, GOOD, {"token_id:5": -1.0, "token_id:6": -2.0}], "need 3 objects of at least 3"),
    "text": ([GOOD, GOOD, {"a": -1.0, "b": -2.0, "c": -3.0}], "candidates are named .*; need return_tokens_as"),
    "sentinel": ([GOOD, GOOD, GOOD | {"token_id:7": -9999.0}], "log-probability of token 2 of 3 is -9999.0"),
    "logits": ([GOOD, GOOD, {"token_id:5": 0.0, "token_id:6": -0.1, "token_id:7": -3.0}], "probability 1.9048 tog"),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "text"), HEADS.values(), ids=HEADS)
def test_wrong_candidates_are_an_error(rows, text):
    with serving(candidates(rows)) as stub, pytest.raises(EngineError, match=text):
        generate(stub, request(topk_logprobs=2))


SCORES = {
    "none": (None, r"prompt_logprobs 'None' do not fit the 3 prompt tokens"),
    "too few": ([None, {"2": {"logprob": -3.0}}], "do not fit the 3 prompt tokens"),
    "another token": ([None, {"2": {"logprob": -3.0}}, {"9": {"logprob": -3.0}}], "do not fit the 3 prompt tokens"),
    "NaN": ([None, {"2": {"logprob": float("nan")}}, {"3": {"logprob": -3.0}}], "token 1 of 3 is nan"),
    "null": ([None, None, {"3": {"logprob": -3.0}}], "do not fit the 3 prompt tokens"),
}  # fmt: skip


@pytest.mark.parametrize(("entries", "text"), SCORES.values(), ids=SCORES)
def test_a_wrong_score_is_an_error(entries, text):
    with serving(changed(prompt_logprobs=entries)) as stub, pytest.raises(EngineError, match=text):
        asyncio.run(ServerEngine(stub.url, NAME).score([np.array([1, 2, 3], np.int32)]))


def test_scores():
    with serving(lambda path, body: completion(body)) as stub:
        sequences = [np.array(s, np.int32) for s in ([], [4], [1, 2, 3])]
        scores = asyncio.run(ServerEngine(stub.url, NAME).score(sequences))
        assert [s.tolist() for s in scores] == [[], [0.0], [0.0, -3.0, -3.0]] and len(stub.bodies) == 1
        with pytest.raises(EngineError, match="has 64 tokens; the model's context is 64 .* need at most 63"):
            asyncio.run(ServerEngine(stub.url, NAME).score([np.arange(64)]))


def test_raw_log_probabilities_are_refused():
    with serving(lambda path, body: completion(body)) as stub:
        stub.probe = -2.5
        with pytest.raises(EngineError, match="one candidate has log-probability -2.5000, need 0.*processed_logprobs"):
            generate(stub)
        assert stub.bodies == []


PROMPTS = {
    "empty": (request(()), "ServerEngine: the prompt has 0 tokens; the model's context is 64, need 1 to 63"),
    "too long": (request((1,) * 64), "the prompt has 64 tokens; the model's context is 64, need 1 to 63"),
    "hot": (request(temperature=3.0), "got temperature=3.0; vLLM samples at 0, or at 0.01 to 2"),
    "truncated": (request(topk_logprobs=3, top_p=0.5), "top_p=0.5, top_k=None; candidates need untruncated sampling"),
}


@pytest.mark.parametrize(("asked", "text"), PROMPTS.values(), ids=PROMPTS)
def test_what_vllm_cannot_do_is_not_sent(asked, text):
    with serving(lambda path, body: completion(body)) as stub:
        with pytest.raises(EngineError, match=text):
            generate(stub, asked)
        assert stub.bodies == []


def test_the_context_cuts_a_completion():
    with serving(lambda path, body: completion(body)) as stub:
        (done,) = generate(stub, request((1,) * (CONTEXT - 2), max_tokens=50))
    assert (len(done.token_ids), done.finish_reason) == (2, "length")


def test_a_model_that_is_not_served():
    with serving(lambda path, body: completion(body)) as stub:
        with pytest.raises(EngineError, match=r"/models: no max_model_len for 'other'; it serves \['stub'\]"):
            asyncio.run(ServerEngine(stub.url, "other").generate([request()]))


def test_a_slow_server():
    with serving(lambda path, body: 2.0) as stub:
        with pytest.raises(EngineError, match=r"/completions: no answer within 0.2 s. Raise timeout_s"):
            generate(stub, timeout_s=0.2)
        assert len(stub.bodies) == 1


def test_no_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    engine = ServerEngine(url, NAME, policy=True, weights_dir="unused")
    with pytest.raises(EngineError, match=f"ServerEngine {url}: /models: ConnectError: .*Is the server up.*Tries: 3"):
        asyncio.run(engine.generate([request()]))
    with pytest.raises(EngineError, match="ServerEngine .*/server_info.*: ConnectError: .*Is the server up"):
        engine.load_weights([("a", torch.zeros(1))], 1)


SLEEPER = """
import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked", flush=True)
        time.sleep(60)
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_a_server_killed_in_mid_request():
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True) as process:
        engine = ServerEngine(f"http://127.0.0.1:{int(process.stdout.readline())}/v1", NAME)

        async def killed():
            call = asyncio.create_task(engine.generate([request()]))
            await asyncio.to_thread(process.stdout.readline)
            process.send_signal(signal.SIGKILL)
            await call

        with pytest.raises(EngineError, match="ConnectError: .*Is the server up.*Tries: 3"):
            asyncio.run(killed())


def test_concurrency_is_bounded():
    with serving(lambda path, body: 0.05) as stub:
        done = generate(stub, *(request(key=i) for i in range(12)), concurrency=3)
        assert stub.most == 3 and len(done) == 12


def test_it_works_on_one_event_loop_after_another():
    with serving(lambda path, body: 0.01) as stub:
        engine = ServerEngine(stub.url, NAME, concurrency=1)
        for _ in range(2):
            assert len(asyncio.run(engine.generate([request(key=i) for i in range(3)]))) == 3


def test_the_first_failure_ends_the_other_requests():
    failed, waited_out = threading.Event(), []

    def answer(path, body):
        if body["prompt"] == [9]:
            return (400, "no")
        waited_out.extend([] if failed.wait(10) else [body])
        return completion(body)

    async def alone(url):
        with pytest.raises(EngineError, match="status 400"):
            await ServerEngine(url, NAME).generate([request(), request((9,)), request()])
        failed.set()
        return len(asyncio.all_tasks())

    with serving(answer) as stub:
        assert asyncio.run(alone(stub.url)) == 1
    assert waited_out == []


def test_a_loop_without_work_still_looks_idle():
    """prl.loop reports a branch that waits for ever, which an open connection would hide."""
    thread = LoopThread()
    with serving(lambda path, body: completion(body)) as stub:
        engine = ServerEngine(stub.url, NAME)

        async def then_nothing():
            await engine.generate([request()])
            noticed = asyncio.get_running_loop().create_future()
            thread.loop.on_stall = lambda: noticed.done() or noticed.set_result(True) or True
            guard = threading.Timer(5, lambda: thread.loop.call_soon_threadsafe(noticed.set_result, False))
            guard.start()
            result = await noticed
            guard.cancel()
            return result

        try:
            assert thread.run(then_nothing())
        finally:
            thread.close()


def test_the_key_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv("STUB_KEY", LONG_KEY)
    with serving(in_turn((401, "x" * 290 + LONG_KEY))) as stub:
        model = FrozenModel(name=NAME, base_url=stub.url, api_key_var="STUB_KEY")
        with pytest.raises(EngineError, match=r"status 401: .*x\*\*\*") as caught:
            asyncio.run(ServerEngine.from_frozen(model).generate([request()]))
        assert stub.headers[0]["Authorization"] == f"Bearer {LONG_KEY}"
    assert LONG_KEY[:6] not in "".join(traceback.format_exception(caught.value))


def test_a_password_in_the_address_is_never_shown():
    with serving(in_turn((401, "no"))) as stub:
        with pytest.raises(EngineError, match="ServerEngine http://127") as caught:
            asyncio.run(ServerEngine(stub.url.replace("//", "//user:secret@"), NAME).generate([request()]))
        assert stub.headers[0]["Authorization"].startswith("Basic ")
    assert "secret" not in str(caught.value)


SETTINGS = {
    "address": (dict(base_url="localhost:8000"), "got base_url='localhost:8000'; need an address such as"),
    "concurrency": (dict(concurrency=0), "ServerEngine: got concurrency=0; need a whole number of at least 1"),
    "retries": (dict(retries=-1), "got retries=-1; need a whole number of at least 0"),
    "time": (dict(timeout_s=0), "got timeout_s=0; need seconds above 0"),
    "no folder": (dict(policy=True), "got policy=True, weights_dir=None; a policy server needs a folder"),
    "no policy": (dict(weights_dir="w"), "got policy=False, weights_dir='w'; .* a frozen one gets none"),
}


@pytest.mark.parametrize(("settings", "text"), SETTINGS.values(), ids=SETTINGS)
def test_wrong_settings_are_refused(settings, text):
    with pytest.raises(ConfigError, match=text):
        ServerEngine(**{"base_url": "http://localhost:8000/v1", "model": NAME, **settings})


def info(device, extension=""):
    parallel = {"worker_extension_cls": extension}
    return {"vllm_config": {"device_config": {"device": device}, "parallel_config": parallel}}


def reader(read):
    """A server that reads weights, and cannot forget its cache since requests are running."""

    def answer(path, body):
        if path == "/collective_rpc":
            tensors = load_file(f"{body['kwargs']['weights_path']}/model.safetensors")
            read.append((body["method"], {name: tensor.tolist() for name, tensor in tensors.items()}))
        return {"success": False}

    return answer


@pytest.mark.parametrize(
    ("device", "extension", "method"),
    [("cuda", "", "reload_weights"), ("cpu", "prl.engines.vllm.Reload", "prl_reload")],
)
def test_weights_go_through_a_folder(tmp_path, device, extension, method):
    read = []
    with serving(reader(read)) as stub:
        stub.info = info(device, extension)
        engine = ServerEngine(stub.url, NAME, policy=True, weights_dir=tmp_path / "new")
        salts = [engine._salt]
        for version in (1, 2, 2):
            engine.load_weights([("a", torch.full((2,), float(version)))], version)
            salts.append(engine._salt)
            assert engine.version == version and len(list((tmp_path / "new").iterdir())) == 1
        assert [path for path, _ in stub.bodies] == ["/collective_rpc", "/reset_prefix_cache"] * 3
        with pytest.raises(EngineError, match="1 names differ from the module's, first 'b'"):
            engine.load_weights([("a", torch.zeros(2)), ("b", torch.zeros(2))], 3)
    assert read == [(method, {"a": [float(v)] * 2}) for v in (1, 2, 2)] and len(set(salts)) == 4


REFUSED = {
    "no development mode": (None, (200, {}), "/server_info.*: status 404: .*VLLM_SERVER_DEV_MODE=1"),
    "a plain server on a CPU": (
        info("cpu"),
        (200, {}),
        "Start the server with --worker-extension-cls prl",
    ),
    "another server": ({"a": 1}, (200, {}), "need vllm_config, as vLLM 0.32 sends it"),
    "it failed": (info("cuda"), (500, "shape mismatch"), "/collective_rpc: status 500: .*shape mismatch"),
    "no endpoint": (info("cuda"), (404, "Not Found"), "/collective_rpc: status 404: .*VLLM_SERVER_DEV_MODE=1"),
}


@pytest.mark.parametrize(("said", "reply", "text"), REFUSED.values(), ids=REFUSED)
def test_weights_that_the_server_does_not_take(tmp_path, said, reply, text):
    with serving(lambda path, body: reply) as stub:
        stub.info = said
        engine = ServerEngine(stub.url, NAME, policy=True, weights_dir=tmp_path)
        salt = engine._salt
        with pytest.raises(EngineError, match=text):
            engine.load_weights([("a", torch.zeros(2))], 1)
        assert (engine.version, engine._salt) == (0, salt)


def test_a_completion_has_the_version_and_the_salt_at_sending(tmp_path):
    """Two requests, one slot: the weights change while the first is answered and the second waits."""
    loaded = threading.Event()
    with serving(lambda path, body: loaded.wait(10) and completion(body) if "prompt" in body else {}) as stub:
        stub.info = info("cuda")
        engine = ServerEngine(stub.url, NAME, concurrency=1, policy=True, weights_dir=tmp_path)

        async def updated():
            call = asyncio.create_task(engine.generate([request(key=0), request(key=1)]))
            while not any(path == "/v1/completions" for path, _ in stub.bodies):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(engine.load_weights, [("a", torch.zeros(2))], 7)
            loaded.set()
            return await call

        first, second = asyncio.run(updated())
        salts = [body["cache_salt"] for path, body in stub.bodies if path == "/v1/completions"]
    assert (first.version, second.version) == (0, 7) and salts[0] != salts[1]
