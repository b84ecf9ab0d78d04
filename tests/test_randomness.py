"""Randomness is a function of its key: the same in every process, never 1.0."""

import os
import subprocess
import sys

import numpy as np
import pytest

from prl.randomness import python_random, seed_of, uniforms

KEY = (0, "train", "env", 3, 1, "solver@0.1#2", 0)
PINNED_SEED = 77091972507293717365077493918749976014
PINNED_UNIFORMS = [0.9050976037979126, 0.4039774537086487, 0.9413555264472961]
PINNED_RANDOM = 0.2077593749056622
VALUES = "from prl.randomness import *; print(seed_of(KEY), uniforms(KEY, 3).tolist(), python_random(KEY).random())"


def values_in_process(hash_seed: str, before: str = "") -> str:
    """Draws of KEY in a fresh interpreter; `before` runs first."""
    code = f"import prl.randomness\n{before}\nKEY = {KEY!r}\n{VALUES}"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def check_processes_agree(before: str = "") -> None:
    assert values_in_process("1", before) == values_in_process("2", before)


def test_values_are_pinned():
    assert seed_of(KEY) == PINNED_SEED
    np.testing.assert_array_equal(uniforms(KEY, 3), np.array(PINNED_UNIFORMS, np.float32))
    assert python_random(KEY).random() == PINNED_RANDOM


def test_another_process_draws_the_same():
    check_processes_agree()
    assert values_in_process("7") == f"{PINNED_SEED} {PINNED_UNIFORMS} {PINNED_RANDOM}"


def test_a_shorter_draw_is_the_start_of_a_longer_one():
    np.testing.assert_array_equal(uniforms(KEY, 5), uniforms(KEY, 50)[:5])


@pytest.mark.parametrize("other", [(*KEY[:-1], 1), (1, *KEY[1:]), (*KEY, 0), ("0", *KEY[1:])])
def test_every_slot_matters(other):
    assert seed_of(other) != seed_of(KEY)


def test_uniforms_cover_the_interval_and_never_reach_one():
    u = uniforms(("many",), 1_000_000)
    assert u.dtype == np.float32 and u.min() >= 0 and u.max() <= 1 - 2**-24
    np.testing.assert_allclose([u.mean(), u.var()], [1 / 2, 1 / 12], atol=1e-3)
