"""Every block of the algorithms page loads as it stands, and survives the way out and back."""

from pathlib import Path

import pytest

import prl.config
from prl.algorithms import GRPO, LinearPenalty
from prl.config import AdamW, FrozenModel, Sampling
from prl.errors import ConfigError
from prl.toml import RunConfig, load_toml, to_toml
from prl.toml.schema import CustomLoss, TinyTable
from tests.toml.blocks import BLOCKS, KUHN

WHOLE = """
max_steps = 30
seed = 7
overlap = false
output_dir = "runs/rev \\"a\\""

[orchestrator]
batch_size = 16
constant_trainer_batch_size = false

[orchestrator.model.tiny]
layers = 2
seed = 3

[orchestrator.sampling]
temperature = 0.7
max_tokens = 12
stop = ["\\n", 7]

[orchestrator.train]
group_size = 4

[orchestrator.train.algo]
[orchestrator.train.algo.length_penalty]

[[orchestrator.train.source]]
[orchestrator.train.source.env.taskset]
id = "spell_backward"
size = 50
config = { min_word_len = 3, max_word_len = 4 }

[trainer]
max_tokens = 4096

[trainer.loss]
type = "custom"
import_path = "m.f"
kwargs = { a = 1e-3, "b c" = [1, { d = "é\\u007f😀" }], e = 1979-05-27, f = [{ g = 1 }], h = {} }

[trainer.optim]
lr = 3e-4
betas = [0.9, 0.95]
"""


def at(config, path):
    """The value at a dotted path; numbers index."""
    value = config
    for step in path.split("."):
        value = value[int(step)] if step.isdigit() else getattr(value, step)
    return value


each = pytest.mark.parametrize(("text", "facts"), BLOCKS.values(), ids=BLOCKS)


@each
def test_block_loads(text, facts):
    config = load_toml(text)
    assert {path: at(config, path) for path in facts} == facts


@each
def test_block_round_trips(text, facts):
    config = load_toml(text)
    assert load_toml(to_toml(config)) == config


def test_a_whole_run():
    config = load_toml(WHOLE)
    assert (config.max_steps, config.seed, config.overlap, config.output_dir) == (30, 7, False, 'runs/rev "a"')
    assert config.orchestrator.model.tiny == TinyTable(layers=2, seed=3)
    assert config.orchestrator.sampling == Sampling(temperature=0.7, max_tokens=12, stop=("\n", 7))
    assert config.trainer.optim == AdamW(lr=3e-4, betas=(0.9, 0.95))
    assert isinstance(config.trainer.loss, CustomLoss)
    [source] = config.orchestrator.train.source
    assert source.algo == GRPO(length_penalty=LinearPenalty())
    assert (source.label, source.group_size) == ("spell_backward", 4)
    assert source.env.taskset.config == {"min_word_len": 3, "max_word_len": 4}
    assert load_toml(to_toml(config)) == config


def test_the_text_is_one_that_a_person_would_write():
    lines = to_toml(load_toml(KUHN)).splitlines()
    start = lines.index("[[orchestrator.train.source]]")
    assert lines[start + 1 : start + 8] == [
        'name = "kuhn-poker"',
        "group_size = 8",
        "",
        "[orchestrator.train.source.env.taskset]",
        'id = "kuhn-poker"',
        "size = 10000",
        "seed = 0",
    ]


def test_nothing_is_the_defaults():
    assert load_toml("") == RunConfig() == load_toml(to_toml(RunConfig()))
    assert load_toml("").overlap is True


def test_a_file_and_the_name_in_prl_config(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(WHOLE, encoding="utf8")
    assert prl.config.load_toml(path) == prl.config.load_toml(str(path)) == load_toml(WHOLE)
    with pytest.raises(AttributeError, match="'prl.config' has no attribute 'load_tml'"):
        prl.config.load_tml  # noqa: B018


def test_a_config_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_toml("").max_steps = 3


def test_a_pinned_agent_round_trips():
    pinned = KUHN + '\nenv.player1.model = { name = "big", base_url = "http://localhost:8001/v1" }\n'
    config = load_toml(pinned)
    agents = config.orchestrator.train.source[0].env.agents
    assert agents["player1"].model == FrozenModel(name="big", base_url="http://localhost:8001/v1")
    assert agents["player0"].model is None
    assert load_toml(to_toml(config)) == config


def test_what_toml_cannot_say():
    train = load_toml(WHOLE).orchestrator.train
    bare = train.model_copy(update={"source": (train.source[0].model_copy(update={"algo": GRPO()}),)})
    config = load_toml(WHOLE)
    config = config.model_copy(update={"orchestrator": config.orchestrator.model_copy(update={"train": bare})})
    with pytest.raises(ConfigError, match="a source leaves out what its group sets"):
        to_toml(config)
    odd = CustomLoss(import_path="m.f", kwargs={"a": Path("x")})
    trainer = config.trainer.model_copy(update={"loss": odd})
    with pytest.raises(ConfigError, match="PosixPath, which TOML has no word for"):
        to_toml(config.model_copy(update={"trainer": trainer}))
