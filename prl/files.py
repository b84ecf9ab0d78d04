"""Values of prl in one safetensors file each; never pickle."""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prl.errors import DataError

FORMAT = "prl 1"


def save(value: Any, path: str | Path) -> Path:
    """Write groups, batches, or any tree of them and of plain values, to one file.

    The file appears whole or not at all.

    Raises:
      DataError: the tree holds a type that cannot be written.
    """
    path, tensors = Path(path), dict[str, Tensor]()
    tree = _pack(value, tensors)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    # One metadata entry: several would stand in an order that differs from process to process.
    save_file(tensors, aside, metadata={"prl": json.dumps({"format": FORMAT, "tree": tree})})
    aside.replace(path)
    return path


def load(path: str | Path) -> Any:
    """What `save` wrote, bit for bit.

    NamedTuples and dataclasses are looked up in modules that are already imported;
    nothing is imported or executed here.

    Raises:
      DataError: no such file, damaged, not written by `save`, or with a type unknown to this program.
    """
    try:
        with safe_open(Path(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DataError(f"load: {path} cannot be read: {type(error).__name__}: {error}.") from error
    content = json.loads(metadata.get("prl", "{}"))
    if content.get("format") != FORMAT:
        raise DataError(f"load: {path} was not written by prl.save: format {content.get('format')!r}, need {FORMAT!r}.")
    return _unpack(content["tree"], tensors)


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A JSON form; arrays and tensors go to `tensors` by number."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | np.ndarray):
        kind = "tensor" if isinstance(value, Tensor) else "array"
        tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        tensors[str(len(tensors))] = tensor.contiguous().clone()
        return {kind: str(len(tensors) - 1)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields: dict[str, Any] = {f.name: _pack(getattr(value, f.name), tensors) for f in dataclasses.fields(value)}
        return {"dataclass": _name(value), "fields": fields}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"namedtuple": _name(value), "items": [_pack(item, tensors) for item in value]}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [_pack(item, tensors) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_pack(k, tensors), _pack(v, tensors)] for k, v in value.items()]}
    raise DataError(
        f"save: got {value!r} of type {type(value).__name__}; can write dicts, lists, strings, numbers, arrays, "
        "tensors, NamedTuples and dataclasses."
    )


def _unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    if "array" in tree:
        array = tensors[tree["array"]].numpy()
        array.flags.writeable = False
        return array
    if "dict" in tree:
        return {_unpack(k, tensors): _unpack(v, tensors) for k, v in tree["dict"]}
    if "dataclass" in tree:
        kind = _find(tree["dataclass"], dataclasses.is_dataclass)
        return kind(**{name: _unpack(item, tensors) for name, item in tree["fields"].items()})
    if "namedtuple" in tree:
        kind = _find(tree["namedtuple"], lambda k: issubclass(k, tuple) and hasattr(k, "_fields"))
        return kind(*(_unpack(item, tensors) for item in tree["items"]))
    kind = list if "list" in tree else tuple
    return kind(_unpack(item, tensors) for item in tree[kind.__name__])


def _name(value: Any) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _find(name: str, fits: Any) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not fits(found):
        raise DataError(f"load: the file holds a {qualname} of module {module}, which this program has not imported.")
    return found
