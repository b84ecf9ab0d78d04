"""`python -m prl` in a process of its own: a run of two steps, and the errors that a user sees."""

import json
import subprocess
import sys

import pytest

from prl.__main__ import main
from prl.toml import load_toml
from prl.toml.describe import describe, keys

RUN = """
max_steps = 2
output_dir = "out"

[orchestrator]
batch_size = 8
sampling.max_tokens = 4
model.tiny = { hidden = 32, layers = 1, heads = 2, kv_heads = 1, intermediate = 64 }

[orchestrator.train]
group_size = 4
algo.length_penalty.type = "linear"

[[orchestrator.train.source]]
name = "words"
env.taskset = { id = "spell_backward", size = 50, config = { max_word_len = 3 } }
"""


def prl(*arguments, cwd):
    command = [sys.executable, "-m", "prl", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_two_steps(tmp_path, capsys, monkeypatch):
    (tmp_path / "run.toml").write_text(RUN)
    done = prl("run", "run.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 steps; out/ holds history.jsonl, config.toml and the checkpoint.\n"
    assert "2/2" in done.stderr  # the progress bar
    history = [json.loads(line) for line in (tmp_path / "out/history.jsonl").read_text().splitlines()]
    assert [report["step"] for report in history] == [1, 2]
    assert (tmp_path / "out/checkpoint/model/config.json").is_file()
    assert load_toml(tmp_path / "out/config.toml") == load_toml(RUN)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "run.toml"]) == 2
    said = "error: output_dir: 'out' holds a run already (history.jsonl). Name another, or move it.\n"
    assert capsys.readouterr() == ("", said)


def test_a_wrong_file_is_one_line(tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text(RUN.replace("group_size", "group_sise"))
    assert main(["run", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {path}: orchestrator.train.group_sise: unknown key; valid keys are algo, group_size")
    assert err.count("\n") == 1 and err.endswith("Did you mean 'group_size'?\n")


def test_what_cannot_be_built_is_one_line_and_leaves_no_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN.replace("spell_backward", "kuhn-poker"))
    assert main(["run", "run.toml"]) == 2
    assert "got 'kuhn-poker'; this version has no such environment yet" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_command(capsys):
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "run" in capsys.readouterr().err


def test_the_page_of_keys(capsys):
    assert main(["schema"]) == 0
    page = capsys.readouterr().out
    assert page == describe()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert rows["max_steps"] == "| `max_steps` | a whole number | `100` | Optimiser steps. |"
    teacher = rows["orchestrator.train.algo(opd).teacher"]
    assert teacher.startswith("| `orchestrator.train.algo(opd).teacher` | as `orchestrator.train.algo(grpo)")
    assert "| required |" in teacher
    assert "trainer.loss(custom).kwargs" in rows
    assert "orchestrator.train.curriculum.sampler(difficulty_pool).pools.<name>.threshold" in rows
    assert '"policy"' in rows["orchestrator.train.algo(grpo).sampling.source"]


def test_every_key_has_a_meaning_and_no_key_stands_twice():
    found = list(keys())
    assert [key.path for key in found if not key.meaning] == []
    assert len({key.path for key in found}) == len(found) > 100
