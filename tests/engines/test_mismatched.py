"""A sampler that differs on purpose: by how much, reproducibly, and seen by the ratios."""

import numpy as np
import pytest
import torch

from prl.config import Sampling
from prl.engines.base import Request
from prl.engines.mismatched import MismatchedEngine, fake_quantise
from prl.engines.torch import TorchEngine
from prl.errors import ConfigError
from tests.helpers import END, fingerprint, runner, small

ROUNDED = {  # weight, bits -> weight, by hand: scale = max / (2^(bits-1) - 1)
    "3 bits": ([[3.0, -1.4, 0.6]], 3, [[3.0, -1.0, 1.0]]),
    "a scale per row": ([[7.0, 3.4], [0.7, 0.34]], 4, [[7.0, 3.0], [0.7, 0.3]]),
    "zeros": ([[0.0, 0.0]], 4, [[0.0, 0.0]]),
    "a vector": ([1.3, 0.2], 2, [1.3, 0.2]),
}


@pytest.mark.parametrize(("weight", "bits", "want"), ROUNDED.values(), ids=ROUNDED)
def test_fake_quantise(weight, bits, want):
    torch.testing.assert_close(fake_quantise(torch.tensor(weight), bits), torch.tensor(want))


def mismatch(engine_of, steps=3):
    policy = small(hidden=64, layers=2)
    run = runner(model=policy, engine=engine_of(policy.module))
    run.fit(steps)
    return run, run.history[-1].metrics["rl/mismatch_kl"]


def test_fewer_bits_mismatch_more_and_the_ratios_show_it():
    _, exact = mismatch(TorchEngine)
    kls = [mismatch(lambda m, b=bits: MismatchedEngine(m, bits=b))[1] for bits in (8, 4, 3)]
    assert exact < kls[0] / 10 and kls[0] < kls[1] < kls[2]


def test_lag_samples_from_old_versions_and_says_so():
    run, kl = mismatch(lambda m: MismatchedEngine(m, lag=2), steps=4)
    groups = run.collect()  # for step 5: the trainer is at version 4
    assert {s.version for g in groups for t in g.traces for s in t.steps} == {2}
    assert kl > 1e-6


def test_jitter_is_keyed_and_records_what_it_sampled():
    module = small().module
    requests = [Request(np.array([65, 66], np.int32), Sampling(max_tokens=4, stop=(END,)), ("k", i)) for i in range(3)]
    run = runner()
    one, two = (run._call(MismatchedEngine(module, temperature_jitter=0.3).generate(requests)) for _ in range(2))
    assert fingerprint(one) == fingerprint(two)
    plain = run._call(TorchEngine(module).generate(requests))
    with torch.no_grad():
        logits = module(torch.tensor([[65, 66]])).logits[0, -1]
    own = [logits.log_softmax(-1)[int(c.token_ids[0])].item() for c in one]
    assert all(abs(c.logprobs[0] - lp) > 1e-4 for c, lp in zip(one, own, strict=True))
    assert all(c.logprobs[0] == pytest.approx(logits.log_softmax(-1)[int(c.token_ids[0])].item()) for c in plain)


@pytest.mark.parametrize(
    ("settings", "text"),
    [({}, "need at least one that differs"), ({"bits": 1}, "got bits=1"), ({"lag": -1}, "got lag=-1"),
     ({"temperature_jitter": -0.1}, "no negative one")],
)  # fmt: skip
def test_refusals(settings, text):
    with pytest.raises(ConfigError, match=text):
        MismatchedEngine(small().module, **settings)
