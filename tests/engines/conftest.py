"""The live server and the engine in this process; both start once."""

from pathlib import Path

import pytest

from prl.engines.server import ServerEngine
from tests.engines import live


@pytest.fixture(scope="session")
def server_root(tmp_path_factory):
    """A folder that all test processes of the run share."""
    base = Path(tmp_path_factory.getbasetemp())
    root = (base.parent if base.name.startswith("popen-") else base) / "vllm-server"
    root.mkdir(exist_ok=True)
    yield root
    live.stop_server()


@pytest.fixture
def server(server_root):
    """The address of the live server, which the test has to itself."""
    address = live.shared_server(server_root)
    with live.locked(server_root / "use.lock"):
        yield f"{address}/v1"


@pytest.fixture
def policy_server(server, tmp_path):
    """A client that may change the server's weights. They are as before when the test has ended."""
    engine = ServerEngine(server, live.NAME, policy=True, weights_dir=tmp_path / "weights")
    yield engine
    if engine.version:
        engine.load_weights(live.model().module.named_parameters(), 0)


@pytest.fixture(scope="session")
def engines():
    """The VLLMEngine of this process, the last one."""
    made = []
    yield made
    for engine in made:
        engine.close()


@pytest.fixture
def engine(engines):
    """A VLLMEngine on live.model()."""
    from prl.engines.vllm import VLLMEngine

    if not engines or engines[-1].closed:
        policy = live.model()
        engines.append(VLLMEngine(policy.module, policy.tokenizer, topk_logprobs=32))
    return engines[-1]
