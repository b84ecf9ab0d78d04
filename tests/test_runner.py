"""Runner: stages read, update commits, and every bit is a function of the settings."""

import asyncio
import json
import warnings

import pytest
import torch

from prl.algorithms import GRPO
from prl.config import IPO, AdamW, IcePop, Sampling
from prl.curricula import Curriculum, StandardSampler
from prl.errors import TrainingError
from prl.losses import cispo, dppo, gspo, icepop, ipo, ppo_clip, tis
from prl.runner import Source
from prl.trajectories import drop_zero_signal
from prl.types import Group, LossOutputs, TokenLoss, supervised
from tests.helpers import END, PlayEnv, Remember, fingerprint, one_reply, pay, runner, saying, weights


class CountingSampler(StandardSampler):
    """Task number = groups observed so far; keeps and hands out its dicts without copying them."""

    def __init__(self):
        self.seen = {"n": 0}

    def sample(self, tasks, draw, rng):
        return tasks[(self.seen["n"] + draw) % len(tasks)]

    def observe(self, group):
        self.seen["n"] += 1

    def state_dict(self):
        return self.seen

    def load_state_dict(self, state):
        self.seen = state

    def metrics(self):
        return {"seen": float(self.seen["n"])}


class NotTask:
    """A gate that refuses one task."""

    def __init__(self, key):
        self.key = key

    def admit(self, group):
        return group.task.key != self.key

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def metrics(self):
        return {}


def in_place(group, state):
    """An algorithm that breaks the rules: it changes the state that it was given."""
    state["groups"] = state.get("groups", 0) + 1
    return group.assign(advantages=group.rewards - group.rewards.mean() + 0.01 * state["groups"]), state


@pytest.mark.parametrize("algorithm", [None, Remember(), in_place], ids=["grpo", "state", "state in place"])
def test_every_stage_twice_gives_the_same_bits(algorithm):
    run = runner(algorithm=algorithm, curriculum=Curriculum(CountingSampler(), {"gate": NotTask("train2")}))
    for _ in range(2):
        groups = run.rollout()
        assert fingerprint(run.rollout()) == fingerprint(groups)
        scored = run.score(groups)
        assert fingerprint(run.score(groups)) == fingerprint(scored)
        admitted = run.admit(scored)
        assert fingerprint(run.admit(scored)) == fingerprint(admitted)
        batch = run.pack(admitted)
        assert fingerprint(run.pack(admitted)) == fingerprint(batch)
        assert fingerprint(run.losses(batch)) == fingerprint(run.losses(batch))
        collected = run.collect()
        assert fingerprint(run.collect()) == fingerprint(collected)
        table = run.evaluate("test", 3, k=2)
        assert run.evaluate("test", 3, k=2).equals(table)
        assert fingerprint(run.score(groups)) == fingerprint(scored)
        run.step()


def test_cells_equal_steps_bit_for_bit():
    cells, steps = runner(algorithm=Remember()), runner(algorithm=Remember())
    for _ in range(3):
        groups = cells.collect()
        cells.rollout(1), cells.evaluate("test", 1), cells.losses(cells.pack(groups))  # looking changes nothing
        report, expected = cells.update(cells.pack(groups)), steps.step()
        assert fingerprint(report) == fingerprint(expected)
        assert fingerprint(weights(cells)) == fingerprint(weights(steps))
    assert fingerprint(cells._state) == fingerprint(steps._state)


def test_one_wave_by_hand_equals_collect():
    run = runner(batch_size=8, constant_trainer_batch_size=False)
    by_hand = run.admit(run.score(run.rollout()))
    assert fingerprint(by_hand) == fingerprint(run.collect())


def test_the_seed_decides_everything():
    one, two, other = (runner(seed=seed) for seed in (3, 3, 4))
    for _ in range(2):
        assert fingerprint(one.step()) == fingerprint(two.step())
        other.step()
    assert torch.equal(weights(one), weights(two)) and not torch.equal(weights(one), weights(other))


def test_updating_twice_returns_the_report_and_changes_nothing():
    run = runner()
    batch = run.pack(run.collect())
    report = run.update(batch)
    before, state = weights(run), run._state
    assert run.update(batch) is report
    assert torch.equal(weights(run), before) and run._state is state and run.history == [report]


def test_again_commits_weights_only():
    run = runner(algorithm=Remember())
    batch = run.pack(run.collect())
    run.update(batch)
    before, state, history = weights(run), run._state, run.history
    report = run.update(batch, again=True)
    assert not torch.equal(weights(run), before)
    assert (run._state, run.history, report.step) == (state, history, 1)
    first = run.rollout(1)
    assert fingerprint(run.rollout(1)) == fingerprint(first)
    assert run.step().step == 2


def test_a_stale_batch_is_an_error():
    run = runner()
    old = run.pack(run.collect())
    run.step()
    with pytest.raises(TrainingError, match="the batch was collected for step 1, the next step is 2. Collect again"):
        run.update(old)


def test_a_hand_made_batch_commits_weights_and_step_only():
    run = runner(algorithm=Remember())
    run.step()
    before, state = weights(run), run._state
    report = run.update(run.pack([supervised([65, 66], [67, 68, END])]))
    assert not torch.equal(weights(run), before)
    assert run._state == state._replace(step=2) and (report.step, report.reward) == (2, None)
    assert set(report.terms) == {"rl", "ce", "ref_kl"} and report.terms["rl"] == 0
    collected = run.collect()
    assert collected.commit.step == 3 and collected.commit.draws > state.draws


def test_the_engine_samples_with_the_committed_weights():
    run = runner()
    for version in range(2):
        groups = run.rollout(1)
        (step,) = groups[0].traces[0].steps
        ids = torch.tensor([[*step.prompt_ids, *step.completion_ids]])
        logprobs = run.model.module(input_ids=ids).logits[0, len(step.prompt_ids) - 1 : -1].log_softmax(-1)
        expected = logprobs.gather(1, ids[0, len(step.prompt_ids) :, None])[:, 0]
        torch.testing.assert_close(torch.tensor(step.completion_logprobs), expected.detach(), atol=1e-5, rtol=0)
        assert step.version == version
        run.step()


def test_evaluate_sees_new_weights_too():
    run, fresh = runner(), runner()
    run.step()
    table = run.evaluate("test", 4)
    assert not table.equals(fresh.evaluate("test", 4))
    run.rollout(1)
    assert run.evaluate("test", 4).equals(table)


def test_an_advantage_is_called_once_per_group_and_its_numbers_are_trained():
    seen = []

    def advantage(rewards):
        seen.append(rewards)
        return 2 * (rewards - rewards.mean())

    run = runner(advantage=advantage)
    groups = run.rollout(2)
    scored = run.score(groups)
    assert [s.tolist() for s in seen] == [g.rewards.tolist() for g in groups]
    for group, plain in zip(scored, run.score(groups, algorithm=GRPO()), strict=True):
        for a, b in zip(group.samples, plain.samples, strict=True):
            assert a.advantages.tolist() == (2 * b.advantages).tolist()
    run.step()


def test_an_algorithms_state_advances_with_every_scored_group_and_is_committed_by_update():
    run = runner(algorithm=Remember(), curriculum=Curriculum(gates={"none": NotTask("train0")}))
    groups = run.rollout(4)
    admitted = run.admit(run.score(groups))
    assert len(admitted) == 3
    memory = admitted.commit.algorithms["env"]
    assert memory.seen == {f"train{i}": 1 for i in range(4)}
    rewards = torch.cat([g.rewards for g in groups])
    assert memory.total.tolist() == [rewards.sum(), len(rewards)]
    assert run._state.algorithms == {}
    run.update(run.pack(admitted))
    assert fingerprint(run._state.algorithms["env"]) == fingerprint(memory)
    assert run.rollout(1)[0].id == "env/train0@4"


def test_a_bare_function_is_an_algorithm_and_its_state_goes_through_steps():
    def count(group, state):
        n = state.get("n", 0) + 1
        return group.assign(advantages=group.rewards - group.rewards.mean()), {"n": n}

    run = runner(algorithm=count, constant_trainer_batch_size=False)
    for i in range(2):
        run.step()
        assert run._state.algorithms == {"env": {"n": 2 * (i + 1)}}
    sources = runner([Source(PlayEnv(one_reply), algorithm=count)], constant_trainer_batch_size=False)
    sources.step()
    assert sources._state.algorithms == {"env": {"n": 2}}


def test_losses_compares_several_and_changes_nothing():
    def mine(trainer_logprobs, inference_logprobs, advantages, *, scale=1.0):
        return ipo(trainer_logprobs, inference_logprobs, advantages)

    def page(inputs):
        ratio = (inputs.trainer_logprobs - inputs.inference_logprobs).exp()
        return LossOutputs(-(ratio * inputs.advantages)[inputs.loss_mask].sum(), {})

    run = runner()
    batch, before = run.pack(run.collect()), weights(run)
    out = run.losses(batch, {"ipo": IPO(), "mine": mine, "page": page, "tight": IPO(eps=1e-9)})
    assert set(out) == {"ipo", "mine", "page", "tight"} and set(out["ipo"]) == {"rl", "ce", "ref_kl"}
    torch.testing.assert_close(out["mine"]["rl"].per_token, out["ipo"]["rl"].per_token, atol=0, rtol=0)
    shape = out["ipo"]["rl"].per_token.shape
    assert shape[0] == sum(len(rows.token_ids) for rows in batch.rows)
    trained = torch.cat([torch.nn.functional.pad(r.trained, (0, shape[1] - r.trained.shape[1])) for r in batch.rows])
    assert not out["ipo"]["rl"].per_token[~trained].any() and not out["ipo"]["ce"].per_token.any()
    totals = [out[name]["rl"].per_token.sum().item() for name in ("ipo", "page")]
    assert totals[0] == pytest.approx(totals[1], abs=1e-5)
    assert torch.equal(weights(run), before)


@pytest.mark.parametrize("kind", ["tokens", "page"])
def test_a_users_loss_trains(kind):
    def tokens(trainer_logprobs, inference_logprobs, advantages):
        return TokenLoss(-advantages * trainer_logprobs, advantages > 0, {"mine": advantages})

    def page(inputs):
        total = -(inputs.advantages * inputs.trainer_logprobs)[inputs.loss_mask].sum()
        return LossOutputs(total, {"mine": inputs.advantages[inputs.loss_mask].mean()})

    report = runner(loss=tokens if kind == "tokens" else page).step()
    assert report.grad_norm > 0 and "rl/mine" in report.metrics
    assert runner(loss=tokens).step().loss == pytest.approx(runner(loss=page).step().loss, abs=1e-5)


def test_icepop_trains_and_every_baseline_stands_beside_it():
    run = runner(loss=IcePop())
    batch = run.pack(run.collect())
    out = run.losses(batch, {fn.__name__: fn for fn in (icepop, ipo, ppo_clip, cispo, tis, dppo, gspo)})
    (configured,) = run.losses(batch).values()
    assert torch.equal(configured["rl"].per_token, out["icepop"]["rl"].per_token)
    for name in ("ipo", "ppo_clip", "dppo", "gspo"):  # still on policy: all ratios are 1
        torch.testing.assert_close(out[name]["rl"].per_token, configured["rl"].per_token, atol=1e-4, rtol=0)
    report = run.update(batch)
    assert report.grad_norm > 0 and report.metrics["rl/kept"] == 1.0
    fresh = runner()  # and IPO, which drops nothing either, takes the same step
    assert fresh.update(fresh.pack(fresh.collect())).loss == pytest.approx(report.loss, abs=1e-6)


def test_gates_take_groups_out_and_samplers_see_them():
    gates = {"gate": NotTask("train1"), "other": NotTask("none")}
    run = runner(curriculum=Curriculum(CountingSampler(), gates), constant_trainer_batch_size=False)
    groups = run.rollout(2)
    assert [g.task.key for g in groups] == ["train0", "train1"]
    report = run.step()
    assert run._state.curricula == {"env": {"sampler": {"n": 2}, "gates": {"gate": {}, "other": {}}}}
    assert report.metrics["curriculum/env/seen"] == 2
    assert [g.task.key for g in run.rollout(2)] == ["train0", "train1"]  # (seen 2 + draw 2) % 4 and the next


def test_several_sources_take_turns_each_with_its_own_settings():
    envs = [
        PlayEnv(one_reply, name="a"),
        Source(PlayEnv(one_reply, name="b"), algorithm=Remember(), group_size=2),
        PlayEnv(one_reply, name="c"),
    ]
    run = runner(envs, group_size=4, batch_size=10, constant_trainer_batch_size=False)
    groups = run.rollout(5)
    assert [g.id for g in groups] == ["a/train0@0", "b/train0@0", "c/train0@0", "a/train1@1", "b/train1@1"]
    assert [len(g.episodes) for g in groups] == [4, 2, 4, 4, 2]
    run.step()  # 4 + 2 + 4 >= 10
    assert run._state.draws == 3 and set(run._state.algorithms) == {"a", "b", "c"}
    assert run._state.algorithms["b"].seen == {"train0": 1}
    assert [g.id for g in run.rollout(1)] == ["a/train1@1"]
    assert len(run.tasks()) == 12 and len(run.evaluate("test", 2)) == 6


def waves(run):
    """Groups of each wave of one collect."""
    sizes, rollout = [], run._collector.rollout

    async def counted(commit, draws, weights):
        sizes.append(draws)
        return await rollout(commit, draws, weights)

    run._collector.rollout = counted
    return run.collect(), sizes


async def silent_first(task, agents, rng):
    """Tasks 0 and 1 pay everybody the same, so their groups carry no signal."""
    reply = await agents["agent"].respond(task.prompt)
    return 1.0 if task.key in ("train0", "train1") else float(len(reply.content) + pay(reply.content) + rng.random())


def test_missing_traces_are_replaced_in_waves_of_exactly_their_number():
    groups, sizes = waves(runner(PlayEnv(silent_first), batch_size=12))
    # 3 groups: 0 and 1 silent, 2 gives 4 of 12. Missing 8: groups 3 and 0 give 4. Missing 4: 1 gives none, 2 the rest.
    assert sizes == [3, 2, 1, 1]
    assert [g.task.key for g in groups] == [f"train{i}" for i in (0, 1, 2, 3, 0, 1, 2)]
    assert sum(bool(drop_zero_signal(t.samples)) for g in groups for t in g.traces) == 12
    assert groups.commit.draws == 7


def test_without_constant_batch_size_there_is_one_wave():
    run = runner(PlayEnv(silent_first), batch_size=12, constant_trainer_batch_size=False)
    groups, sizes = waves(run)
    assert sizes == [3] and len(groups) == 3
    report = run.update(run.pack(groups))
    assert report.tokens == sum(int(s.loss_mask.sum()) for s in groups[2].samples)


def test_traces_of_every_role_count():
    async def two(task, agents, rng):
        await agents["a"].respond("x")
        await agents["b"].respond("y")
        return rng.random()

    _, sizes = waves(runner(PlayEnv(two, agents=("a", "b")), batch_size=16))
    assert sizes == [2]  # 2 groups x 4 episodes x 2 traces


async def all_the_same(task, agents, rng):
    await agents["agent"].respond(task.prompt)
    return 1.0


def test_an_empty_batch_warns_makes_a_version_and_ten_in_a_row_are_an_error():
    run = runner(PlayEnv(all_the_same), group_size=2, batch_size=2, sampling=Sampling(max_tokens=1))
    before = weights(run)
    for step in range(1, 10):
        text = rf"step {step}: no sample carries a training signal \(2 episodes, 0 failed"
        with pytest.warns(UserWarning, match=text):
            report = run.step()
        assert (report.step, report.version, report.tokens) == (step, step, 0)
    with pytest.raises(TrainingError, match="step 10: nothing to train on 10 times in a row; no sample carries"):
        run.step()
    assert torch.equal(weights(run), before) and len(run.history) == 9
    assert run.rollout(1)[0].traces[0].steps[0].version == 9


def test_fit_and_history(capsys):
    run = runner()
    reports = run.fit(2)
    assert run.history == reports and [r.step for r in reports] == [1, 2]
    run.history.clear()
    assert len(run.history) == 2


def test_out_gets_a_line_for_each_step(tmp_path):
    run = runner(out=tmp_path / "deep")
    reports = run.fit(2)
    lines = [json.loads(line) for line in (tmp_path / "deep" / "history.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [r.loss for r in reports]


def test_calls_work_inside_a_running_event_loop():
    run, expected = runner(), runner()

    async def main():
        return run.step()

    assert fingerprint(asyncio.run(main())) == fingerprint(expected.step())


def test_evaluate_has_one_row_per_sample():
    async def play(task, agents, rng):
        reply = await agents["agent"].respond(task.prompt)
        if task.key == "test1":
            raise ValueError("no test1")
        return 1.0 if task.key == "test0" else float(len(reply.content))

    run = runner(PlayEnv(play), engine=saying("four"))
    table = run.evaluate("test", 3, k=2)
    assert table.columns == ["env", "task", "prompt", "answer", "completion", "reward", "exact", "error"]
    assert table["task"].to_list() == ["test0"] * 2 + ["test1"] * 2 + ["test2"] * 2
    assert table["reward"].to_list() == [1.0, 1.0, None, None, 4.0, 4.0]
    assert table["exact"].to_list() == [True, True, False, False, False, False]
    assert table["completion"].to_list() == ["four"] * 6 and table["answer"].to_list()[-1] == "2"
    assert ["no test1" in e if e else None for e in table["error"]] == [None, None, True, True, None, None]


def test_evaluate_may_sample_greedily():
    run = runner()
    table = run.evaluate("test", 1, k=3, sampling=Sampling(temperature=0, max_tokens=5))
    assert table["completion"].n_unique() == 1


def test_a_list_of_groups_that_a_user_picked_still_commits():
    run = runner()
    groups = run.score(run.rollout(3))
    batch = run.pack([g for g in groups if g.task.key != "train1"])
    assert (batch.step, batch.commit.draws) == (1, 3)
    run.update(batch)
    assert run._state.draws == 3


def test_hand_made_groups_are_scored_and_packed():
    run = runner()
    group = run.rollout(1)[0]
    mine = Group("mine", "env", group.task, group.episodes)
    batch = run.pack(run.score([mine]))
    assert batch.commit.draws == 0 and run.update(batch).step == 1


def test_learning_rate_zero_leaves_weights_and_reports_the_step():
    run = runner(optimizer=AdamW(lr=0.0))
    before = weights(run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.step()
    assert torch.equal(weights(run), before)
