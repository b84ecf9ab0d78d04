"""RAE: rows by hand, golden numbers, what the moving average is."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantages import RAEState, rae
from prl.errors import DataError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "advantages.json").read_text())
TRACES = st.lists(st.tuples(st.floats(-4, 4, width=32), st.sampled_from(["x", "o"])), max_size=12)


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def test_row():
    # x: 1, b = 0 -> .5; o: -1, b = 0 -> -.5; x: 0 - .5, b -> .25; x: 2 - .25, b -> 1.125.
    advantages, state = rae(tensor([1, -1, 0, 2]), ["x", "o", "x", "x"], decay=0.5)
    assert advantages.tolist() == [1, -1, -0.5, 1.75]
    assert state == RAEState({"x": 1.125, "o": -0.5})


def test_the_default_decay_is_the_paper_s():
    advantages, state = rae(tensor([1, 1]), ["x", "x"])
    assert advantages.tolist() == pytest.approx([1, 0.95]) and state.baselines["x"] == pytest.approx(0.0975)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_golden(dtype, tolerance):
    for row in GOLDEN:
        advantages, state = rae(tensor(row["rewards"], dtype), row["agents"], decay=0.9)
        torch.testing.assert_close(advantages, tensor(row["rae_decay_0_9"], dtype), rtol=tolerance, atol=tolerance)
        assert state.baselines == pytest.approx(row["rae_baselines"], rel=tolerance, abs=tolerance)


@settings(deadline=None)
@given(TRACES, st.integers(0, 12))
def test_a_batch_in_two_parts_is_the_batch(traces, cut):
    rewards, agents = tensor([r for r, _ in traces]), [a for _, a in traces]
    whole, end = rae(rewards, agents)
    first, state = rae(rewards[:cut], agents[:cut])
    before = dict(state.baselines)
    second, last = rae(rewards[cut:], agents[cut:], state)
    assert torch.equal(torch.cat([first, second]), whole) and last == end
    assert state.baselines == before  # the state given is left as it was


@settings(deadline=None)
@given(TRACES.filter(bool), st.data())
def test_a_baseline_never_sees_the_reward_that_it_is_subtracted_from(traces, data):
    rewards, agents = tensor([r for r, _ in traces]), [a for _, a in traces]
    i = data.draw(st.integers(0, len(traces) - 1))
    changed = rewards.clone()
    changed[i] += 1.0
    moved = rae(changed, agents)[0] - rae(rewards, agents)[0]
    others = [j for j, agent in enumerate(agents) if j < i or agent != agents[i]]
    assert moved[i] == pytest.approx(1.0) and all(moved[j] == 0 for j in others)
    assert all(moved[j] < 0 for j in range(i + 1, len(agents)) if agents[j] == agents[i])


def test_warm_up_and_steady_state():
    # With reward m every time b_t = (1 - decay^t) m, so the advantage of trace t is decay^t m.
    advantages, state = rae(tensor([2.0] * 400), ["x"] * 400)
    torch.testing.assert_close(advantages, 2 * 0.95 ** torch.arange(400, dtype=torch.float64))
    settled = rae(tensor([2.0] * 3), ["x"] * 3, RAEState({"x": 2.0}))
    assert settled[0].tolist() == [0, 0, 0] and settled[1] == RAEState({"x": 2.0})


def test_the_average_has_a_39th_of_the_variance_of_the_rewards():
    # The variance of a sum of independent rewards is that of one times the sum of squared weights: (1 - d) / (1 + d).
    _, state = rae(tensor([1.0] + [0.0] * 999), range(1000))
    impulse = [rae(tensor([1.0] + [0.0] * k), ["x"] * (k + 1))[1].baselines["x"] for k in range(300)]
    assert sum(weight**2 for weight in impulse) == pytest.approx(1 / 39)
    assert len(state.baselines) == 1000  # keys do not share an average


def test_a_pooled_mean_of_a_zero_sum_game_is_no_baseline_but_each_seat_has_one():
    # The first seat always wins 1. The mean over both seats is 0; each seat's own average tends to +-1.
    rewards, seats = tensor([1.0, -1.0] * 300), ["first", "second"] * 300
    advantages, state = rae(rewards, seats)
    assert rewards.mean() == 0 and advantages[-2:].abs().max() < 1e-6
    assert state.baselines == pytest.approx({"first": 1.0, "second": -1.0}, abs=1e-6)


def test_keys_may_be_pairs_and_no_trace_changes_nothing():
    _, state = rae(tensor([1.0]), [("kuhn", "player0")], RAEState({"b": 0.5}), decay=0.5)
    assert state == RAEState({"b": 0.5, ("kuhn", "player0"): 0.5})
    advantages, same = rae(tensor([]), [], state)
    assert advantages.shape == (0,) and same == state and RAEState() == RAEState({})


REFUSED = {
    "lengths": (([1.0, 2.0], ["x"]), {}, "rae: 2 rewards and 1 agents; need one agent per trace"),
    "decay 1": (([1.0], ["x"]), {"decay": 1.0}, "got decay=1.0; need 0 <= decay < 1"),
    "decay below 0": (([1.0], ["x"]), {"decay": -0.1}, "got decay=-0.1; need 0 <= decay < 1"),
    "decay is no number": (([1.0], ["x"]), {"decay": float("nan")}, "got decay=nan"),
    "nan": (([1.0, float("nan")], ["x", "o"]), {}, "reward 1, of agent 'o', is nan; leave out traces that are not"),
    "inf": (([float("inf")], ["x"]), {}, "reward 0, of agent 'x', is inf"),
}


@pytest.mark.parametrize(("given", "options", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(given, options, text):
    rewards, agents = given
    with pytest.raises(DataError, match=text):
        rae(tensor(rewards), agents, **options)
