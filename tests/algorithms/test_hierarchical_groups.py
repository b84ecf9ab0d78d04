"""Hierarchical GRPO on groups of proposals with their solvers."""

import pytest

from prl.algorithms import HierarchicalGRPO
from prl.errors import DataError
from tests.algorithms.groups import group, streams, trace

PAGE = HierarchicalGRPO(episode_agents=["solver"])


def proposal(name, worth, *solved):
    solvers = [trace(f"{name}{i}", float(r), [6, 7], agent="solver") for i, r in enumerate(solved)]
    return [trace(name, worth, [5], agent="proposer"), *solvers]


def test_solvers_within_a_problem_proposers_across_the_group():
    scored, state = PAGE.score_group(group(episodes=[proposal("A", 0.5, 1, 1, 0), proposal("B", 0.25, 0, 0)]), {})
    third = 1 / 3
    expected = [
        [0, 0, 0.125],  # proposers: mean 0.375
        [0, 0, third, third], [0, 0, third, third], [0, 0, -2 * third, -2 * third],  # mean 2/3
        [0, 0, -0.125],
        [0, 0, 0, 0], [0, 0, 0, 0],  # nobody solved B
    ]  # fmt: skip
    assert [pytest.approx(row, abs=1e-7) for row in expected] == streams(scored)
    assert state == {}


def test_a_trace_compared_with_nobody_gets_zero():
    scored, _ = PAGE.score_group(group(episodes=[proposal("A", 0.7, 1)]), {})
    assert streams(scored) == [[0, 0, 0], [0, 0, 0, 0]]


def test_episode_agents_are_required_and_must_speak():
    with pytest.raises(ValueError, match="episode_agents"):
        HierarchicalGRPO()
    with pytest.raises(ValueError, match="at least 1"):
        HierarchicalGRPO(episode_agents=[])
    with pytest.raises(ValueError, match="tuple"):
        HierarchicalGRPO(episode_agents="solver")
    with pytest.raises(DataError, match="episode_agents names 'solvr'"):
        HierarchicalGRPO(episode_agents=["solvr"]).score_group(group(episodes=[proposal("A", 0.7, 1)]), {})
