"""Runs as TOML files: their keys, how they are read and written. `prl.toml.build` makes a Runner of one."""

from prl.toml.describe import describe
from prl.toml.emit import to_toml
from prl.toml.load import load_toml
from prl.toml.schema import RunConfig

__all__ = ["RunConfig", "describe", "load_toml", "to_toml"]
