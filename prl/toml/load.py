"""TOML text to a RunConfig, and what is wrong with it in one line."""

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from prl.algorithms import LinearPenalty, LinearSubagentPenalty
from prl.errors import ConfigError
from prl.toml.curricula import DifficultyPoolTable, StandardTable
from prl.toml.inherit import with_inheritance
from prl.toml.schema import IPO, CustomLoss, IcePop, RunConfig
from prl.toml.sources import Named

_FAMILIES = (
    get_args(get_args(Named)[0]), (IPO, IcePop, CustomLoss), (LinearPenalty, LinearSubagentPenalty),
    (StandardTable, DifficultyPoolTable),
)  # fmt: skip
_SOURCE = re.compile(r"^orchestrator\.train\.source\[\d+\]\.")
_UNKNOWN = re.compile(r"(\w+): unknown key '(.*?)'; (.*)", re.DOTALL)


def load_toml(text_or_path: str | Path) -> RunConfig:
    """The run that a TOML text, or a file, describes. Nothing is imported or built yet.

    A str is a path where it has neither a line break nor `=` and does not start with `[`.

    Raises:
      ConfigError: no such file, not TOML, or a key or value that does not fit; the text
        names its dotted path and the nearest valid key.
    """
    text, where = _read(text_or_path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}this is not TOML: {error}.") from None
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(where + explain(error, data)) from None


def _read(source: str | Path) -> tuple[str, str]:
    """The text, and the file's name as a prefix of errors."""
    if isinstance(source, str) and (re.search(r"[\n=]", source) or source.lstrip()[:1] in ("", "[")):
        return source, ""
    path = Path(source)
    try:
        return path.read_text(encoding="utf8"), f"{path}: "
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}.") from error


def explain(error: ValidationError, data: Mapping[str, Any]) -> str:
    """The first problem with its dotted path, and where others are; a group's problem is not repeated for sources."""
    shown = _inherited(data)
    problems: dict[str, str] = {}
    for item in error.errors():
        path, text = _problem(dict(item), shown)
        if problems.get(_SOURCE.sub("orchestrator.train.", path)) != text:
            problems.setdefault(path, text)
    (path, text), *others = problems.items()
    more = f" Also wrong: {', '.join(where for where, _ in others)}." if others else ""
    return f"{path}: {text}{more}"


def _inherited(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The file with its sources complete, as the errors see them."""
    orchestrator = data.get("orchestrator")
    if not isinstance(orchestrator, Mapping) or "train" not in orchestrator:
        return data
    return {**data, "orchestrator": {**orchestrator, "train": with_inheritance(orchestrator["train"])}}


def _problem(item: dict[str, Any], data: Any) -> tuple[str, str]:
    """(dotted path, what is wrong)."""
    path, got, context = _path(item, data), item["input"], item.get("ctx", {})
    text = item["msg"].removeprefix("Value error, ")
    match item["type"]:
        case "missing":
            return path, "is required."
        case "union_tag_not_found":
            return f"{path}.type".lstrip("."), f"is required; one of {_tags(item)}."
        case "union_tag_invalid":
            near = difflib.get_close_matches(str(context["tag"]), context["expected_tags"].split("'"), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            return f"{path}.type", f"got {context['tag']!r}; one of {context['expected_tags']}.{hint}"
        case "value_error" if found := _UNKNOWN.match(text):
            owner, key, rest = found.groups()
            return f"{path}.{key}".lstrip("."), f"unknown key; {rest}{_owners(owner, key)}"
        case "value_error":
            return path or "the file", text
    return path, f"got {got!r}; {text[0].lower()}{text[1:]}."


def _tags(item: dict[str, Any]) -> str:
    """The names of the classes that a table without `type` could be, by the place it stands in."""
    family = _FAMILIES[1] if item["loc"][-1] == "loss" else _FAMILIES[3]
    return ", ".join(repr(cls.model_fields["type"].default) for cls in family)


def _owners(owner: str, key: str) -> str:
    """Which other types have the key that this one lacks."""
    family = next((f for f in _FAMILIES if owner in [cls.__name__ for cls in f]), ())
    types = [cls.model_fields["type"].default for cls in family if key in cls.model_fields]
    return f" {key!r} belongs to type {' and '.join(map(repr, types))}." if types else ""


def _path(item: dict[str, Any], data: Any) -> str:
    """Where it is in the file. pydantic's own steps (the tag of a union, a class) are no keys and are left out."""
    path, node = "", data
    for step in item["loc"]:
        if isinstance(node, Mapping) and step in node:
            path, node = f"{path}.{step}", node[step]
        elif isinstance(node, list | tuple) and isinstance(step, int):
            path, node = f"{path}[{step}]", node[step]
    if item["type"] == "missing":
        path += f".{item['loc'][-1]}"
    return path.lstrip(".")
