"""Randomness is a function of a key: no generator is stored, passed on or shared."""

import hashlib
import json
import random

import numpy as np

Key = tuple[str | int, ...]
"""What a draw is for, e.g. (seed, purpose, env, draw, episode, agent, turn); fixed type per slot."""


def seed_of(key: Key) -> int:
    """128 bits from a key, the same in every process. `hash()` would differ between processes."""
    text = json.dumps(key, ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def uniforms(key: Key, n: int) -> np.ndarray:
    """n float32 uniforms in [0, 1 - 2^-24] that belong to the key."""
    return np.random.Generator(np.random.Philox(key=seed_of(key))).random(n, dtype=np.float32)


def python_random(key: Key) -> random.Random:
    """A `random.Random` that belongs to the key."""
    return random.Random(seed_of(key))
