"""GRPO on groups built by hand: which rollouts count, and what each token gets."""

import pytest
import torch

from prl.algorithms import GRPO, as_algorithm
from prl.algorithms.parts import LinearPenalty, LinearSubagentPenalty
from prl.errors import ConfigError
from prl.types import Step
from tests.algorithms.groups import f32, group, of_steps, streams, trace, untouched


def test_reward_minus_mean_on_sampled_tokens():
    scored, state = GRPO().score_group(group(trace("a", 1.0, [5, 6]), trace("b", 0.0, [7])), {})
    assert streams(scored) == [[0, 0, 0.5, 0.5], [0, 0, -0.5]]  # mean 1/2; prompts get 0
    assert state == {}
    assert streams(scored, "rl_weights") == [None, None]  # absent means 1.0 on every trained token


def test_length_weighted_baseline():
    rows = group(trace("a", 1.0, [5, 6, 7]), trace("b", 0.0, [8]))
    scored, _ = GRPO(length_weighted_baseline=True).score_group(rows, {})
    # b = (3*1 + 1*0) / 4 = 3/4
    assert streams(scored) == [[0, 0, 0.25, 0.25, 0.25], [0, 0, -0.75]]


def test_a_prompt_weighs_the_same_whatever_its_lengths():
    rows = group(trace("a", 1.0, [5, 6]), trace("b", 0.0, [7]), trace("c", 9.0, [8], valid=False))
    scored, _ = GRPO(loss_aggregation="prompt").score_group(rows, {})
    # T_q = 2 + 1, the rollout that is not valid left out
    assert streams(scored, "rl_weights") == f32([[0, 0, 1 / 3, 1 / 3], [0, 0, 1 / 3]])
    assert streams(scored) == [[0, 0, 0.5, 0.5], [0, 0, -0.5]]
    assert scored.episodes[2].traces[0].samples[0].rl_weights is None


def test_a_zero_advantage_takes_its_weight_along():
    # PAPERS' drop rule at lengths (2, 6, 4): rewards 1, 0, 1/2, mean 1/2; the third has no credit but counts in T_q.
    rows = group(trace("a", 1.0, [3] * 2), trace("b", 0.0, [3] * 6), trace("c", 0.5, [3] * 4))
    scored, _ = GRPO(loss_aggregation="prompt").score_group(rows, {})
    weights = streams(scored, "rl_weights")
    assert [row[2] for row in weights] == f32([[1 / 12] * 3])[0]
    assert sum(
        sum(w for w, a in zip(*pair, strict=True) if a) for pair in zip(weights, streams(scored), strict=True)
    ) == (pytest.approx(8 / 12))


def test_linear_penalty():
    # Output 4, 2, 2 tokens; new input 2, 4, 2 tokens; turns 1, 2, 1. Rewards 1, 1, 0: pass rate 2/3.
    again = [Step([1, 2], [3], [-1.0]), Step([1, 2, 3, 4, 5], [6], [-1.0])]
    rows = group(trace("a", 1.0, [3] * 4), of_steps("b", 1.0, again), trace("c", 0.0, [3] * 2))
    scored, _ = GRPO(length_penalty={}).score_group(rows, {})
    shares = [0.25 + 0.05 + 0.05, 0.125 + 0.1 + 0.1, 0.125 + 0.05 + 0.05]
    shaped = [r - 2 / 3 * s for r, s in zip([1, 1, 0], shares, strict=True)]
    mean = sum(shaped) / 3
    assert [max(row, key=abs) for row in streams(scored)] == pytest.approx([s - mean for s in shaped], rel=1e-6)


def test_penalty_comes_before_the_length_weighted_baseline():
    rows = group(trace("a", 1.0, [3] * 3), trace("b", 1.0, [3]))
    scored, _ = GRPO(
        length_penalty={"num_output_tokens_weight": 0.3, "num_input_tokens_weight": 0, "num_turns_weight": 0},
        length_weighted_baseline=True,
    ).score_group(rows, {})
    # shaped 1 - 0.3 = 0.7 and 1 - 0.1 = 0.9; b = (3 * 0.7 + 0.9) / 4 = 0.75
    assert [row[2] for row in streams(scored)] == pytest.approx([-0.05, 0.15], rel=1e-5)


def subagent_group():
    """TRAJECTORIES' example: a root of two calls (5 + 6 tokens out, 14 in) and a child of 30 out, 20 in."""
    first = Step(range(10), [90] * 5, [-1.0] * 5)
    child = Step([50] * 20, [91] * 30, [-1.0] * 30)
    last = Step([*range(10), *[90] * 5, 60, 61, 62, 63], [92] * 6, [-1.0] * 6)
    edges = ((0, 1, "subagent_call"), (1, 2, "return"), (0, 2, "continuation"))
    return group(
        of_steps("plain", 1.0, [first, last]),
        of_steps("helped", 1.0, [first, child, last], edges=edges),
        of_steps("undeclared", 0.0, [first, child, last]),
    )


SUBAGENT_ROWS = {  # weight: (output, input) of plain, helped, undeclared
    0.0: [(11, 14), (11, 14), (41, 34)],
    0.5: [(11, 14), (26, 24), (41, 34)],
    1.0: [(11, 14), (41, 34), (41, 34)],
}


@pytest.mark.parametrize(("weight", "counts"), SUBAGENT_ROWS.items())
def test_subagent_penalty(weight, counts):
    penalty = {"type": "linear-subagent", "subagent_token_weight": weight, "num_turns_weight": 0.0}
    scored, _ = GRPO(length_penalty=penalty).score_group(subagent_group(), {})
    shaped = [r - 2 / 3 * (0.25 * o / 41 + 0.1 * i / 34) for r, (o, i) in zip([1, 1, 0], counts, strict=True)]
    credit = [trace.samples[0].advantages.max() + trace.samples[0].advantages.min() for trace in scored.traces]
    assert credit == pytest.approx([s - sum(shaped) / 3 for s in shaped], rel=1e-6)


def test_turns_of_subagents_count():
    penalty = {"type": "linear-subagent", "num_output_tokens_weight": 0, "num_input_tokens_weight": 0}
    scored, _ = GRPO(length_penalty=penalty).score_group(subagent_group(), {})
    # turns 2, 3, 3: shaped 1 - 2/3 * 0.1 * 2/3, 1 - 2/3 * 0.1, -2/3 * 0.1
    shaped = [1 - 2 / 3 * 0.1 * 2 / 3, 1 - 2 / 3 * 0.1, -2 / 3 * 0.1]
    credit = [trace.samples[0].advantages.max() + trace.samples[0].advantages.min() for trace in scored.traces]
    assert credit == pytest.approx([s - sum(shaped) / 3 for s in shaped], rel=1e-6)


def test_penalties_have_the_pages_defaults():
    assert GRPO(length_penalty={}).length_penalty == LinearPenalty()
    assert LinearPenalty().model_dump() == {
        "type": "linear", "num_output_tokens_weight": 0.25, "num_input_tokens_weight": 0.1, "num_turns_weight": 0.1,
    }  # fmt: skip
    assert LinearSubagentPenalty().model_dump() == {
        **LinearPenalty().model_dump(), "type": "linear-subagent", "subagent_token_weight": 0.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match="'linear', 'linear-subagent'"):
        GRPO(length_penalty={"type": "quadratic"})
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        GRPO(length_penalty={"num_turns_weight": -0.1})


@pytest.mark.parametrize("settings", [{"valid": False}, {"trainable": False}])
def test_rollouts_that_do_not_count_leave_the_baseline_alone(settings):
    rows = group(trace("a", 1.0, [5]), trace("b", 0.0, [6]), trace("c", 9.0, [7], **settings))
    scored, _ = GRPO().score_group(rows, {})
    assert streams(scored) == [[0, 0, 0.5], [0, 0, -0.5]]
    assert scored.episodes[2].traces[0].samples[0].advantages is None


def test_the_group_given_is_left_alone():
    rows = group(trace("a", 1.0, [5]), trace("b", 0.0, [6]))
    GRPO(length_penalty={}, loss_aggregation="prompt").score_group(rows, {})
    assert untouched(rows)


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
