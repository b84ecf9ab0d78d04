"""Everything needed to resume exactly, as safetensors and JSON; never pickle."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prl.errors import DataError

FORMAT = "prl checkpoint 1"


def pack_tree(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """A JSON form of dicts, lists, tuples, NamedTuples, strings, numbers and None; tensors go to `tensors` by number.

    Raises:
      DataError: any other type.
    """
    if isinstance(tree, Tensor):
        name = str(len(tensors))
        tensors[name] = tree.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        kind = type(tree)
        return {"type": f"{kind.__module__}:{kind.__qualname__}", "items": [pack_tree(item, tensors) for item in tree]}
    if isinstance(tree, list | tuple):
        return {type(tree).__name__: [pack_tree(item, tensors) for item in tree]}
    if isinstance(tree, Mapping):
        return {"dict": [[pack_tree(k, tensors), pack_tree(v, tensors)] for k, v in tree.items()]}
    raise DataError(
        f"checkpoint: state holds {tree!r} of type {type(tree).__name__}; need dicts, lists, strings, numbers, "
        "tensors and NamedTuples of them."
    )


def unpack_tree(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `pack_tree`. A NamedTuple's module must be imported already; nothing is imported here.

    Raises:
      DataError: a NamedTuple that this program does not know.
    """
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    if "dict" in tree:
        return {unpack_tree(k, tensors): unpack_tree(v, tensors) for k, v in tree["dict"]}
    if "type" in tree:
        return _named_tuple(tree["type"])(*(unpack_tree(item, tensors) for item in tree["items"]))
    kind = list if "list" in tree else tuple
    return kind(unpack_tree(item, tensors) for item in tree[kind.__name__])


def _named_tuple(name: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")):
        raise DataError(f"checkpoint: holds a {qualname} of {module}, which this program has not imported.")
    return found


def write_folder(path: Path, fill: Any) -> None:
    """`fill(folder)` aside, then rename: the old folder stays until the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside, old = path.with_name(f".{path.name}.new{os.getpid()}"), path.with_name(f".{path.name}.old{os.getpid()}")
    for leftover in (aside, old):
        shutil.rmtree(leftover, ignore_errors=True)
    aside.mkdir()
    try:
        fill(aside)
        if path.exists():
            path.rename(old)
        aside.rename(path)
    finally:
        if not path.exists() and old.exists():
            old.rename(path)
        shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def write_state(folder: Path, state: Any, optimizer: torch.optim.Optimizer) -> None:
    """state.json, state.safetensors and optimizer.safetensors."""
    tensors: dict[str, Tensor] = {}
    tree = pack_tree(state, tensors)
    slots = optimizer.state_dict()
    flat = {f"{index}/{key}": value for index, slot in slots["state"].items() for key, value in slot.items()}
    save_file({k: v.contiguous() for k, v in flat.items()}, folder / "optimizer.safetensors")
    save_file(tensors, folder / "state.safetensors")
    text = {"format": FORMAT, "state": tree, "param_groups": slots["param_groups"]}
    (folder / "state.json").write_text(json.dumps(text, allow_nan=True), encoding="utf8")


def read_state(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The state, and the optimiser's state dict, of a checkpoint folder.

    Raises:
      DataError: not a prl checkpoint, or damaged.
    """
    try:
        text = json.loads((folder / "state.json").read_text(encoding="utf8"))
        if text.get("format") != FORMAT:
            raise DataError(f"load: {folder} has format {text.get('format')!r}; need {FORMAT!r}.")
        state = unpack_tree(text["state"], load_file(folder / "state.safetensors"))
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in load_file(folder / "optimizer.safetensors").items():
            index, _, key = name.partition("/")
            slots.setdefault(int(index), {})[key] = value
    except (OSError, KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError, SafetensorError) as error:
        raise DataError(f"load: {folder} is not a whole prl checkpoint: {type(error).__name__}: {error}.") from error
    return state, {"state": slots, "param_groups": text["param_groups"]}


def read_weights(folder: Path, module: torch.nn.Module) -> Callable[[], None]:
    """A function that copies the folder's safetensors into the module; everything is checked before it exists.

    Raises:
      DataError: no or damaged weights, or names and shapes that are not the module's.
    """
    try:
        saved = {k: v for file in sorted(folder.glob("*.safetensors")) for k, v in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise DataError(f"load: the weights in {folder} are damaged: {error}.") from error
    own = module.state_dict()
    filled = {own[name].data_ptr() for name in saved if name in own}  # tied weights are saved once
    missing = [name for name, tensor in own.items() if tensor.data_ptr() not in filled]
    odd = [name for name, tensor in saved.items() if name not in own or own[name].shape != tensor.shape]
    if missing or odd:
        raise DataError(f"load: {folder} holds another model: {len(missing)} weights missing, {len(odd)} that do not fit, first {(odd + missing)[0]!r}.")

    def copy() -> None:
        with torch.no_grad():
            for name, tensor in saved.items():
                own[name].copy_(tensor)

    return copy
