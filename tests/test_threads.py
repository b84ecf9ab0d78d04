"""Two OpenMP threads give the same bits every time: gradients of shared sources, and whole runs side by side."""

import os
import subprocess
import sys

GRADIENTS = """
import torch
from prl.policy import _at

torch.set_num_threads(2)
generator = torch.Generator().manual_seed(0)
states = torch.randn(2, 16, 128, generator=generator, requires_grad=True)
at = torch.zeros(4000, dtype=torch.long), torch.full((4000,), 3)
upstream = torch.randn(4000, 128, generator=generator)


def differing(pick):
    first = torch.autograd.grad(pick(), states, upstream)[0]
    return sum(not torch.equal(first, torch.autograd.grad(pick(), states, upstream)[0]) for _ in range(30))


assert torch.equal(_at(states, at), states[at])
print(differing(lambda: _at(states, at)))
"""

RUN = """
import hashlib, sys
import torch
from tests.helpers import fingerprint, runner, small, weights
from prl.config import Sampling

assert torch.get_num_threads() == 2
if "mutate" in sys.argv:
    import prl.policy
    prl.policy._at = lambda states, at: states[at]
run = runner(model=small(hidden=128, heads=4, intermediate=256), group_size=16, batch_size=64,
             sampling=Sampling(max_tokens=8))
run.fit(6)
bits = fingerprint(run.history), fingerprint(weights(run))
print(hashlib.sha256(repr(bits).encode()).hexdigest())
"""


def start(script: str, *args: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "OMP_NUM_THREADS": "2"}
    return subprocess.Popen([sys.executable, "-c", script, *args], stdout=-1, stderr=-1, text=True, env=env)


def output(process: "subprocess.Popen[str]") -> str:
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return out.split()[-1]


def test_a_shared_source_adds_its_gradients_in_one_order():
    assert output(start(GRADIENTS)) == "0"  # states[at] instead gives other bits in most of the 30 runs


def test_whole_runs_under_load_have_the_same_bits():
    runs = [start(RUN) for _ in range(3)]  # six threads at once: each run is the others' load
    assert len({output(run) for run in runs}) == 1
