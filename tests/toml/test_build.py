"""From a config to a Runner: what it is made of, and what this version or the machine lacks."""

import sys
import warnings

import pytest

from prl.algorithms import GRPO, Echo
from prl.config import AdamW, IcePop, Sampling
from prl.curricula import DifficultyPoolSampler
from prl.engines.server import ServerEngine
from prl.errors import ConfigError
from prl.renderers import ChatML
from prl.toml import load_toml
from prl.toml.build import MATH, build
from tests.toml.blocks import CURRICULUM, ECHO_FILTER, ECHO_ROLES
from tests.toml.own import Mine, ppo_clip_loss

TINY = "[orchestrator.model.tiny]\nhidden = 32\nlayers = 1\nheads = 2\nkv_heads = 1\nintermediate = 64\n"
CHAIN = """
[[orchestrator.train.source]]
name = "sums"
env.taskset = { id = "chain_sum", size = 40, config = { max_terms = 3 } }
"""


def built(text):
    run = build(load_toml(text))
    run.close()
    return run


def test_every_setting_arrives(tmp_path):
    run = built(f"""
        seed = 5
        overlap = false
        output_dir = "{tmp_path}"
        [orchestrator]
        batch_size = 12
        constant_trainer_batch_size = false
        sampling = {{ temperature = 0.5, max_tokens = 9 }}
        [trainer]
        max_tokens = 333
        max_grad_norm = 0.25
        optim = {{ lr = 1e-3, betas = [0.9, 0.95], weight_decay = 0.1 }}
        loss = {{ type = "icepop", ratio_low = 0.5 }}
        [orchestrator.train]
        group_size = 3
        algo = {{ length_weighted_baseline = true }}
        {CHAIN}
        [[orchestrator.train.source]]
        group_size = 2
        algo.type = "echo"
        env.taskset = {{ id = "gcd", size = 20, seed = 4, exact = true }}
        {TINY}
    """)
    assert (run.seed, run.overlap, run.batch_size, run.constant_trainer_batch_size) == (5, False, 12, False)
    assert (run.max_tokens, run.max_grad_norm) == (333, 0.25)
    assert run.optimizer_config == AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    assert run.loss == IcePop(ratio_low=0.5)
    assert run.sampling.with_stop(()) == Sampling(temperature=0.5, max_tokens=9)
    sums, gcd = run._streams
    assert (sums.env.name, sums.group_size, sums.algorithm) == ("sums", 3, GRPO(length_weighted_baseline=True))
    assert (gcd.env.name, gcd.group_size, gcd.algorithm) == ("gcd", 2, Echo())
    assert (gcd.env.exact, gcd.env.seed) == (True, 4)
    assert max(task.prompt.count(" + ") + task.prompt.count(" - ") for task in sums.tasks) <= 2
    assert run.model.module.config.hidden_size == 32


def test_curriculum():
    run = built(TINY + CHAIN + CURRICULUM)
    [stream] = run._streams
    assert run.overlap is True  # a file's default, unlike the Runner's
    assert isinstance(stream.curriculum.sampler, DifficultyPoolSampler)
    assert list(stream.curriculum.sampler.pools) == ["hard", "normal", "easy"]
    assert repr(stream.curriculum.gates["low_signal"]) == "AdvRangeGate(-0.05, 0.05)"


def test_math_is_a_mix():
    [stream] = built(f"{TINY}[[orchestrator.train.source]]\nenv.taskset = {{ id = 'math', size = 300 }}")._streams
    assert stream.env.name == "math"
    assert {task.info["metadata"]["source_dataset"] for task in stream.tasks} == set(MATH)
    assert [stream.env.score(task, task.answer) for task in stream.tasks[:20]] == [1.0] * 20


def test_a_function_of_ones_own_is_the_loss():
    loss = "[trainer.loss]\ntype = 'custom'\nimport_path = 'tests.toml.own.ppo_clip_loss'\n"
    assert built(TINY + CHAIN + loss).loss is ppo_clip_loss
    run = built(TINY + CHAIN + loss + "kwargs.clip_eps = 0.1\n")
    assert (run.loss.func, run.loss.keywords) == (ppo_clip_loss, {"clip_eps": 0.1})


def test_an_echo_filter_is_found_early():
    filter = ECHO_FILTER.replace("my_module", "tests.toml.own")
    [stream] = built(TINY + ECHO_ROLES + filter + CHAIN)._streams
    assert stream.algorithm.filter.kwargs == {"patterns": ["WARNING"]}


def test_renderers(tmp_path):
    def renderer(lines):
        return built(f"{TINY}[orchestrator.renderer]\n{lines}\n{CHAIN}").renderer

    assert type(renderer("name = 'auto'")) is ChatML
    assert type(renderer("name = 'default'")).__name__ == "DefaultRenderer"
    assert type(renderer("name = 'custom'\nimport_path = 'tests.toml.own.Mine'")) is Mine
    file = tmp_path / "own.py"
    file.write_text("from prl.renderers import ChatML\nclass Own(ChatML):\n    pass\n")
    assert type(renderer(f"name = 'custom'\nimport_path = '{file}:Own'")).__name__ == "Own"
    with pytest.raises(ConfigError, match="import_path='.*own.py:Other': the file has no class 'Other'"):
        renderer(f"name = 'custom'\nimport_path = '{file}:Other'")
    with pytest.raises(ConfigError, match="there is no file 'nowhere.py' in /"):
        renderer("name = 'custom'\nimport_path = 'nowhere.py:Own'")


def source(taskset, more=""):
    return f"{TINY}[[orchestrator.train.source]]\nenv.taskset.id = '{taskset}'\n{more}\n"


NOT_YET = r"orchestrator.train.source\[0\].env.taskset.id: got '{}'; this version has no such environment yet \({}\)"
REFUSED = {
    "no source": (TINY, "orchestrator.train.source: is missing"),
    "a source without env": (
        f"{TINY}[[orchestrator.train.source]]\nname = 'a'",
        r"source\[0\].env.taskset.id: is missing",
    ),
    "no model": (CHAIN, "orchestrator.model.name: is missing; name a folder"),
    "terminal": (source("terminal"), NOT_YET.format("terminal", "the environment 'terminal'")),
    "kuhn": (source("kuhn-poker"), NOT_YET.format("kuhn-poker", "the environment 'kuhn-poker'")),
    "proposals": (source("proposer-solver"), NOT_YET.format("proposer-solver", "the environment 'proposer-solver'")),
    "textarena": (source("TicTacToe-v0"), NOT_YET.format("TicTacToe-v0", "textarena's 'TicTacToe-v0'")),
    "a module": (source("json.tool"), NOT_YET.format("json.tool", "the verifiers module 'json.tool'")),
    "a misspelling": (source("chain_sums"), "got 'chain_sums'; no task of reasoning-gym .* Did you mean 'chain_sum'"),
    "bash without tools": (
        source("gcd", "env.agent.harness.id = 'bash'"),
        r"env.agent.harness.id: got 'bash'; 'gcd' has no tools",
    ),
    "a foreign role": (
        source("gcd", "env.solver.harness.id = 'null'"),
        "env.solver: unknown role; 'gcd' has the one role 'agent'",
    ),
    "the only role pinned": (
        source("gcd", "env.agent.model = { name = 'big', base_url = 'http://localhost:8001/v1' }"),
        "Source 'gcd': every role is pinned to a frozen model",
    ),
    "settings of a mix": (source("math", "env.taskset.config.min_terms = 2"), "env.taskset.config: 'math' is a mix"),
    "a setting the task lacks": (
        source("gcd", "env.taskset.config.min_terms = 2"),
        r"ReasoningGym\('gcd'\): no setting min_terms",
    ),
    "a setting with its own key": (
        source("gcd", "env.taskset.config.size = 2"),
        "config.size: no setting of a task; size, seed, .* stand in taskset",
    ),
    "a loss that is not there": (
        TINY + CHAIN + "[trainer.loss]\ntype = 'custom'\nimport_path = 'no_such_module.f'",
        "trainer.loss: import_path='no_such_module.f': No module named 'no_such_module'. Put the folder",
    ),
    "a filter that is not there": (
        TINY + ECHO_ROLES + ECHO_FILTER + CHAIN,
        r"source\[0\].algo.filter: import_path='my_module.drop_warnings': No module named 'my_module'",
    ),
    "a model that is not there": (
        f"[orchestrator.model]\nname = './nowhere'\n{CHAIN}",
        r"load\('./nowhere'\): no such folder",
    ),
    "sampling that cannot train": (TINY + CHAIN + "[orchestrator.sampling]\ntop_p = 0.9", "training needs"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        build(load_toml(text))


def test_without_reasoning_gym(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ConfigError, match=r"reasoning-gym is not installed; pip install 'prl\[envs\]'"):
        build(load_toml(source("gcd")))


def test_a_server_for_the_policy(tmp_path):
    server = "[inference]\nengine = 'server'\nbase_url = 'http://localhost:8000/v1'\n"
    out = f"output_dir = '{tmp_path}'\n"
    with pytest.raises(ConfigError, match="inference.model: is missing; the policy is a tiny model"):
        build(load_toml(TINY + CHAIN + server))
    engine = built(out + TINY + CHAIN + server + "model = 'mine'")._collector._serving.engine
    assert isinstance(engine, ServerEngine)
    assert (engine._model, engine._weights_dir) == ("mine", tmp_path / "weights")


def test_a_built_run_steps():
    run = build(load_toml(f"overlap = false\n[orchestrator]\nbatch_size = 4\nsampling.max_tokens = 3\n{TINY}{CHAIN}"))
    with warnings.catch_warnings(action="ignore"):  # a random model earns nothing
        assert run.step().step == 1
    run.close()
