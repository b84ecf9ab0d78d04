"""Echo on groups of tool users: grpo on actions, weighted cross-entropy on observations."""

import numpy as np
import pytest

from prl.algorithms import GRPO, Echo, EchoRole, EchoRoles
from prl.errors import ConfigError, DataError
from tests.algorithms.groups import f32, group, streams, tool_trace, trace, untouched


def pair():
    return group(tool_trace("a", 1.0), tool_trace("b", 0.0))


def drop_bodies_with(trace, *, token):
    return [sample.token_ids != token for sample in trace.samples]


def one_for_all(trace):
    return [[True] * len(trace.samples[0])] * 2


def one_array(trace):
    return np.ones(len(trace.samples[0]), bool)


def short(trace):
    return [[True]]


NAMES = "tests.algorithms.test_echo."


def test_grpo_on_actions_and_ce_on_tool_bodies():
    scored, state = Echo().score_group(pair(), {})
    # 1 2 3* 4 5 6* 7*: the body of the tool's answer is 5
    assert streams(scored) == [[0, 0, 0.5, 0, 0, 0.5, 0.5], [0, 0, -0.5, 0, 0, -0.5, -0.5]]
    assert streams(scored, "ce_weights") == f32([[0, 0, 0, 0, 0.1, 0, 0]] * 2)
    assert streams(scored, "rl_weights") == [None, None]
    assert state == {}


def test_setting_a_role_replaces_the_table():
    assert Echo().roles.alphas == {"tool": 0.1}
    assert Echo(roles={"user": {"alpha": 0.05}}).roles.alphas == {"user": 0.05}
    both = Echo(roles={"tool": {"alpha": 0.25}, "user": {"alpha": 0.05}})
    assert both.roles == EchoRoles(tool=EchoRole(alpha=0.25), user=EchoRole(alpha=0.05))
    scored, _ = both.score_group(pair(), {})
    assert streams(scored, "ce_weights") == f32(
        [[0, 0, 0, 0, 0.25, 0, 0]] * 2
    )  # the user spoke before the first action
    scored, _ = Echo(roles={"user": {"alpha": 0.05}}).score_group(pair(), {})
    assert streams(scored, "ce_weights") == [[0] * 7] * 2


def test_credit_is_grpos():
    settings = dict(length_penalty={}, length_weighted_baseline=True, loss_aggregation="prompt")
    mine, its = (cls(**settings).score_group(pair(), {})[0] for cls in (Echo, GRPO))
    assert streams(mine) == streams(its)
    assert streams(mine, "rl_weights") == streams(its, "rl_weights") == f32([[0, 0, 1 / 6, 0, 0, 1 / 6, 1 / 6]] * 2)


def test_all_fail_still_reads_the_tool():
    scored, _ = Echo().score_group(group(tool_trace("a", 0.0), tool_trace("b", 0.0)), {})
    assert streams(scored) == [[0] * 7] * 2
    assert [np.count_nonzero(row) for row in streams(scored, "ce_weights")] == [1, 1]


def test_a_filter_narrows():
    filter = {"import_path": NAMES + "drop_bodies_with", "kwargs": {"token": 5}}
    scored, _ = Echo(filter=filter).score_group(pair(), {})
    assert streams(scored, "ce_weights") == [[0] * 7] * 2
    scored, _ = Echo(filter={**filter, "kwargs": {"token": 4}}).score_group(pair(), {})
    assert streams(scored, "ce_weights") == f32([[0, 0, 0, 0, 0.1, 0, 0]] * 2)


BAD_FILTERS = {
    "no module": ("no_such_module.f", ConfigError, "Echo.filter: import_path='no_such_module.f': No module named"),
    "no function": (NAMES + "nothing", ConfigError, "module 'tests.algorithms.test_echo' has no function 'nothing'"),
    "no function but a value": (NAMES + "NAMES", ConfigError, "has no function 'NAMES'"),
    "too many": (NAMES + "one_for_all", DataError, "trace 'a': returned 2 masks; .* its 1 samples"),
    "one array": (NAMES + "one_array", DataError, "trace 'a': returned a ndarray"),
    "too short": (NAMES + "short", DataError, r"keep is bool of shape \[1\]; need 7 booleans"),
}


@pytest.mark.parametrize(("path", "kind", "text"), BAD_FILTERS.values(), ids=BAD_FILTERS)
def test_a_filter_that_does_not_fit(path, kind, text):
    algorithm = Echo(filter={"import_path": path})  # resolved late: the config itself is fine
    with pytest.raises(kind, match=text):
        algorithm.score_group(pair(), {})


def test_needs_roles():
    with pytest.raises(DataError, match="no token has the role of a message of the environment"):
        Echo().score_group(group(trace("a", 1.0, [5])), {})


def test_the_group_given_is_left_alone_and_failed_rollouts_stay():
    failed = group(trace("a", 1.0, [5], valid=False))
    assert Echo().score_group(failed, {})[0] is failed
    rows = pair()
    Echo().score_group(rows, {})
    assert untouched(rows)


REFUSED = {
    "the model's own role": ({"roles": {"assistant": {"alpha": 1}}}, "unknown key 'assistant'.*system, user, tool"),
    "no role": ({"roles": {}}, "roles without any role"),
    "no alpha": ({"roles": {"tool": {}}}, "alpha"),
    "a bare number": ({"roles": {"tool": 0.1}}, "roles.tool"),
    "a negative alpha": ({"roles": {"tool": {"alpha": -0.1}}}, "greater than or equal to 0"),
    "a filter without a module": ({"filter": {"import_path": "f"}}, "need module and function"),
    "a filter from a file": ({"filter": {"import_path": "my/file.py:f"}}, "need module and function"),
}


@pytest.mark.parametrize(("settings", "text"), REFUSED.values(), ids=REFUSED)
def test_refused(settings, text):
    with pytest.raises(ValueError, match=text):
        Echo(**settings)
