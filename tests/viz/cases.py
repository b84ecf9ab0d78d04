"""Samples and groups that the viz tests share; token id i decodes to WORDS[i]."""

import numpy as np

from prl.types import Episode, Group, Step, Task, Trace, TrainingSample

WORDS = ["What", " is", " 1+1", "?", "\n", " two", " three", "\t", "<|end|>", "\ufffd", ""]


def decode(token_id):
    return WORDS[token_id]


def hand_made(name, ids, mask, **streams):
    """A sample from lists."""
    arrays = {key: np.array(values) for key, values in streams.items() if values is not None}
    return TrainingSample(name, np.array(ids, np.int32), np.array(mask, np.bool_), **arrays)


def sample(name="s", advantages=(0, 0, 0.5, -1.0), **streams):
    """Two prompt tokens, then two of the policy."""
    streams = {"inference_logprobs": [0, 0, -0.25, -2.0], "advantages": advantages} | streams
    return hand_made(name, [0, 1, 5, 8], [False, False, True, True], **streams)


def full_sample(tokens, prompt, seed=0):
    """Every stream set, with random values."""
    rng = np.random.default_rng(seed)
    mask = np.arange(tokens) >= prompt
    numbers = {
        name: np.where(mask, rng.uniform(low, high, tokens), 0)
        for name, low, high in [
            ("advantages", -2, 2), ("inference_logprobs", -9, 0), ("ref_logprobs", -9, 0),
            ("rl_weights", 0, 1), ("ce_weights", 0, 1), ("ref_kl_weights", 0, 1), ("temperatures", 0.5, 1.5),
        ]
    }  # fmt: skip
    places = {"version": 12, "step": 3, "message": 2, "roles": 3}
    whole = {name: np.full(tokens, value) for name, value in places.items()}
    return TrainingSample("full", rng.integers(0, len(WORDS), tokens), mask, **numbers, **whole)


def trace(name, reward, samples, **given):
    step = Step(np.array([0, 1]), np.array([5, 8]), np.array([-0.25, -2.0]))
    return Trace(name, given.pop("agent", "agent"), (step,), samples, reward, **given)


def group(*traces, errors=(), task="1+1"):
    episodes = [Episode(f"e{i}", (t,)) for i, t in enumerate(traces)]
    episodes += [Episode(f"failed{i}", (), error) for i, error in enumerate(errors)]
    return Group("sums/1+1@0", "sums", Task(task, "What is 1+1?"), tuple(episodes))


def scored_group():
    return group(
        trace("t0", 1.0, (sample("t0#0", (0, 0, 0.5, 0.5)),)),
        trace("t1", 0.0, (sample("t1#0", (0, 0, -0.5, -2.0)),)),
        trace("t2", 0.25, (sample("t2#0", (0, 0, 0, 0)),)),
    )
