"""What goes wrong leaves the Runner usable: interrupts, failing episodes, wrong settings, infinite losses."""

import asyncio
import os
import signal
import time

import pytest
import torch
from pydantic import ValidationError

from prl.algorithms import GRPO
from prl.config import IPO, AdamW, Sampling
from prl.errors import ConfigError, DataError, TrainingError
from prl.losses import ipo
from prl.runner import Source
from prl.types import TokenLoss, supervised
from tests.helpers import PlayEnv, Remember, fingerprint, one_reply, pay, runner, weights


def ctrl_c():
    """A real SIGINT; its handler runs in the main thread, wherever this is called."""
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_in_a_rollout_changes_nothing():
    armed, ended = [], []

    async def play(task, agents, rng):
        try:
            reply = await agents["agent"].respond(task.prompt)
            if armed:
                armed.pop()()
                await asyncio.sleep(60)
            return pay(reply.content)
        finally:
            ended.append(task.key)

    run, expected = runner(PlayEnv(play), algorithm=Remember()), runner(PlayEnv(play), algorithm=Remember())
    assert fingerprint(run.step()) == fingerprint(expected.step())
    for call in (run.step, run.collect, lambda: run.rollout(2), lambda: run.evaluate("test", 2), lambda: run.fit(3)):
        before, state = weights(run), run._state
        ended.clear()
        armed.append(ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            call()
        assert len(ended) >= 2, "episodes were not unwound"
        assert torch.equal(weights(run), before) and run._state is state
    for _ in range(2):
        assert fingerprint(run.step()) == fingerprint(expected.step())
    assert torch.equal(weights(run), weights(expected))


def test_an_interrupt_in_an_update_is_held_back_until_it_is_whole():
    armed = []

    def loss(trainer_logprobs, inference_logprobs, advantages):
        if armed:
            armed.pop()()
            time.sleep(0.05)
        return ipo(trainer_logprobs, inference_logprobs, advantages)

    run, expected = runner(algorithm=Remember(), loss=loss), runner(algorithm=Remember(), loss=loss)
    for _ in range(2):
        batch = run.pack(run.collect())
        armed.append(ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            run.update(batch)
        report = expected.step()
        assert fingerprint(run.history[-1]) == fingerprint(report)
        assert fingerprint(run.update(batch)) == fingerprint(report)
        assert torch.equal(weights(run), weights(expected))
    assert fingerprint(run.step()) == fingerprint(expected.step())
    assert fingerprint(run._state) == fingerprint(expected._state)


def test_a_second_interrupt_does_not_shorten_the_update():
    def loss(trainer_logprobs, inference_logprobs, advantages):
        ctrl_c()
        time.sleep(0.05)
        ctrl_c()
        time.sleep(0.05)
        return ipo(trainer_logprobs, inference_logprobs, advantages)

    run = runner(loss=loss)
    batch = run.pack(run.collect())
    with pytest.raises(KeyboardInterrupt):
        run.update(batch)
    assert [r.step for r in run.history] == [1] and not torch.equal(weights(run), weights(runner()))


def flaky(fails):
    async def play(task, agents, rng):
        reply = await agents["agent"].respond(task.prompt)
        if fails(task, rng):
            raise KeyError("flaky")
        return pay(reply.content)

    return PlayEnv(play)


def test_failing_episodes_are_counted_and_stay_out_of_the_baseline():
    run = runner(flaky(lambda task, rng: rng.random() < 0.4), group_size=8, batch_size=8)
    seen = []
    groups = run.score(run.rollout(2), advantage=lambda r: seen.append(r) or r - r.mean())
    failed = [sum(e.error is not None for e in g.episodes) for g in groups]
    assert 0 < sum(failed) < 16
    assert [len(r) for r in seen] == [8 - n for n in failed] == [len(g.traces) for g in groups]
    for group in groups:
        assert all("KeyError: 'flaky'" in e.error for e in group.episodes if e.error)
        assert all(t.samples[0].advantages is None for e in group.episodes if e.error for t in e.traces)
    report = run.update(run.pack(groups))
    assert report.metrics["rollout/errors"] == sum(failed) and report.metrics["rollout/episodes"] == 16
    assert report.reward == pytest.approx(torch.cat(seen).mean().item())


def test_when_all_episodes_fail_the_first_exception_is_the_cause():
    async def typo(task, agents, rng):
        reply = await agents["agent"].respond(task.prompt)
        return reply.contnt

    run = runner(PlayEnv(typo))
    with pytest.raises(TrainingError, match="all 8 episodes failed; the first with AttributeError") as caught:
        run.step()
    assert isinstance(caught.value.__cause__, AttributeError)
    assert any("return reply.contnt" in str(entry.statement) for entry in caught.traceback[-1:]) or (
        caught.value.__cause__.__traceback__ is not None
    )
    assert run.history == []


def test_one_broken_task_does_not_end_training():
    run = runner(flaky(lambda task, rng: task.key == "train2"), batch_size=12, group_size=4)
    for _ in range(3):
        run.step()
    assert sum(r.metrics["rollout/errors"] for r in run.history) >= 8


def test_a_broken_task_alone_is_an_error():
    run = runner(flaky(lambda task, rng: task.key == "train0"))
    with pytest.raises(TrainingError, match="all 4 episodes failed; the first with KeyError"):
        run.rollout(1)
    assert len(run.rollout(2)[0].traces) == 0


def test_an_error_in_score_or_loss_leaves_the_runner_usable():
    def broken(trainer_logprobs, inference_logprobs, advantages):
        raise ZeroDivisionError("mine")

    run, expected = runner(), runner()
    batch, before = run.pack(run.collect()), weights(run)
    run.loss = broken
    with pytest.raises(ZeroDivisionError, match="mine"):
        run.update(batch)
    assert torch.equal(weights(run), before) and run.history == []
    run.loss = IPO()
    assert fingerprint(run.update(batch)) == fingerprint(expected.step())
    assert torch.equal(weights(run), weights(expected))


def test_a_metric_that_fails_takes_no_step():
    def bad_metric(inputs):
        raise ValueError("no metric")

    run = runner(loss=bad_metric)
    batch, before = run.pack(run.collect()), weights(run)
    with pytest.raises(ValueError, match="no metric"):
        run.update(batch)
    assert torch.equal(weights(run), before)


def test_a_loss_that_is_not_finite_names_token_and_sample_and_takes_no_step():
    def loss(trainer_logprobs, inference_logprobs, advantages):
        out = ipo(trainer_logprobs, inference_logprobs, advantages)
        bad = torch.zeros_like(out.per_token)
        bad[1] = float("nan")
        return TokenLoss(out.per_token + bad, out.kept, out.metrics)

    run = runner(loss=loss)
    batch, before = run.pack(run.collect()), weights(run)
    rows = batch.rows[0]
    at = rows.trained.nonzero()[1]
    name, token = batch.where(*at.tolist())
    with pytest.raises(TrainingError, match="Runner.update, step 1: the rl loss is nan at token") as caught:
        run.update(batch)
    assert f"at token {token} of sample {name!r}" in str(caught.value) and "No step was taken" in str(caught.value)
    assert torch.equal(weights(run), before) and run.history == []


def test_a_gradient_that_is_not_finite_takes_no_step():
    def loss(trainer_logprobs, inference_logprobs, advantages):
        out = ipo(trainer_logprobs, inference_logprobs, advantages)
        zero = trainer_logprobs - trainer_logprobs.detach()
        return out._replace(per_token=out.per_token + zero.sqrt() * 0)  # finite, with a gradient of 0 * inf

    run = runner(loss=loss)
    before = weights(run)
    with pytest.raises(TrainingError, match="step 1: the gradient norm is nan; no step was taken. Largest term: rl"):
        run.step()
    assert torch.equal(weights(run), before)
    run.loss = IPO()
    assert fingerprint(run.step()) == fingerprint(runner().step())


CONFIG = {
    "group_size": (dict(group_size=0), "got group_size=0; need a whole number of at least 1"),
    "batch_size": (dict(batch_size=2.5), "batch_size"),
    "greedy": (dict(sampling=Sampling(temperature=0)), "got temperature=0.0, top_p=1.0, top_k=None; training needs"),
    "top_p": (dict(sampling=Sampling(top_p=0.9)), "belong in evaluate"),
    "top_k": (dict(sampling=Sampling(top_k=5)), "belong in evaluate"),
    "engine": (dict(engine="vlm"), "unknown engine 'vlm'; need 'torch', 'vllm', or an Engine object"),
    "both": (dict(advantage=lambda r: r, algorithm=GRPO()), "got both advantage= and algorithm="),
    "algorithm": (dict(algorithm="grpo"), "algorithm: got 'grpo'; need a config such as GRPO"),
    "loss of two": (dict(loss=lambda a, b: a), "has 2 required positional arguments; need 3"),
    "stop": (dict(sampling=Sampling(stop=("ab",))), "stop='ab' is 2 tokens for this tokenizer; need one, or its id"),
    "no env": (dict(env=[Source(PlayEnv(one_reply), group_size=0)]), "Source 'env': got group_size=0"),
    "one name": (dict(env=[PlayEnv(one_reply), PlayEnv(one_reply)]), "environments are .'env', 'env'.; need at least"),
}


@pytest.mark.parametrize(("settings", "text"), CONFIG.values(), ids=CONFIG)
def test_wrong_settings(settings, text):
    with pytest.raises(Exception, match=text) as caught:
        runner(**settings)
    assert isinstance(caught.value, ConfigError) or "batch_size" in settings or "sampling" in settings


UNKNOWN = {
    "sampling": (lambda: Sampling(temprature=1), "Sampling: unknown key 'temprature'.*Did you mean 'temperature'"),
    "optimizer": (lambda: AdamW(learning=1), "AdamW: unknown key 'learning'; valid keys are lr, betas, weight_decay"),
    "loss": (lambda: IPO(epps=1), "Did you mean 'eps'"),
    "algorithm": (lambda: GRPO(length_weighted=True), "Did you mean 'length_weighted_baseline'"),
    "top_p": (lambda: Sampling(top_p=1.5), "top_p"),
}


@pytest.mark.parametrize(("build", "text"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_key_names_the_nearest(build, text):
    with pytest.raises(ValidationError, match=text):
        build()


WRONG_ADVANTAGES = {
    "scalar": (
        lambda r: r.mean(),
        r"advantage: returned shape \[\] for group 'env/train0@0'; need a tensor of shape .4",
    ),
    "list": (lambda r: r.tolist(), r"advantage: returned list for group 'env/train0@0'"),
    "too long": (lambda r: torch.cat([r, r]), r"returned shape \[8\]"),
    "nan": (lambda r: r * float("nan"), "advantages is nan at token"),
}


@pytest.mark.parametrize(("advantage", "text"), WRONG_ADVANTAGES.values(), ids=WRONG_ADVANTAGES)
def test_wrong_advantages(advantage, text):
    run = runner(advantage=advantage)
    groups = run.rollout(2)
    with pytest.raises(DataError, match=text):
        run.score(groups)


def test_a_sample_longer_than_max_tokens_is_an_error():
    run = runner(max_tokens=8)
    with pytest.raises(DataError, match="pack: sample 'supervised' has 9 tokens, max_tokens is 8"):
        run.pack([supervised([65] * 6, [66] * 3)])


def test_counts_below_one_are_errors():
    run = runner()
    for call in (lambda: run.rollout(0), lambda: run.fit(0), lambda: run.evaluate("test", 0)):
        with pytest.raises(ConfigError, match="need a whole number of at least 1"):
            call()
    with pytest.raises(DataError, match="evaluate: 9 tasks asked for; the 'test' split of 'env' holds 4"):
        run.evaluate("test", 9)
