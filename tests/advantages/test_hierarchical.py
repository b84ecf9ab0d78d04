"""Hierarchical GRPO: who is compared with whom."""

import json
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantages import group_norm, hierarchical
from prl.errors import DataError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "advantages.json").read_text())
P, S = "proposer", "solver"


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def solver_wise(rewards, agents, episodes):
    return hierarchical(tensor(rewards), agents, episodes, episode_agents=[S])


ROWS = {  # name: (rewards, agents, episodes, expected)
    "two problems of three attempts; pooled it would be +-1/2": (
        [1, 1, 0, 0, 0, 1], [S] * 6, ["A"] * 3 + ["B"] * 3, [1 / 3, 1 / 3, -2 / 3, -1 / 3, -1 / 3, 2 / 3],
    ),
    "proposers across problems, solvers within; nobody solves B": (
        [0.4, 1, 1, 0, 0, 0, 0, 0], [P, S, S, S, P, S, S, S], ["A"] * 4 + ["B"] * 4,
        [0.2, 1 / 3, 1 / 3, -2 / 3, -0.2, 0, 0, 0],
    ),
    "one attempt each": ([1, 0], [S, S], ["A", "B"], [0, 0]),
    "a lone proposer": ([5, 1, 0], [P, S, S], ["A"] * 3, [0, 0.5, -0.5]),
    "the order of traces does not matter": (
        [1, 0.4, 0, 0, 1, 0], [S, P, S, P, S, S], ["A", "A", "B", "B", "B", "A"], [0.5, 0.2, -0.5, -0.2, 0.5, -0.5],
    ),
    "a group whose solvers all failed": ([0.4, 0], [P, P], ["A", "B"], [0.2, -0.2]),
}  # fmt: skip


@pytest.mark.parametrize(("rewards", "agents", "episodes", "expected"), ROWS.values(), ids=ROWS)
def test_row(rewards, agents, episodes, expected):
    torch.testing.assert_close(solver_wise(rewards, agents, episodes), tensor(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_golden(dtype, tolerance):
    for row in GOLDEN:
        got = hierarchical(tensor(row["rewards"], dtype), row["agents"], row["episodes"], episode_agents={"a"})
        torch.testing.assert_close(got, tensor(row["hierarchical_a"], dtype), rtol=tolerance, atol=tolerance)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([P, S]), st.integers(0, 3)), min_size=1))
def test_every_comparison_sums_to_zero(traces):
    rewards, agents, episodes = zip(*traces, strict=True)
    sums = defaultdict(float)
    for agent, episode, advantage in zip(agents, episodes, solver_wise(rewards, agents, episodes), strict=True):
        sums[agent, episode if agent == S else None] += advantage.item()
    assert all(abs(total) < 1e-12 for total in sums.values())


def test_the_variance_within_a_problem():
    # Success rates .9 and .1: variance .09 within each problem, .25 around the pooled mean.
    rewards, problems = tensor(([1.0] * 9 + [0.0]) + ([1.0] + [0.0] * 9)), ["easy"] * 10 + ["hard"] * 10
    within = hierarchical(rewards, [S] * 20, problems, episode_agents=[S])
    assert within.square().mean().item() == pytest.approx(0.09)
    assert group_norm(rewards).square().mean().item() == pytest.approx(0.25)


def test_without_episode_agents_every_role_is_compared_across_the_group():
    got = hierarchical(tensor([1, 0, 5]), [S, S, P], ["A", "B", "B"], episode_agents=[])
    assert got.tolist() == [0.5, -0.5, 0]


def test_two_roles_of_one_episode_are_kept_apart():
    agents, episodes = [S, S, "judge", "judge", P, P], ["A"] * 4 + ["A", "B"]
    got = hierarchical(tensor([1, 0, 9, 5, 3, 4]), agents, episodes, episode_agents=[S, "judge"])
    assert got.tolist() == [0.5, -0.5, 2, -2, -0.5, 0.5]


TWO = ([P, S], ["A", "A"])
REFUSED = {
    "a misspelt role": (
        (*TWO, ["solvr"]), "episode_agents names 'solvr'; the traces are of 'proposer', 'solver'. .*correct the name"
    ),
    "one known, one unknown": ((*TWO, [S, "judge"]), "episode_agents names 'judge'"),
    "a bare string": ((*TWO, "solver"), "episode_agents is the string 'solver'; need a list of role names"),
    "agents": (([P], ["A", "A"], [P]), "2 rewards, 1 agents and 2 episodes; need one of each per trace"),
    "episodes": (([P, S], ["A"], [S]), "2 rewards, 2 agents and 1 episodes"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(given, text):
    agents, episodes, episode_agents = given
    with pytest.raises(DataError, match=text):
        hierarchical(tensor([1, 0]), agents, episodes, episode_agents=episode_agents)


def test_no_traces():
    with pytest.raises(ValueError, match="hierarchical: `rewards` is empty; need at least 1 trace"):
        hierarchical(torch.zeros(0), [], [], episode_agents=[S])
