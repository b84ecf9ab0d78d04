"""What holds for all of them: the protocol, frozen configs, empty groups, frozen sampling, one aggregation."""

import pytest

from prl.algorithms import (
    GRPO,
    OPD,
    OPSD,
    RAE,
    SFT,
    Algorithm,
    Echo,
    HierarchicalGRPO,
    MaxRL,
    as_algorithm,
    references_of,
    same_aggregation,
    source_of,
)  # fmt: skip
from prl.config import FrozenModel
from prl.errors import ConfigError
from tests.algorithms.groups import group, trace

FROZEN = FrozenModel(name="big", base_url="http://localhost:8001/v1")
ALL = {
    "grpo": (GRPO, {}, "rl"), "max_rl": (MaxRL, {}, "rl"), "rae": (RAE, {}, "rl"),
    "hierarchical_grpo": (HierarchicalGRPO, {"episode_agents": ["solver"]}, "rl"), "echo": (Echo, {}, "rl"),
    "opd": (OPD, {"teacher": FROZEN}, "ref_kl"), "opsd": (OPSD, {}, "ref_kl"),
    "sft": (SFT, {"sampling": {"source": FROZEN}}, "ce"),
}  # fmt: skip
each = pytest.mark.parametrize(("name", "cls", "settings", "component"), [(k, *v) for k, v in ALL.items()], ids=ALL)


@each
def test_the_protocol_and_the_pages_names(name, cls, settings, component):
    algorithm = cls(**settings)
    assert isinstance(algorithm, Algorithm)
    assert as_algorithm(algorithm) is algorithm
    assert (algorithm.type, algorithm.component) == (name, component)
    assert set(references_of(algorithm)) == ({"ref_logprobs"} if component == "ref_kl" else set())
    assert source_of(algorithm) == (FROZEN if component == "ce" else "policy")


@each
def test_frozen_and_equal_after_a_dump(name, cls, settings, component):
    algorithm = cls(**settings)
    with pytest.raises(ValueError, match="frozen"):
        algorithm.type = "other"
    assert cls(**algorithm.model_dump()) == algorithm


@each
def test_every_key_is_described(name, cls, settings, component):
    assert [key for key, field in cls.model_fields.items() if not field.description and key != "type"] == []


@each
def test_a_group_without_rollouts_stays_as_it_is(name, cls, settings, component):
    algorithm = cls(**settings)
    rows = group(trace("a", float("nan"), [5], valid=False), trace("b", 1.0, [5], trainable=False), trace("c", 1.0, []))
    state = algorithm.init_state()
    scored, after = algorithm.score_group(rows, state)
    assert scored is rows
    assert after is state


@each
def test_frozen_sampling_feeds_ce_only(name, cls, settings, component):
    if component == "ce":
        return
    with pytest.raises(ValueError, match=f"{cls.__name__}: got the frozen model 'big'.*feeds {component}.*use 'sft'"):
        cls(**settings, sampling={"source": FROZEN})


@each
def test_only_grpo_and_echo_shape_and_aggregate(name, cls, settings, component):
    keys = {"length_penalty", "length_weighted_baseline", "loss_aggregation"}
    assert keys & set(cls.model_fields) == (keys if name in ("grpo", "echo") else set())


AGREE = {
    "one": {"a": GRPO(loss_aggregation="prompt")},
    "both prompt": {"a": GRPO(loss_aggregation="prompt"), "b": Echo(loss_aggregation="prompt")},
    "no rl loss beside it": {"a": GRPO(loss_aggregation="prompt"), "b": OPSD(), "c": OPD(teacher=FROZEN)},
    "token": {"a": GRPO(), "b": MaxRL(), "c": as_algorithm(lambda group, state: (group, state))},
    "nothing": {},
}


@pytest.mark.parametrize("algorithms", AGREE.values(), ids=AGREE)
def test_one_aggregation(algorithms):
    same_aggregation(algorithms)


@pytest.mark.parametrize("other", [GRPO(), MaxRL(), RAE()], ids=["grpo", "max_rl", "rae"])
def test_a_mix_of_aggregations(other):
    with pytest.raises(ConfigError, match="loss_aggregation: 'math' has 'prompt', 'code' has 'token'"):
        same_aggregation({"math": Echo(loss_aggregation="prompt"), "code": other})
