"""Wrong files: each error names the dotted path, what came, and what is near or needed."""

import re

import pytest

from prl.errors import ConfigError
from prl.toml import load_toml
from tests.toml.blocks import ECHO_FILTER, PER_ENV

ALGO = "[orchestrator.train.algo]\n"
SOURCE = "[[orchestrator.train.source]]\nname = 'a'\n"
POOL = "{ threshold = 1, weight = 1 }"
FROZEN = "{ name = 'big', base_url = 'http://localhost:8001/v1' }"

# name: (text, beginning of the error, something it holds)
WRONG = {
    "a key at the top": (
        "max_step = 3",
        "max_step: unknown key; valid keys are max_steps,",
        "Did you mean 'max_steps'?",
    ),
    "a table at the top": ("[trainr.loss]\ntype = 'ipo'", "trainr: unknown key;", "Did you mean 'trainer'?"),
    "a key of an algorithm": (
        f"{ALGO}lenght_penalty = {{}}",
        "orchestrator.train.algo.lenght_penalty: unknown key;",
        "Did you mean 'length_penalty'?",
    ),
    "a key of another type": (
        "[orchestrator.train.algo]\ntype = 'max_rl'\nlength_penalty = {}",
        "orchestrator.train.algo.length_penalty: unknown key;",
        "'length_penalty' belongs to type 'grpo' and 'echo'.",
    ),
    "a filter without echo": (
        ECHO_FILTER,
        "orchestrator.train.algo.filter: unknown key;",
        "'filter' belongs to type 'echo'.",
    ),
    "a key deep in a source": (
        f"{SOURCE}algo.length_penalty.num_turn_weight = 0.1",
        "orchestrator.train.source[0].algo.length_penalty.num_turn_weight: unknown key;",
        "Did you mean 'num_turns_weight'?",
    ),
    "a key of a taskset": (
        f"{SOURCE}env.taskset.id = 'math'\nenv.taskset.sise = 3",
        "orchestrator.train.source[0].env.taskset.sise: unknown key;",
        "Did you mean 'size'?",
    ),
    "a role of another environment": (
        f"{SOURCE}env.taskset.id = 'kuhn-poker'\nenv.player2.harness.id = 'null'",
        "orchestrator.train.source[0].env.player2: unknown key;",
        "player0, player1. Did you mean",
    ),
    "no table of an environment": (
        f"{SOURCE}env.tasket.id = 'math'",
        "orchestrator.train.source[0].env.tasket: unknown key;",
        "Did you mean 'taskset'?",
    ),
    "an unknown algorithm": (
        f"{ALGO}type = 'gpro'",
        "orchestrator.train.algo.type: got 'gpro'; one of 'grpo', 'max_rl'",
        "Did you mean 'grpo'?",
    ),
    "an unknown penalty": (
        f"{ALGO}length_penalty.type = 'quadratic'",
        "orchestrator.train.algo.length_penalty.type: got 'quadratic'",
        "'linear', 'linear-subagent'",
    ),
    "a loss without type": (
        "[trainer.loss]\neps = 0.2",
        "trainer.loss.type: is required; one of 'ipo', 'icepop', 'custom'.",
        "",
    ),
    "a key of another loss": (
        "[trainer.loss]\ntype = 'ipo'\nratio_low = 0.5",
        "trainer.loss.ratio_low: unknown key;",
        "'ratio_low' belongs to type 'icepop'.",
    ),
    "a band that drops ratio 1": (
        "[trainer.loss]\ntype = 'icepop'\nratio_low = 2.0",
        "trainer.loss: IcePop: got ratio_low=2.0",
        "default is 0.2",
    ),
    "a custom loss without path": ("[trainer.loss]\ntype = 'custom'", "trainer.loss.import_path: is required.", ""),
    "opd without teacher": (f"{ALGO}type = 'opd'", "orchestrator.train.algo.teacher: is required.", ""),
    "opd against itself": (
        f"{ALGO}type = 'opd'\nteacher = 'policy'",
        "orchestrator.train.algo.teacher: OPD: got teacher='policy'",
        "the KL is zero",
    ),
    "a teacher without address": (
        f"{ALGO}type = 'opd'\nteacher.name = 'big'",
        "orchestrator.train.algo.teacher.base_url: is required.",
        "",
    ),
    "sft without teacher": (
        f"{ALGO}type = 'sft'",
        "orchestrator.train.algo: SFT: got sampling.source='policy'",
        "is not a distillation target",
    ),
    "frozen sampling for rl": (
        f"{ALGO}sampling.source = {FROZEN}",
        "orchestrator.train.algo: GRPO: got the frozen model 'big'",
        "importance ratios",
    ),
    "a source that is neither": (
        f"{ALGO}type = 'sft'\nsampling.source = 'big'",
        "orchestrator.train.algo.sampling.source: got 'big'; input should be 'policy'.",
        "",
    ),
    "hierarchical elsewhere": (
        f"{ALGO}type = 'hierarchical_grpo'\nepisode_agents = ['solver']\n{SOURCE}env.taskset.id = 'math'",
        "orchestrator.train.source[0]: got algo.type='hierarchical_grpo' with taskset.id='math'",
        "only for 'proposer-solver'",
    ),
    "hierarchical without roles": (
        f"{ALGO}type = 'hierarchical_grpo'",
        "orchestrator.train.algo.episode_agents: is required.",
        "",
    ),
    "two aggregations": (
        f"{SOURCE}algo.loss_aggregation = 'prompt'\n[[orchestrator.train.source]]\nname = 'b'\nalgo.type = 'rae'",
        "orchestrator.train: loss_aggregation: 'a' has 'prompt', 'b' has 'token'",
        "",
    ),
    "one name twice": (SOURCE + SOURCE, "orchestrator.train: got 'a' as the name of two sources", "Set name"),
    "a harness that is not there": (
        f"{SOURCE}env.taskset.id = 'x'\nenv.agent.harness.id = 'codex'",
        "orchestrator.train.source[0].env.agent.harness.id: got 'codex'; input should be 'null' or 'bash'.",
        "",
    ),
    "a runtime that is not there": (
        f"{SOURCE}env.taskset.id = 'x'\nenv.agent.runtime.type = 'docker'",
        "orchestrator.train.source[0].env.agent.runtime.type: got 'docker'; input should be 'subprocess'.",
        "",
    ),
    "solvers without proposals": (
        f"{SOURCE}env.taskset.id = 'math'\nenv.n = 4",
        "orchestrator.train.source[0].env: got n with",
        "Leave them out",
    ),
    "a negative group": (
        f"{SOURCE}group_size = 0",
        "orchestrator.train.source[0].group_size: got 0; input should be greater",
        "",
    ),
    "pools of one threshold": (
        f"{SOURCE}curriculum.sampler = {{ type = 'difficulty_pool', pools = {{ a = {POOL}, b = {POOL} }} }}",
        "orchestrator.train.source[0].curriculum.sampler: DifficultyPoolSampler: pools 'a' and 'b' have the same",
        "",
    ),
    "a gate of unknown type": (
        f"{SOURCE}curriculum.gates.g = {{ type = 'advrange', reject_min = 0, reject_max = 0 }}",
        "orchestrator.train.source[0].curriculum.gates.g.type: got 'advrange'; input should be 'advantage_range'.",
        "",
    ),
    "a sampler without type": (
        f"{SOURCE}curriculum.sampler.pools = {{}}",
        "orchestrator.train.source[0].curriculum.sampler.type: is required; one of 'standard'",
        "",
    ),
    "a custom renderer without class": (
        "[orchestrator.renderer]\nname = 'custom'",
        "orchestrator.renderer: got name='custom'",
        "needs both",
    ),
    "a class without custom": (
        "[orchestrator.renderer]\nimport_path = 'a.B'",
        "orchestrator.renderer: got name='auto'",
        "needs both",
    ),
    "a server without address": (
        "[inference]\nengine = 'server'",
        "inference: got engine='server' without base_url",
        "say where",
    ),
    "an address without a server": (
        "[inference]\nbase_url = 'http://localhost:8000/v1'",
        "inference: got base_url with engine='torch'",
        "leave them out",
    ),
    "two models": (
        "[orchestrator.model]\nname = 'a'\n[orchestrator.model.tiny]",
        "orchestrator.model: got both name='a'",
        "",
    ),
    "a word for a number": (
        "[trainer.optim]\nlr = 'fast'",
        "trainer.optim.lr: got 'fast'; input should be a valid number",
        "",
    ),
    "no TOML": ("max_steps = = 3", "this is not TOML: Invalid value (at line 1, column 13).", ""),
}


@pytest.mark.parametrize(("text", "begins", "holds"), WRONG.values(), ids=WRONG)
def test_error(text, begins, holds):
    with pytest.raises(ConfigError, match=f"^{re.escape(begins)}") as raised:
        load_toml(text)
    message = str(raised.value)
    assert holds in message
    assert "\n" not in message


def test_a_problem_of_the_group_is_told_once():
    with pytest.raises(ConfigError) as raised:
        load_toml(PER_ENV.replace('type = "grpo"', 'type = "grpo"\nlenght_penalty = {}', 1))
    assert str(raised.value).startswith("orchestrator.train.algo.lenght_penalty: unknown key;")
    assert "Also wrong" not in str(raised.value)


def test_others_are_named():
    with pytest.raises(ConfigError, match=r"max_steps: got 0; .* Also wrong: trainer.optim.lr, inference.engine\.$"):
        load_toml("max_steps = 0\n[trainer.optim]\nlr = -1\n[inference]\nengine = 'tpu'")


def test_two_of_one_kind_are_both_named():
    text = "[orchestrator.train.algo]\ntype = 'hierarchical_grpo'\n[trainer.loss]\ntype = 'custom'"
    with pytest.raises(ConfigError, match=r"episode_agents: is required\. Also wrong: trainer.loss.import_path\.$"):
        load_toml(text)


def test_files(tmp_path):
    with pytest.raises(ConfigError, match="nowhere.toml: cannot be read: .*No such file"):
        load_toml("nowhere.toml")
    path = tmp_path / "run.toml"
    path.write_text("max_steps = 0")
    with pytest.raises(ConfigError, match=rf"^{path}: max_steps: got 0"):
        load_toml(path)
