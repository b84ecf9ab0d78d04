"""Loading: what was saved comes back, and each incomplete folder has its own message."""

import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from prl.errors import ConfigError
from prl.models import load, tiny
from prl.renderers import ChatML


@pytest.fixture
def policy():
    return tiny(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=32, vocab_size=260)


@pytest.fixture
def folder(policy, tmp_path):
    policy.module.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_save_and_load(policy, folder):
    again = load(folder, renderer="chatml")
    assert isinstance(again.renderer, ChatML)
    ids = policy.tokenizer.encode("caf\u00e9<|im_end|>")
    assert again.tokenizer.encode("caf\u00e9<|im_end|>") == ids
    tokens = torch.tensor([ids])
    assert torch.equal(again.module(input_ids=tokens).logits, policy.module(input_ids=tokens).logits)


def test_dtype(folder):
    assert load(folder, renderer="chatml", dtype=torch.bfloat16).module.dtype == torch.bfloat16


def test_a_folder_needs_a_named_renderer(folder):
    with pytest.raises(ConfigError, match="renderer='auto': no family is known .* Name it: chatml, default or"):
        load(folder)


def test_folder_without_tokenizer(policy, tmp_path):
    policy.module.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="the folder has no tokenizer .*tokenizer.save_pretrained"):
        load(tmp_path, renderer="chatml")


def test_folder_without_config(folder):
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match="the folder has no config.json"):
        load(folder, renderer="chatml")


def test_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="could not read it: .*model.safetensors"):
        load(folder, renderer="chatml")


def test_a_missing_weight_is_not_made_up(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="1 weights are not in the files, first 'model.layers.1.mlp.up_proj.weight'"):
        load(folder, renderer="chatml")


@pytest.mark.parametrize("name", ["/nowhere/model", "./nowhere", "models/nowhere/deep"])
def test_a_missing_folder_is_told_at_once(name):
    start = time.perf_counter()
    with pytest.raises(ConfigError, match=rf"load\('{name}'\): no such folder"):
        load(name)
    assert time.perf_counter() - start < 2
