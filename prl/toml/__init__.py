"""Runs as TOML files: their keys, how they are read, and how a Runner comes of them."""

from prl.toml.build import build
from prl.toml.describe import describe
from prl.toml.emit import to_toml
from prl.toml.load import load_toml
from prl.toml.schema import RunConfig

__all__ = ["RunConfig", "build", "describe", "load_toml", "to_toml"]
