"""Reference scoring in a Runner: who is asked for what, what lands on the samples, what a failure costs."""

import asyncio

import numpy as np
import pytest
import torch

from prl.algorithms import GRPO, OPSD
from prl.config import AlgoSampling, FrozenModel, Sampling
from prl.engines.scripted import ScriptedEngine
from prl.engines.torch import TorchEngine
from prl.errors import ConfigError, DataError, EngineError, TrainingError
from prl.references import Scorers, add_references
from prl.runner import Source
from prl.types import Commit, Groups
from tests.helpers import PlayEnv, fingerprint, one_reply, pay, runner, small, weights

HINTED = OPSD(demo_key="answer", template="{demonstration}!")


async def two_turns(task, agents, rng):
    await agents["agent"].respond(task.prompt)
    return pay((await agents["agent"].respond("more")).content)


def hint(run, task):
    return run.renderer.render([{"role": "system", "content": f"{task.answer}!"}]).token_ids


def test_opsd_scores_every_sample_after_its_demonstration_under_the_live_policy():
    run = runner(PlayEnv(two_turns), algorithm=HINTED)
    run.step()
    groups = run.collect()
    assert groups.commit.totals["reference_version"] == 1
    for group in groups:
        for sample in group.samples:
            ids = torch.tensor([[*hint(run, group.task), *sample.token_ids.tolist()]])
            with torch.no_grad():
                logprobs = run.model.module(ids).logits.log_softmax(-1)
            want = logprobs[0, :-1].gather(-1, ids[0, 1:, None])[:, 0].numpy()[-len(sample) :]
            assert np.abs(sample.ref_logprobs - np.where(sample.loss_mask, want, 0))[sample.loss_mask].max() < 1e-5
            assert (sample.ref_logprobs[~sample.loss_mask] == 0).all() and sample.loss_mask[-1]
            assert sample.advantages is None and (sample.ref_kl_weights == sample.loss_mask).all()
    report = run.update(run.pack(groups))
    assert report.terms["ref_kl"] != 0 and report.terms["rl"] == 0
    assert report.metrics["rollout/reference_version"] == 1


def test_opsd_needs_no_reward_and_says_what_it_got_without_a_demonstration():
    async def unpaid(task, agents, rng):
        await agents["agent"].respond(task.prompt)

    assert runner(PlayEnv(unpaid), algorithm=HINTED).step().reward == 0.0
    run = runner(PlayEnv(unpaid), algorithm=OPSD())
    with pytest.raises(TrainingError, match="reference scoring: all 8 samples failed.*under demo_key='demonstration'"):
        run.step()
    with pytest.raises(TrainingError, match="all 8 episodes failed; .*got None of type NoneType; need a finite number"):
        runner(PlayEnv(unpaid)).step()


def test_an_engine_of_this_process_is_a_teacher_and_is_asked_for_all_samples_at_once():
    calls = []

    class Teacher(TorchEngine):
        async def score(self, sequences):
            calls.append(len(sequences))
            return await super().score(sequences)

    teacher = Teacher(small(seed=5).module)

    async def ref(sample, models):
        return await models.score(teacher, sample.token_ids)

    algorithm = alone()
    type(algorithm).references = {"ref_logprobs": ref}
    run = runner(algorithm=algorithm)
    (group, _) = groups = run.collect()
    assert calls == [8] and "reference_version" not in groups.commit.totals
    (want,) = run._call(teacher.score([group.samples[0].token_ids]))
    mask = group.samples[0].loss_mask
    np.testing.assert_allclose(group.samples[0].ref_logprobs[mask], want[mask], atol=1e-5)


def test_scoring_twice_and_at_another_pace_gives_the_same_bits():
    groups = runner(PlayEnv(two_turns)).rollout(2)
    engine = TorchEngine(small().module)

    def scored(pause):
        class Slow(GRPO):
            @property
            def references(self):
                async def ref(sample, models):
                    await asyncio.sleep(pause(sample))
                    return (await models.score("policy", sample.token_ids)) + 1

                return {"ref_logprobs": ref}

        run = runner(PlayEnv(two_turns))
        scorers = Scorers(engine, 0, None, run.renderer, run.model.tokenizer)
        return fingerprint(run._call(add_references({"env": Slow()}, groups, scorers)))

    assert scored(lambda s: 0.0) == scored(lambda s: (sum(s.id.encode()) % 7) / 500)


class Broken(ScriptedEngine):
    """Fails to score sequences that hold a token."""

    def __init__(self, token):
        super().__init__(lambda request: [97 + request.key[4]])
        self.token = token

    async def score(self, sequences):
        if any(self.token in s for s in sequences):
            raise EngineError("http://teacher: gone")
        return await super().score(sequences)


def alone(name="ref_logprobs", value=0.5):
    """A user's algorithm whose reference asks the policy one sample at a time."""

    class Alone:
        component = "ref_kl"
        references = {}

        def init_state(self):
            return {}

        def score_group(self, group, state):
            return group.assign(ref_kl_weights=torch.ones(len(group.traces))), state

    async def ref(sample, models):
        return value if value is not None else await models.score("policy", sample.token_ids)

    Alone.references = {name: ref}
    return Alone()


def test_an_episode_whose_scoring_fails_is_excluded_counted_and_named():
    async def ref(sample, models):
        if 98 in sample.token_ids:
            raise EngineError("http://teacher: answered 500")
        return np.full(len(sample), -1.0, np.float32)

    algorithm = alone()
    type(algorithm).references = {"ref_logprobs": ref}
    run = runner(engine=Broken(-1), algorithm=algorithm, sampling=Sampling(max_tokens=1))
    groups = run.score(run.rollout())
    assert [[e.error is not None for e in g.episodes] for g in groups] == [[False, True, False, False]] * 2
    assert "http://teacher: answered 500" in groups[0].episodes[1].error and len(groups[0].traces) == 3
    assert groups.commit.totals["errors"] == 2.0
    assert all((s.ref_logprobs == np.where(s.loss_mask, -1, 0)).all() for g in groups for s in g.samples)


def test_every_sample_failing_raises_from_the_first():
    run = runner(engine=Broken(97), algorithm=alone(value=None), sampling=Sampling(max_tokens=1))
    with pytest.raises(TrainingError, match="all 8 samples failed; the first with EngineError") as caught:
        run.collect()
    assert isinstance(caught.value.__cause__, EngineError)


@pytest.mark.parametrize(
    ("value", "text"),
    [(np.zeros(3), "got shape .3.; need .36., one number per token"), (np.full(36, np.nan), "got nan at token 35")],
)
def test_a_reference_that_does_not_fit(value, text):
    run = runner(engine=Broken(-1), algorithm=alone(value=value), sampling=Sampling(max_tokens=1))
    with pytest.raises(TrainingError) as caught:
        run.collect()
    assert isinstance(caught.value.__cause__, DataError)
    with pytest.raises(DataError, match=text):
        raise caught.value.__cause__


TEACHER = FrozenModel(name="t", base_url="http://localhost:1/v1")


class Foreign:
    """A user's algorithm that wants a frozen model's rollouts for the rl loss."""

    component = "rl"
    sampling = AlgoSampling(source=TEACHER)

    def init_state(self):
        return {}

    def score_group(self, group, state):
        return group, state


def test_settings_that_do_not_fit():
    two = PlayEnv(one_reply, agents=("agent", "other"))
    wrong = {
        "models names the role 'judge'; this environment declares agent": [
            Source(PlayEnv(one_reply), models={"judge": TEACHER})
        ],
        "every role is pinned": [Source(PlayEnv(one_reply), models={"agent": TEACHER})],
        "can feed only the ce component, not 'rl'": [Source(PlayEnv(one_reply), algorithm=Foreign())],
        "loss_aggregation: 'env' has 'token', 'b' has 'prompt'": [
            Source(two, algorithm=GRPO()),
            Source(PlayEnv(one_reply, name="b"), algorithm=GRPO(loss_aggregation="prompt")),
        ],
    }
    for text, env in wrong.items():
        with pytest.raises(ConfigError, match=text):
            runner(env)


def test_hierarchical_wants_an_environment_of_several_roles():
    from prl.algorithms import HierarchicalGRPO

    with pytest.raises(ConfigError, match="episode_agents is .'solver'., the environment declares agent; hierarch"):
        runner(algorithm=HierarchicalGRPO(episode_agents=["solver"]))


def test_groups_without_anything_to_score_stay_as_they_are():
    run = runner()
    empty = Groups([], Commit(1, 0, {}, {}, {}))
    assert run.score(empty) == [] and torch.equal(weights(run), weights(runner()))
