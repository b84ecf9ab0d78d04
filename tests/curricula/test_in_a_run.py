"""Pools and gates inside a Runner: refused groups are observed, and a run resumes bit for bit."""

import pytest

from prl.curricula import AdvRangeGate, Curriculum, DifficultyPoolSampler
from prl.errors import ConfigError
from tests.helpers import PlayEnv, fingerprint, one_reply, runner, weights


def curriculum():
    pools = {"hard": (0.3, 0.5), "normal": (0.6, 1.0), "easy": (1.0, 2.0)}
    return Curriculum(DifficultyPoolSampler(pools), {"calm": AdvRangeGate(-0.3, 0.3)})


def run_of(steps=0):
    run = runner(curriculum=curriculum(), batch_size=16)
    if steps:
        run.fit(steps)
    return run


def everything(run):
    return fingerprint([weights(run), run._state, run.history])


def test_half_a_run_saved_and_loaded_equals_the_whole(tmp_path):
    straight, half, rest = run_of(4), run_of(2), run_of()
    assert rest.load(half.save(tmp_path / "saved")) == []
    rest.fit(2)
    assert everything(rest) == everything(straight)
    metrics = straight.history[-1].metrics
    assert 0 < metrics["curriculum/env/calm/rejected"] < 1 and metrics["curriculum/env/seen"] > 1
    shares = [metrics[f"curriculum/env/pool/{name}"] for name in ("hard", "normal", "easy")]
    assert sum(shares) == pytest.approx(1)


def test_stages_leave_the_committed_curriculum_alone():
    run = run_of(2)
    before = fingerprint(run._state)
    first, second = run.collect(), run.collect()
    assert fingerprint(first) == fingerprint(second) and fingerprint(run._state) == before


def test_a_refused_group_is_observed():
    async def fair(task, agents, rng):
        await agents["agent"].respond(task.prompt)
        return 0.5  # everybody the same: no advantage, so every group is refused

    pools = DifficultyPoolSampler({"all": (1.0, 1.0)})
    run = runner(PlayEnv(fair), curriculum=Curriculum(pools, {"calm": AdvRangeGate(0, 0)}))
    groups = run.admit(run.score(run.rollout(3)))
    assert list(groups) == []
    state = groups.commit.curricula["env"]
    assert state["gates"]["calm"] == {"asked": 3, "rejected": 3}
    assert set(state["sampler"]["rewards"].values()) == {0.5}
    assert pools.state_dict() == {"rewards": {}}  # the user's own object is never written to


def test_pools_that_are_all_off_stop_the_run_with_their_names():
    pools = DifficultyPoolSampler({"solved": (1.0, 0.0)})
    run = runner(PlayEnv(one_reply), curriculum=Curriculum(pools))
    with pytest.raises(ConfigError, match=r"all 4 are in pools of weight 0: 'solved' \(4 tasks\)"):
        run.fit(20)
