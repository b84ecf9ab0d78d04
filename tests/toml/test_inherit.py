"""What a source takes from its group, row by row."""

import pytest

from prl.algorithms import GRPO, OPD, RAE, Echo, EchoRole, EchoRoles, LinearPenalty, LinearSubagentPenalty, MaxRL
from prl.config import FrozenModel
from prl.toml import load_toml
from prl.toml.curricula import AdvantageRangeTable, DifficultyPoolTable

BIG = FrozenModel(name="big", base_url="http://localhost:8001/v1")
TEACHER = "teacher = { name = 'big', base_url = 'http://localhost:8001/v1' }"
WEIGHTED = "length_weighted_baseline = true"

# name: (group's algo, source's algo, the source's algorithm)
ROWS = {
    "nothing at all": ("", "", GRPO()),
    "the group's type": ("type = 'max_rl'", "", MaxRL()),
    "the group's parameters": (f"type = 'grpo'\n{WEIGHTED}", "", GRPO(length_weighted_baseline=True)),
    "one parameter changed": (
        f"type = 'grpo'\n{WEIGHTED}",
        "algo.loss_aggregation = 'prompt'",
        GRPO(length_weighted_baseline=True, loss_aggregation="prompt"),
    ),
    "a parameter back to its default": (f"{WEIGHTED}", "algo.length_weighted_baseline = false", GRPO()),
    "the same type named again keeps": (
        f"type = 'grpo'\n{WEIGHTED}",
        "algo.type = 'grpo'",
        GRPO(length_weighted_baseline=True),
    ),
    "a missing type is grpo": (WEIGHTED, "algo.type = 'grpo'", GRPO(length_weighted_baseline=True)),
    "another type starts afresh": (f"type = 'grpo'\n{WEIGHTED}", "algo.type = 'echo'", Echo()),
    "nothing leaks into a type without the key": ("type = 'rae'\ndecay = 0.5", "algo.type = 'grpo'", GRPO()),
    "another type with a parameter of its own": (WEIGHTED, "algo.type = 'rae'\nalgo.decay = 0.9", RAE(decay=0.9)),
    "a key inside a table": (
        "length_penalty = { type = 'linear', num_turns_weight = 0.0 }",
        "algo.length_penalty.num_input_tokens_weight = 0.2",
        GRPO(length_penalty=LinearPenalty(num_turns_weight=0, num_input_tokens_weight=0.2)),
    ),
    "a table of another type": (
        "length_penalty = { num_turns_weight = 0.0 }",
        "algo.length_penalty.type = 'linear-subagent'",
        GRPO(length_penalty=LinearSubagentPenalty()),
    ),
    "a table of the same type, unnamed first": (
        "length_penalty = { num_turns_weight = 0.0 }",
        "algo.length_penalty.type = 'linear'",
        GRPO(length_penalty=LinearPenalty(num_turns_weight=0)),
    ),
    "roles are replaced whole": (
        "type = 'echo'\nroles.tool.alpha = 0.25",
        "algo.roles.user.alpha = 0.05",
        Echo(roles=EchoRoles(user=EchoRole(alpha=0.05))),
    ),
    "roles of the group": (
        "type = 'echo'\nroles.user.alpha = 0.25",
        "algo.loss_aggregation = 'prompt'",
        Echo(roles=EchoRoles(user=EchoRole(alpha=0.25)), loss_aggregation="prompt"),
    ),
    "kwargs are replaced whole": (
        "type = 'echo'\nfilter = { import_path = 'm.f', kwargs = { a = 1 } }",
        "algo.filter.kwargs.b = 2",
        Echo(filter={"import_path": "m.f", "kwargs": {"b": 2}}),
    ),
    "another function takes no old kwargs": (
        "type = 'echo'\nfilter = { import_path = 'm.f', kwargs = { a = 1 } }",
        "algo.filter.import_path = 'm.g'",
        Echo(filter={"import_path": "m.g"}),
    ),
    "a teacher": (f"type = 'opd'\n{TEACHER}", "", OPD(teacher=BIG)),
    "a teacher by another name": (
        f"type = 'opd'\n{TEACHER}",
        "algo.teacher.name = 'huge'",
        OPD(teacher=FrozenModel(name="huge", base_url="http://localhost:8001/v1")),
    ),
}


@pytest.mark.parametrize(("group", "own", "expected"), ROWS.values(), ids=ROWS)
def test_row(group, own, expected):
    text = f"[orchestrator.train.algo]\n{group}\n[[orchestrator.train.source]]\nname = 'a'\n{own}\n"
    train = load_toml(text).orchestrator.train
    assert train.source[0].algo == expected


def test_group_size_and_curriculum():
    train = load_toml("""
        [orchestrator.train]
        group_size = 4
        curriculum.sampler = { type = "difficulty_pool", pools.hard = { threshold = 0.5, weight = 1.0 } }
        curriculum.gates.a = { type = "advantage_range", reject_min = 0.0, reject_max = 0.0 }
        [[orchestrator.train.source]]
        name = "one"
        [[orchestrator.train.source]]
        name = "two"
        group_size = 2
        curriculum.gates.b = { type = "advantage_range", reject_min = -1.0, reject_max = 1.0 }
        [[orchestrator.train.source]]
        name = "three"
        curriculum.sampler.type = "standard"
    """).orchestrator.train
    one, two, three = train.source
    assert [s.group_size for s in train.source] == [4, 2, 4]
    assert one.curriculum == train.curriculum
    assert two.curriculum.sampler == train.curriculum.sampler
    wide = AdvantageRangeTable(type="advantage_range", reject_min=-1.0, reject_max=1.0)
    assert two.curriculum.gates == {"b": wide}  # gates have free names, so setting one replaces them all
    assert isinstance(one.curriculum.sampler, DifficultyPoolTable)
    assert three.curriculum.sampler.type == "standard"
    assert three.curriculum.gates == train.curriculum.gates


def test_sources_do_not_inherit_from_each_other():
    train = load_toml("""
        [[orchestrator.train.source]]
        name = "one"
        algo = { type = "rae", decay = 0.5 }
        [[orchestrator.train.source]]
        name = "two"
    """).orchestrator.train
    assert [s.algo for s in train.source] == [RAE(decay=0.5), GRPO()]
