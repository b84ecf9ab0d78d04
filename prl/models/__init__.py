"""Models: a tiny one from scratch, and any causal LM from a folder or the hub."""

from prl.models.loading import load
from prl.models.tiny import tiny
from prl.models.tokenizer import byte_tokenizer

__all__ = ["byte_tokenizer", "load", "tiny"]
