"""The demo with two steps: every file it promises, and a checkpoint that goes on."""

import json
import warnings

import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM

from prl import models
from recipes import demo


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a model this young may earn nothing in a step
        demo.main(max_steps=2, seed=3, out=str(out))
    return out


def test_summary(folder):
    summary = json.loads((folder / "summary.json").read_text(encoding="utf8"))
    assert {"accuracy_warm_start", "accuracy_final", "wall_s", "seed", "versions"} <= summary.keys()
    held_out = {word.casefold() for word in summary["held_out_words"]}
    assert len(summary["held_out_words"]) >= 512
    assert not held_out & {word.casefold() for word in summary["train_words"]}


def test_history_and_pictures(folder):
    assert pl.read_parquet(folder / "history.parquet")["step"].to_list() == [1, 2]
    for name in ("history.png", "group.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    page = (folder / "group.html").read_text(encoding="utf8")
    assert "http" not in page.replace("http-equiv", "") and "<script" not in page


@pytest.mark.filterwarnings("ignore:step 3:UserWarning")
def test_checkpoint_goes_on(folder):
    policy = models.tiny(layers=2, seed=9)
    trainer = demo.runner(policy, 3, demo.COOL_RATE)
    assert trainer.load(folder / "checkpoint") == []
    opened = AutoModelForCausalLM.from_pretrained(folder / "checkpoint" / "model")
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(opened(ids).logits, policy.module(ids).logits)
    assert trainer.step().step == 3
