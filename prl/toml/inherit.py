"""How a training source inherits from its group, on plain tables."""

from collections.abc import Mapping
from typing import Any

INHERITED = ("algo", "group_size", "curriculum")
"""Keys of [orchestrator.train] that sources inherit."""
_WHOLE = ("roles", "kwargs", "pools", "gates")  # tables of free names: setting one entry replaces the table
_MISSING_TYPE = {"algo": "grpo", "length_penalty": "linear"}


def with_inheritance(data: Any) -> Any:
    """[orchestrator.train] with each source completed from it; a lone `source` table is a list of one.

    Doing it twice equals doing it once. What is no table stays as it is.
    """
    if not isinstance(data, Mapping) or "source" not in data:
        return data
    group = {key: data[key] for key in INHERITED if key in data}
    sources = [data["source"]] if isinstance(data["source"], Mapping) else data["source"]
    if not isinstance(sources, list | tuple):
        return data
    return {**data, "source": [inherit(group, s) if isinstance(s, Mapping) else s for s in sources]}


def inherit(base: Mapping[str, Any], own: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """`own` over `base`, key by key and table by table.

    Where `own` has another `type` or `import_path`, nothing of `base` stays. `name` is the
    key under which both stand.
    """
    missing = {"type": _MISSING_TYPE.get(name), "import_path": None}
    if any(key in own and own[key] != base.get(key, missing[key]) for key in missing):
        return dict(own)
    merged = {**base, **own}
    for key in base.keys() & own.keys() - {*_WHOLE}:
        if isinstance(base[key], Mapping) and isinstance(own[key], Mapping):
            merged[key] = inherit(base[key], own[key], key)
    return merged
