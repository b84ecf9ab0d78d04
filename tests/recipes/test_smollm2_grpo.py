"""The recipe for a real model: its path on a small model in the same format, and its message where none is there."""

import pytest

from prl import models
from prl.errors import ConfigError
from recipes import smollm2_grpo


@pytest.mark.filterwarnings("ignore:step 1:UserWarning")  # random weights may earn nothing in a step
def test_one_step_on_a_folder(tmp_path, capsys):
    policy = models.tiny(hidden=32, layers=1)
    policy.module.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    assert len(smollm2_grpo.main(max_steps=1, folder=tmp_path)) == 1
    assert "step 1: reward" in capsys.readouterr().out


def test_without_the_model_it_says_how_to_get_it(tmp_path):
    with pytest.raises(ConfigError, match="no folder .*missing; `make smollm2` fetches and converts the model"):
        smollm2_grpo.main(folder=tmp_path / "missing")
