"""Every value prints as one short line, so that a bare name in a cell is readable."""

import numpy as np
import torch

from prl.trajectories import interleave, pack
from prl.types import Episode, Group, Step, Task, Trace


def test_each_value_says_what_it_is():
    step = Step(np.array([1, 2, 3]), np.array([4, 5]), np.array([-1.0, -2.0], np.float32))
    trace = Trace("g/0/agent", "agent", (step,), tuple(interleave([step], id="g/0/agent")), 1.0)
    failed = Episode("g/1", (), "Traceback\n  ...\nValueError: no reply\n")
    group = Group("g", "env", Task("k", "q", info={"long": "entry"}), (Episode("g/0", (trace,)), failed))
    scored = group.assign(advantages=torch.tensor([0.5]))
    assert repr(step) == "Step('agent', 3 + 2 tokens)"
    assert repr(trace) == "Trace('g/0/agent', reward 1, 1 calls, 1 samples)"
    assert repr(failed) == "Episode('g/1', 0 traces, failed: ValueError: no reply)"
    assert repr(group) == "Group('g', 1 of 1 traces, mean reward 1)"
    assert repr(group.task) == "Task(key='k', prompt='q', answer=None)"
    assert repr(group.samples[0]) == "TrainingSample('g/0/agent#0', 5 tokens, 2 sampled, members: none)"
    assert repr(scored.samples[0]) == "TrainingSample('g/0/agent#0', 5 tokens, 2 sampled, members: 2 rl)"
    batch = pack(scored.samples, max_tokens=16)
    assert repr(batch) == "Batch(step None, 1 samples in [Rows(1 x 5 cells, 2 trained)], N: rl 2, ce 0, ref_kl 0)"
