"""Checkpoints: exact resume in another process, and nothing but whole folders."""

import os
import pickletools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import prl.checkpoint
from prl.config import IPO, AdamW, Sampling
from prl.errors import DataError
from tests.determinism import check_resume
from tests.helpers import Remember, fingerprint, runner, small, weights

ROOT = Path(__file__).parents[1]
CONTINUE = """
import sys
from tests.helpers import *
run = runner(algorithm=Remember())
run.load(sys.argv[1])
run.fit(3)
run.save(sys.argv[2])
"""


@pytest.fixture
def saved(tmp_path):
    run = runner(algorithm=Remember())
    run.fit(2)
    return run, run.save(tmp_path / "saved")


def everything(run):
    return fingerprint([weights(run), run._state, run.history, optimizer_state(run)])


def optimizer_state(run):
    return [slot for _, slot in sorted(run._optimizer.state_dict()["state"].items())]


def test_three_steps_save_another_process_three_steps_equal_six(tmp_path):
    straight, first, second = (runner(algorithm=Remember()) for _ in range(3))
    straight.fit(6)
    first.fit(3)
    first.save(tmp_path / "three")
    command = [sys.executable, "-c", CONTINUE, str(tmp_path / "three"), str(tmp_path / "six")]
    environment = {**os.environ, "PYTHONHASHSEED": "5"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr
    assert second.load(tmp_path / "six") == []
    assert everything(second) == everything(straight)
    assert fingerprint(second.step()) == fingerprint(straight.step())


def test_another_runner_of_this_process_resumes_too(tmp_path):
    check_resume(tmp_path / "saved")


def test_a_checkpoint_before_the_first_step(tmp_path):
    run, other = runner(), runner(model=small(seed=9))
    other.step()
    other.load(run.save(tmp_path / "start"))
    assert fingerprint(other.step()) == fingerprint(run.step()) and torch.equal(weights(other), weights(run))


def test_the_model_opens_with_transformers(saved):
    run, folder = saved
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    ids = torch.tensor([[65, 66, 67]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, run.model.module(ids).logits)
    assert AutoTokenizer.from_pretrained(folder / "model").encode("ab") == [97, 98]


def test_nothing_is_pickled(saved):
    files = [path for path in saved[1].rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".jinja"}
    for path in files:
        with pytest.raises(ValueError):
            list(pickletools.genops(path.read_bytes()))


FILES = ["state.safetensors", "optimizer.safetensors", "model/model.safetensors"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("keep", [0, 5, 0.5, -1])
def test_a_damaged_file_is_an_error_and_the_runner_stays_as_it_was(saved, file, keep):
    path = saved[1] / file
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    refused(saved[1], "load: .* (cannot be read|was not written by|not a whole)")


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_an_error(saved, file):
    (saved[1] / file).unlink()
    refused(saved[1], "load: ")


def refused(folder, text):
    run = runner(algorithm=Remember())
    run.step()
    before = everything(run)
    with pytest.raises(DataError, match=text):
        run.load(folder)
    assert everything(run) == before
    run.step()


def test_foreign_folders_are_errors(tmp_path):
    refused(tmp_path / "nowhere", "load: .*nowhere")
    (tmp_path / "state.safetensors").write_text("hello")
    refused(tmp_path, "load: .*state.safetensors cannot be read")


@pytest.mark.parametrize("other", [dict(hidden=16), dict(layers=2), dict(dtype=torch.bfloat16)], ids=str)
def test_another_model_is_an_error(saved, other):
    run = runner(model=small(**other), algorithm=Remember())
    before = weights(run)
    with pytest.raises(DataError, match="load: "):
        run.load(saved[1])
    assert torch.equal(weights(run), before) and run.history == []


def test_moments_of_another_model_are_an_error_before_anything_changes(saved, tmp_path):
    other = runner(model=small(intermediate=32), algorithm=Remember())
    other.step()
    foreign = other.save(tmp_path / "other") / "optimizer.safetensors"
    (saved[1] / "optimizer.safetensors").write_bytes(foreign.read_bytes())
    refused(saved[1], "optimiser state in .* belongs to other parameters")


def test_a_failing_save_leaves_the_last_checkpoint(saved, monkeypatch):
    run, folder = saved
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    run.step()
    places = [(prl.checkpoint, "save"), (prl.checkpoint, "save_file"), (run.model.tokenizer, "save_pretrained")]
    for owner, name in places:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fails)
            with pytest.raises(OSError, match="disk full"):
                run.save(folder)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        assert [path.name for path in folder.parent.iterdir()] == ["saved"]
    run.save(folder)
    assert len(other_history(folder)) == 3


def fails(*_, **__):
    raise OSError("disk full")


def other_history(folder):
    run = runner(algorithm=Remember())
    run.load(folder)
    return run.history


def test_state_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    def strange(group, state):
        return group.assign(advantages=group.rewards - group.rewards.mean()), {"set": {1, 2}}

    run = runner(algorithm=strange)
    run.step()
    with pytest.raises(DataError, match=r"save: got \{1, 2\} of type set; can write dicts, lists"):
        run.save(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_load_lists_and_warns_of_settings_that_differ(saved):
    run = runner(
        algorithm=Remember(), seed=1, batch_size=4, sampling=Sampling(max_tokens=3), optimizer=AdamW(lr=1e-3),
        loss=IPO(eps=0.1),
    )  # fmt: skip
    with pytest.warns(UserWarning, match="Runner.load: settings differ from the saved run") as caught:
        changed = run.load(saved[1])
    names = {entry.partition(":")[0] for entry in changed}
    assert {"seed", "batch_size", "sampling", "optimizer", "loss"} == names
    assert "seed: 0 -> 1" in changed and "seed: 0 -> 1" in str(caught[0].message)
    assert run._optimizer.param_groups[0]["lr"] == 1e-3
    assert run.step().step == 3


def test_a_batch_from_before_load_is_stale(saved):
    run, folder = saved
    run.step()
    batch = run.pack(run.collect())
    run.load(folder)
    with pytest.raises(RuntimeError, match="collected for step 4, the next step is 3"):
        run.update(batch)
