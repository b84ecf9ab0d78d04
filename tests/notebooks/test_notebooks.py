"""Every notebook executes, its cells before `fit` are repeatable, and its .py and .ipynb are one."""

import os
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


def sources(notebook):
    return [(cell.cell_type, cell.source.rstrip()) for cell in notebook.cells]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_pair_is_in_step(path):
    assert sources(jupytext.read(path)) == sources(nbformat.read(path.with_suffix(".ipynb"), as_version=4))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_executes(path, tmp_path):
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert any("text/html" in output.get("data", {}) for output in shown)


@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if "school" not in p.read_text()], ids=lambda p: p.stem)
def test_cells_before_fit_run_twice_alike(path):
    script = Path(__file__).with_name("twice.py")
    done = subprocess.run(
        [sys.executable, script, path],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "MPLBACKEND": "Agg"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cells ran twice" in done.stdout
