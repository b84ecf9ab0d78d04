"""Everything needed to resume exactly, as safetensors and JSON; never pickle."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prl.errors import DataError
from prl.files import load, save
from prl.policy import Policy


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


def write_checkpoint(path: Path, state: Any, policy: Policy, optimizer: torch.optim.Optimizer) -> Path:
    """A folder with model/ (transformers' format), optimizer.safetensors and state.safetensors."""

    def fill(folder: Path) -> None:
        policy.module.save_pretrained(folder / "model")
        policy.tokenizer.save_pretrained(folder / "model")
        slots = optimizer.state_dict()["state"].items()
        moments = {f"{i}/{key}": value.contiguous() for i, slot in slots for key, value in slot.items()}
        save_file(moments, folder / "optimizer.safetensors")
        save(state, folder / "state.safetensors")

    write_folder(path, fill)
    return path


def read_state(folder: Path, optimizer: torch.optim.Optimizer) -> tuple[Any, dict[str, Any]]:
    """The saved state, and a state dict for the optimiser: its own settings with the saved moments.

    Raises:
      DataError: not a prl checkpoint, damaged, or with moments of other parameters.
    """
    state = load(folder / "state.safetensors")
    moments: dict[int, dict[str, Tensor]] = {}
    shapes = [p.shape for group in optimizer.param_groups for p in group["params"]]
    known = {str(i): shape for i, shape in enumerate(shapes)}
    odd = False
    for name, value in _tensors(folder / "optimizer.safetensors").items():
        index, _, key = name.partition("/")
        odd |= index not in known or (key != "step" and value.shape != known[index])
        moments.setdefault(int(index) if index in known else -1, {})[key] = value
    if odd:
        raise DataError(f"load: the optimiser state in {folder} belongs to other parameters than this model's.")
    return state, {"state": moments, "param_groups": optimizer.state_dict()["param_groups"]}


def read_weights(folder: Path, module: torch.nn.Module) -> Callable[[], None]:
    """A function that copies the folder's safetensors into the module; everything is checked before it exists.

    Raises:
      DataError: no or damaged weights, or names, shapes or dtypes that are not the module's.
    """
    saved = {k: v for file in sorted(folder.glob("*.safetensors")) for k, v in _tensors(file).items()}
    own = module.state_dict()
    filled = {own[name].data_ptr() for name in saved if name in own}  # tied weights are saved once
    missing = [name for name, tensor in own.items() if tensor.data_ptr() not in filled]
    odd = [name for name, tensor in saved.items() if name not in own or not _alike(own[name], tensor)]
    if missing or odd:
        raise DataError(
            f"load: {folder} holds another model: {len(missing)} weights missing, {len(odd)} that do not fit, "
            f"first {(odd + missing)[0]!r}."
        )

    def copy() -> None:
        with torch.no_grad():
            for name, tensor in saved.items():
                own[name].copy_(tensor)

    return copy


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise DataError(f"load: {file} cannot be read: {type(error).__name__}: {error}.") from error
