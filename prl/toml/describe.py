"""The page of all keys."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from prl.config.base import Frozen
from prl.toml.schema import RunConfig
from prl.toml.sources import AgentTable, EnvTable


class Key(NamedTuple):
    """One key: its dotted path, what it takes, its default (None: required) and what it means."""

    path: str
    takes: str
    default: str | None
    meaning: str


def describe() -> str:
    """A markdown page of every key of a run's TOML file."""
    lines = ["# Keys of a run", "", "| key | takes | default | meaning |", "|---|---|---|---|"]
    for key in keys():
        default = "required" if key.default is None else f"`{key.default}`" if key.default else ""
        lines.append(
            f"| `{key.path}` | {key.takes} | {default} | {key.meaning.replace('|', '&#124;')} |".replace("\n", " ")
        )
    return "\n".join(lines) + "\n"


def keys(cls: type[Frozen] = RunConfig, path: str = "", seen: dict[type, str] | None = None) -> Iterator[Key]:
    """Every key below a table, depth first; a table that stands in two places is spelled out once."""
    seen = {} if seen is None else seen
    for name, field in cls.model_fields.items():
        at = f"{path}{name}"
        tables = [t for t in _inside(field.annotation) if isinstance(t, type) and issubclass(t, Frozen)]
        if name == "type":
            yield Key(at, _takes(field.annotation), "" if field.is_required() else str(field.default), _first(cls))
            continue
        default = (
            None if field.is_required() else "" if tables else _shown(field.get_default(call_default_factory=True))
        )
        again = [seen[table] for table in tables if table in seen and len(tables) == 1]
        takes = _table_words(field.annotation, again)
        yield Key(at, takes if tables else _takes(field.annotation), default, field.description or "")
        for table in tables if not again else ():
            yield from _below(table, at, field.annotation, len(tables) > 1, seen)
    if cls is EnvTable:
        yield Key(f"{path}<role>", "a table", "", _first(AgentTable))
        yield from _below(AgentTable, f"{path}<role>", AgentTable, False, seen)


def _below(table: type[Frozen], at: str, annotation: Any, one_of_many: bool, seen: dict[type, str]) -> Iterator[Key]:
    named = any(get_origin(part) is dict for part in _parts(annotation))
    kind = f"({table.model_fields['type'].default})" if one_of_many and "type" in table.model_fields else ""
    at = f"{at}{'.<name>' if named else ''}{kind}"
    if table in seen:
        yield Key(at, f"as `{seen[table]}`", "", _first(table))
        return
    seen[table] = at
    yield from keys(table, f"{at}.", seen)


def _parts(annotation: Any) -> Iterator[Any]:
    """The annotation and everything inside it."""
    yield annotation
    for inner in get_args(annotation):
        yield from _parts(inner)


def _table_words(annotation: Any, again: list[str]) -> str:
    """What a key with tables takes; `again` names the place where its table is spelled out."""
    words = ["tables" if get_origin(annotation) is tuple else f"as `{again[0]}`" if again else "a table"]
    words += [_takes(part) for part in get_args(annotation) if get_origin(part) is Literal]
    return " or ".join(words)


def _inside(annotation: Any) -> list[Any]:
    return list(dict.fromkeys(part for part in _parts(annotation) if isinstance(part, type) and not get_args(part)))


def _takes(annotation: Any) -> str:
    """The type in TOML's words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(_takes(a) for a in inside if a is not NoneType)
    if origin is Annotated:
        return _takes(inside[0])
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", dict: "a table"}
    if annotation in words or origin in words:
        return words[origin or annotation]
    return "a list" if origin is tuple else " or ".join(f'`"{value}"`' for value in inside)


def _first(cls: type) -> str:
    return (cls.__doc__ or "").split("\n")[0]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(list(value)) if isinstance(value, tuple) else str(value)
