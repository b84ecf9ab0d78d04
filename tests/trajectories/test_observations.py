"""ECHO's weights: which tokens the environment said, and what they weigh."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.errors import DataError
from prl.losses import combine
from prl.trajectories import interleave, observation_weights
from prl.types import ROLES, Step, TrainingSample

NONE, SYSTEM, USER, ASSISTANT, TOOL = range(5)
ALPHAS = {"tool": 0.1, "user": 0.05}


def sample(roles, mask, content=None, **streams):
    n = len(roles)
    return TrainingSample("s", range(n), np.array(mask, bool), np.zeros(n), roles=roles, content=content, **streams)


def weights(*given, **options):
    got = observation_weights(*given, **options)
    assert got.dtype == np.float32
    return got.tolist()


def f32(values):
    return np.array(values, np.float32).tolist()


# system, user | sampled 2 | tool scaffold, tool body, user body, scaffold | sampled
ROLES_OF_TURNS = [SYSTEM, USER, ASSISTANT, ASSISTANT, TOOL, TOOL, USER, NONE, ASSISTANT]
MASK = [0, 0, 1, 1, 0, 0, 0, 0, 1]
CONTENT = np.array([1, 1, 1, 1, 0, 1, 1, 0, 1], bool)

ROWS = {  # name: (content known, alphas, expected)
    "bodies of two roles": (True, ALPHAS, [0, 0, 0, 0, 0, 0.1, 0.05, 0, 0]),
    "whole messages where bodies are unknown": (False, ALPHAS, [0, 0, 0, 0, 0.1, 0.1, 0.05, 0, 0]),
    "a role that is not in the table": (True, {"tool": 0.25}, [0, 0, 0, 0, 0, 0.25, 0, 0, 0]),
    "the task itself is not an observation": (True, {"system": 1.0, "user": 1}, [0, 0, 0, 0, 0, 0, 1, 0, 0]),
    "an alpha of 0": (True, {"tool": 0.0, "user": 0}, [0] * 9),
    "no roles": (True, {}, [0] * 9),
}


@pytest.mark.parametrize(("known", "alphas", "expected"), ROWS.values(), ids=ROWS)
def test_row(known, alphas, expected):
    given = sample(ROLES_OF_TURNS, MASK, CONTENT if known else None)
    assert weights(given, alphas) == f32(expected)


def test_one_of_the_fourteen_tokens_of_a_tool_turn_is_its_body():
    # After a sampled call: a newline, 5 tokens that open the message, "4", 4 that close it, 3 that ask for a reply.
    roles = [USER, ASSISTANT, NONE, *[TOOL] * 10, NONE, NONE, NONE, ASSISTANT]
    mask = [0, 1, *[0] * 14, 1]
    body = np.arange(17) == 8
    assert np.flatnonzero(weights(sample(roles, mask, body), {"tool": 0.1})).tolist() == [8]
    assert sum(w > 0 for w in weights(sample(roles, mask), {"tool": 0.1})) == 10


def test_after_a_break_the_rewritten_history_has_no_weight():
    # The history of call 3 differs at its third token. Observation 6 stands again in the new sample's prompt, and
    # the user's 21 comes right at the break: neither follows a token that was sampled in that sample.
    first = Step([1, 2], [3, 4], [-1, -1], prompt_roles=[SYSTEM, USER], prompt_content=[False, True])
    second = Step(
        [1, 2, 3, 4, 5, 6, 7, 8], [9], [-1], prompt_roles=[SYSTEM, USER, NONE, NONE, TOOL, TOOL, TOOL, NONE],
        prompt_content=[False, True, False, False, False, True, False, False],
    )  # fmt: skip
    third = Step(
        [1, 2, 44, 5, 6, 7, 9, 20, 21], [22], [-1],
        prompt_roles=[SYSTEM, USER, ASSISTANT, TOOL, TOOL, TOOL, ASSISTANT, USER, USER],
        prompt_content=[False, True, True, False, True, False, True, False, True],
    )  # fmt: skip
    one, two = interleave([first, second, third])
    assert weights(one, ALPHAS) == f32([0, 0, 0, 0, 0, 0.1, 0, 0, 0])
    assert weights(two, ALPHAS) == [0] * 10


def test_a_completion_that_may_not_train_is_no_observation():
    tool = [NONE, USER, NONE, TOOL]
    calls = [
        Step([1, 2], [3], [-1], prompt_roles=[NONE, USER]),
        Step([1, 2, 3, 4], [5], None, prompt_roles=tool, trainable=False),
        Step([1, 2, 3, 4, 5, 6], [7], [-1], prompt_roles=[*tool, NONE, TOOL]),
    ]
    (got,) = interleave(calls)
    assert weights(got, {"tool": 0.5}) == [0, 0, 0, 0.5, 0, 0.5, 0]


def test_a_filter_only_narrows():
    given = sample(ROLES_OF_TURNS, MASK, CONTENT)
    assert weights(given, ALPHAS, keep=[True] * 9) == weights(given, ALPHAS)
    assert weights(given, ALPHAS, keep=np.arange(9) != 5) == f32([0, 0, 0, 0, 0, 0, 0.05, 0, 0])
    assert weights(given, ALPHAS, keep=torch.arange(9) == 4) == [0] * 9


def test_they_are_weights_of_ce_apart_from_rl():
    # 2 sampled tokens of loss 1, then 8 observed ones of loss 2 at alpha .1: 1 + .2, and .2 where the credit is 0.
    roles, mask = [USER, *[ASSISTANT] * 2, *[TOOL] * 8], [0, 1, 1, *[0] * 8]
    given = sample(roles, mask, advantages=np.array(mask, np.float32))
    scored = given.with_streams(ce_weights=observation_weights(given, {"tool": 0.1}))
    streams = {name: torch.from_numpy(np.array(scored.weights(name))) for name in ("rl", "ce")}
    losses = {"rl": torch.ones(11), "ce": torch.full((11,), 2.0)}
    total, terms = combine(losses, streams, {"rl": streams["rl"].sum(), "ce": (streams["ce"] != 0).sum()})
    assert (total.item(), terms["rl"].item()) == (pytest.approx(1.2), 1.0)


@st.composite
def samples(draw):
    n = draw(st.integers(2, 12))
    roles = [USER, *draw(st.lists(st.integers(0, 4), min_size=n - 1, max_size=n - 1))]
    mask = [False, *draw(st.lists(st.booleans(), min_size=n - 1, max_size=n - 1))]
    content = draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n))
    return sample(roles, mask, content)


@settings(deadline=None)
@given(samples(), st.dictionaries(st.sampled_from(["system", "user", "tool"]), st.sampled_from([0.05, 0.5, 2.0])))
def test_every_weight_has_its_reason(given, alphas):
    got, sampled = weights(given, alphas), given.loss_mask
    for t, weight in enumerate(got):
        reasons = sampled[:t].any(), not sampled[t], given.content is None or given.content[t]
        expected = alphas.get(ROLES[given.roles[t]], 0.0) if all(reasons) else 0.0
        assert weight == np.float32(expected)
    given.with_streams(ce_weights=got)  # a sample takes them


GIVEN = sample(ROLES_OF_TURNS, MASK, CONTENT)
BARE = TrainingSample("bare", [1, 2, 3], [False, False, True], [0, 0, -1])
REFUSED = {
    "no roles": ((BARE, ALPHAS), {}, "sample 'bare': no token has the role of .* Roles come from the renderer"),
    "no attribution": ((interleave([Step([1], [2], [-1])])[0], ALPHAS), {}, "sample 'sample#0': no token has the role"),
    "an unknown role": ((GIVEN, {"tools": 0.1}), {}, "names 'tools'; the environment speaks as system, user, tool"),
    "the model's own role": ((GIVEN, {"tool": 0.1, "assistant": 0.1}), {}, "names 'assistant'.* are the model's own"),
    "a negative alpha": ((GIVEN, {"tool": -0.1}), {}, r"sample 's': got alphas {'tool': -0.1}; need numbers >= 0"),
    "an alpha that is no number": ((GIVEN, {"tool": float("nan")}), {}, "got alphas {'tool': nan}"),
    "a filter of another length": ((GIVEN, ALPHAS), {"keep": [True] * 8}, r"bool of shape \[8\]; need 9 booleans"),
    "a filter of indices": ((GIVEN, ALPHAS), {"keep": list(range(9))}, r"int64 of shape \[9\]; need 9 booleans"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "options", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(given, options, text):
    with pytest.raises(DataError, match=text):
        observation_weights(*given, **options)
