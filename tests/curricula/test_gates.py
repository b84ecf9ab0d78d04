"""The advantage range: which groups it refuses, what it counts, and gates together."""

import copy
import json

import numpy as np
import pytest

from prl.curricula import AdmissionGate, AdvRangeGate, Curriculum, DifficultyPoolSampler
from prl.errors import ConfigError
from prl.types import Episode, Group, Task, Trace, TrainingSample


def sample(id, credit, *, mask=None):
    """Two prompt tokens, then one trained token for each number of credit."""
    credit = [] if credit is None else credit
    mask = np.r_[False, False, np.ones(len(credit), bool)] if mask is None else np.array(mask)
    stream = np.r_[0.0, 0.0, np.array(credit, float)]
    return TrainingSample(id, range(1, len(stream) + 1), mask, -1.0 * mask, advantages=stream * mask)


def group(*credits, key="t0", reward=0.0, **options):
    """One trace per list of credit; None is a trace without an advantage stream."""
    samples = [sample(f"r{i}", credit) for i, credit in enumerate(credits)]
    samples = [
        TrainingSample(s.id, [1, 2], [False, True], [0.0, -1.0]) if credit is None else s
        for s, credit in zip(samples, credits, strict=True)
    ]
    episodes = [Episode(s.id, [Trace(s.id, "agent", (), [s], reward, **options)]) for s in samples]
    return Group("g", "env", Task(key, "q"), episodes)


ROWS = {  # name: (group, admitted) for the range of the algorithms page, -.05 to .05
    "all zero": (group([0.0, 0.0], [0.0]), False),
    "all inside": (group([0.01, -0.04], [0.03]), False),
    "both ends": (group([0.05], [-0.05]), False),  # inclusive, although float32(.05) is above .05
    "one token outside": (group([0.0, 0.0, 0.06], [0.0]), True),
    "one token below": (group([0.0], [-0.06]), True),
    "all outside": (group([0.5], [-0.5]), True),
    "no stream": (group(None, None), True),
    "one stream, inside": (group([0.0], None), False),
    "one stream, outside": (group([0.5], None), True),
    "nobody takes part": (group([0.0], valid=False), True),
    "no trace": (group(), True),
}


@pytest.mark.parametrize(("scored", "admitted"), ROWS.values(), ids=ROWS)
def test_row(scored, admitted):
    assert AdvRangeGate(-0.05, 0.05).admit(scored) is admitted


def test_the_prompt_has_no_say():
    # Its stream holds 0.0, which is outside a range of positive credit only.
    assert not AdvRangeGate(0.2, 0.9).admit(group([0.5, 0.3]))


def test_the_ends_are_compared_in_float32():
    third = np.float32(1 / 3).item()
    assert not AdvRangeGate(1 / 3, 1 / 3).admit(group([third]))
    assert AdvRangeGate(1 / 3, 1 / 3).admit(group([np.nextafter(np.float32(third), np.float32(1)).item()]))


def test_an_open_range_takes_one_side():
    gate = AdvRangeGate(-float("inf"), 0)
    assert not gate.admit(group([-5.0, 0.0])) and gate.admit(group([-5.0, 0.1]))


def test_metrics_and_state_count_what_was_refused():
    gate = AdvRangeGate(-0.05, 0.05)
    assert gate.metrics() == {}
    for scored in (group([0.0]), group([1.0]), group(None), group([0.01])):
        gate.admit(scored)
    assert gate.metrics() == {"rejected": 0.5} and gate.state_dict() == {"asked": 4, "rejected": 2}
    twin = AdvRangeGate(-0.05, 0.05)
    twin.load_state_dict(json.loads(json.dumps(gate.state_dict())))
    other = copy.deepcopy(twin)
    for one in (gate, twin):
        one.admit(group([0.0]))
    assert twin.metrics() == gate.metrics() == {"rejected": 0.6} and other.metrics() == {"rejected": 0.5}


@pytest.mark.parametrize("bounds", [(0.1, -0.1), (float("nan"), 0.0), (0.0, float("nan"))])
def test_a_range_that_holds_nothing_is_refused(bounds):
    low, high = bounds
    with pytest.raises(ConfigError, match=f"AdvRangeGate: got reject_min={low}, reject_max={high}; need reject_min <="):
        AdvRangeGate(*bounds)


def test_it_is_a_gate_and_shows_its_range():
    assert isinstance(AdvRangeGate(0, 1), AdmissionGate) and repr(AdvRangeGate(-0.05, 0)) == "AdvRangeGate(-0.05, 0)"


def test_two_gates_admit_together_and_both_count():
    curriculum = Curriculum(gates={"silent": AdvRangeGate(0, 0), "negative": AdvRangeGate(-9, 0)})
    scored = [group([0.0]), group([-1.0]), group([1.0, -1.0])]
    assert [curriculum.admit(g) for g in scored] == [False, False, True]
    # The first one refuses 1 of 3, the second is asked all the same and refuses 2.
    assert curriculum.metrics() == {"silent/rejected": 1 / 3, "negative/rejected": 2 / 3}
    later = curriculum.at(curriculum.state_dict())
    assert later.metrics() == curriculum.metrics() and later.state_dict() == curriculum.state_dict()


def test_a_curriculum_of_both_joins_states_and_metrics():
    curriculum = Curriculum(
        DifficultyPoolSampler({"hard": (0.25, 0.2), "easy": (1.0, 1.0)}), {"low_signal": AdvRangeGate(-0.05, 0.05)}
    )
    for scored in (group([0.0], key="t0", reward=1.0), group([0.5], key="t1", reward=0.0)):
        curriculum.sampler.observe(scored)
        curriculum.admit(scored)
    want = {"seen": 2.0, "pool/hard": 0.5, "pool/easy": 0.5, "low_signal/rejected": 0.5}
    assert curriculum.metrics() == want
    assert curriculum.at(json.loads(json.dumps(curriculum.state_dict()))).metrics() == want
    assert curriculum.at(None).metrics() == want  # a copy as it stands
