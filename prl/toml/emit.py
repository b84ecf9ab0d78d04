"""A RunConfig as TOML text."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from typing import Any

from prl.errors import ConfigError
from prl.toml.load import load_toml
from prl.toml.schema import RunConfig


def to_toml(config: RunConfig) -> str:
    """Every key of the run with its value, defaults and inherited ones too; loads as an equal config.

    Raises:
      ConfigError: TOML cannot say it: a source that lacks what its group sets, or a kwarg of another type.
    """
    text = "\n".join(_table((), config.model_dump(exclude_none=True))).lstrip("\n") + "\n"
    if load_toml(text) != config:
        raise ConfigError(
            "to_toml: the config does not survive TOML: a source leaves out what its group sets, and TOML has no "
            "null to say so. Set it on the sources that need it instead of on the group."
        )
    return text


def _table(path: tuple[str, ...], table: Mapping[str, Any], header: str = "[{}]") -> Iterator[str]:
    """Lines of a table: its own values first, then the tables in it under headers of their own."""
    inner = {k: v for k, v in table.items() if isinstance(v, Mapping) or _is_tables(v)}
    plain = {k: v for k, v in table.items() if k not in inner}
    if path and (plain or not inner or header != "[{}]"):
        yield "\n" + header.format(".".join(map(_key, path)))
    yield from (f"{_key(k)} = {_value(v)}" for k, v in plain.items())
    for key, value in inner.items():
        if isinstance(value, Mapping):
            yield from _table((*path, key), value)
        else:
            for entry in value:
                yield from _table((*path, key), entry, "[[{}]]")


def _is_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return _string(value)
        case int() | float():
            return repr(value)
        case datetime() | date() | time():
            return value.isoformat()
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case Mapping():
            return f"{{{', '.join(f'{_key(k)} = {_value(v)}' for k, v in value.items())}}}"
    raise ConfigError(f"to_toml: got {value!r} of type {type(value).__name__}, which TOML has no word for.")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
