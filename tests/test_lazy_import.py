"""Importing prl is cheap, and what it promises lazily is there."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module

import pytest

import prl

HEAVY = ("pydantic", "polars", "transformers", "matplotlib", "vllm", "ray", "torch._dynamo")


def run(code: str) -> subprocess.CompletedProcess[str]:
    """The code in a fresh interpreter: what this process has loaded must not count."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def loaded_after(imports: str, names: tuple[str, ...] = HEAVY) -> list[str]:
    done = run(f"import sys\n{imports}\nprint(*[name for name in {names!r} if name in sys.modules])")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_losses_load_nothing_heavy():
    assert loaded_after("import prl, prl.losses") == []


def test_a_heavy_import_would_be_seen():
    assert loaded_after("import prl, prl.losses, polars, matplotlib") == ["polars", "matplotlib"]


def test_prl_alone_does_not_load_torch():
    assert loaded_after("import prl", ("torch", "numpy", "jaxtyping")) == []


@pytest.mark.parametrize("name", sorted(prl._HOME))
def test_name_is_in_its_module(name):
    assert getattr(prl, name) is getattr(import_module(f"prl.{prl._HOME[name]}"), name)
    assert name in dir(prl)


@pytest.mark.parametrize("name", prl._MODULES)
def test_submodule_is_an_attribute(name):
    assert getattr(prl, name) is import_module(f"prl.{name}")
    assert name in dir(prl)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(inspect.getsource(prl))
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = {alias.name: node.module for node in froms for alias in node.names if node.module.startswith("prl.")}
    assert ours == {name: f"prl.{module}" for name, module in prl._HOME.items()}


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'prl' has no attribute 'Runer'"):
        prl.Runer  # noqa: B018
