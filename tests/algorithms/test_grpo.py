"""GRPO on groups built by hand: which rollouts count, and what each token gets."""

import numpy as np
import pytest
import torch

from prl.algorithms import GRPO, as_algorithm
from prl.errors import ConfigError
from prl.trajectories import interleave
from prl.types import Episode, Group, Step, Task, Trace


def trace(name, reward, completion, **settings):
    step = Step(np.array([1, 2]), np.array(completion), np.full(len(completion), -1.0, np.float32))
    return Trace(name, "agent", (step,), tuple(interleave([step], id=name)), reward, **settings)


def group(*traces):
    return Group("g", "env", Task("k", "q"), tuple(Episode(t.id, (t,)) for t in traces))


def streams(scored):
    return [sample.advantages.tolist() for sample in scored.samples]


def test_reward_minus_mean_on_sampled_tokens():
    scored, state = GRPO().score_group(group(trace("a", 1.0, [5, 6]), trace("b", 0.0, [7])), {})
    assert streams(scored) == [[0, 0, 0.5, 0.5], [0, 0, -0.5]]  # mean 1/2; prompts get 0
    assert state == {}


def test_length_weighted_baseline():
    rows = group(trace("a", 1.0, [5, 6, 7]), trace("b", 0.0, [8]))
    scored, _ = GRPO(length_weighted_baseline=True).score_group(rows, {})
    # b = (3*1 + 1*0) / 4 = 3/4
    assert streams(scored) == [[0, 0, 0.25, 0.25, 0.25], [0, 0, -0.75]]


@pytest.mark.parametrize("settings", [{"valid": False}, {"trainable": False}])
def test_rollouts_that_do_not_count_leave_the_baseline_alone(settings):
    rows = group(trace("a", 1.0, [5]), trace("b", 0.0, [6]), trace("c", 9.0, [7], **settings))
    scored, _ = GRPO().score_group(rows, {})
    assert streams(scored) == [[0, 0, 0.5], [0, 0, -0.5]]
    assert scored.episodes[2].traces[0].samples[0].advantages is None


def test_a_group_without_rollouts_stays_as_it_is():
    rows = group(trace("a", float("nan"), [5], valid=False))
    scored, _ = GRPO().score_group(rows, {})
    assert scored is rows


def test_the_group_given_is_left_alone():
    rows = group(trace("a", 1.0, [5]), trace("b", 0.0, [6]))
    GRPO().score_group(rows, {})
    assert all(sample.advantages is None for sample in rows.samples)


def test_what_is_an_algorithm():
    def mine(group, state):
        return group.assign(advantages=torch.zeros(len(group.traces))), state + 1 if state else 1

    assert as_algorithm(mine).score_group(group(trace("a", 1.0, [5])), 4)[1] == 5
    with pytest.raises(ConfigError, match=r"algorithm: got 3; need a config such as GRPO\(\)"):
        as_algorithm(3)
    with pytest.raises(ConfigError, match="algorithm: got <class"):
        as_algorithm(GRPO)


def test_unknown_key_names_the_nearest():
    with pytest.raises(
        ValueError, match=r"unknown key 'length_weighted_base'.*Did you mean 'length_weighted_baseline'"
    ):
        GRPO(length_weighted_base=True)
