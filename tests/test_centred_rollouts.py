"""IcePop with score centering on live rollouts: what the engine records, what the loss gets, what is refused."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from prl.config import IcePop, Sampling
from prl.engines.base import Request
from prl.engines.head import captured_head
from prl.engines.mismatched import MismatchedEngine
from prl.engines.torch import TorchEngine
from prl.errors import ConfigError, DataError
from prl.losses import icepop_centered
from tests.helpers import END, fingerprint, runner, small, weights

CENTRED = IcePop(score_centering=True, score_centering_topk=6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_the_head_is_the_topk_of_the_sampled_distribution_whatever_was_drawn(temperature):
    policy = small()
    sampling = Sampling(temperature=temperature, max_tokens=6, topk_logprobs=6, stop=(END,))
    run = runner(model=policy)
    requests = [Request(np.array([65 + i % 3, 66, 67], np.int32), sampling, ("k", i)) for i in range(12)]
    plain = [r._replace(sampling=sampling.model_copy(update={"topk_logprobs": None})) for r in requests]
    engine = TorchEngine(policy.module)
    recorded, bare = run._call(engine.generate(requests)), run._call(engine.generate(plain))
    outside = 0
    for request, got, same in zip(requests, recorded, bare, strict=True):
        assert got.token_ids.tolist() == same.token_ids.tolist() and same.topk is None
        ids = torch.tensor([[*request.prompt_ids.tolist(), *got.token_ids.tolist()]])
        with torch.no_grad():
            logprobs = (policy.module(ids).logits[0, 2:-1] / temperature).log_softmax(-1)
        values, indices = logprobs.topk(6)
        assert got.topk.ids.tolist() == indices.tolist()
        np.testing.assert_allclose(got.topk.logprobs, values, atol=1e-5)
        outside += sum(int(token not in row) for token, row in zip(got.token_ids, got.topk.ids, strict=True))
    assert outside > 0


HEADS = {  # candidates (ids, log-probabilities), topk -> ids and log-probabilities kept
    "sorted": ([4, 2, 9], [-1.0, -2.0, -3.0], 2, [4, 2], [-1.0, -2.0]),
    "any order": ([9, 4, 2], [-3.0, -1.0, -2.0], 2, [4, 2], [-1.0, -2.0]),
    "tie at the boundary": ([4, 2, 9, 7], [-1.0, -2.0, -2.0, -3.0], 2, [4, 0], [-1.0, -np.inf]),
    "tie inside": ([9, 4, 2], [-1.0, -1.0, -3.0], 2, [4, 9], [-1.0, -1.0]),
    "tie across": ([4, 2, 9, 7], [-1.0, -2.0, -2.0, -2.0], 3, [4, 0, 0], [-1.0, -np.inf, -np.inf]),
    "all tied": ([4, 2, 9], [-1.0, -1.0, -1.0], 2, [0, 0], [-np.inf, -np.inf]),
    "small vocabulary": ([1, 0], [-0.1, -2.4], 3, [1, 0, 0], [-0.1, -2.4, -np.inf]),
}


@pytest.mark.parametrize(("ids", "logprobs", "topk", "kept_ids", "kept"), HEADS.values(), ids=HEADS)
def test_captured_head(ids, logprobs, topk, kept_ids, kept):
    head = captured_head([ids], [logprobs], topk)
    assert head.ids.tolist() == [kept_ids] and head.logprobs.tolist() == [np.float32(kept).tolist()]


def test_a_runner_asks_for_the_head_by_itself_and_the_loss_gets_it():
    run = runner(loss=CENTRED)
    batch = run.pack(run.collect())
    assert all(s.topk.ids.shape == (len(s), 6) for s in batch.samples)
    out = run.losses(batch)["icepop"]["rl"]
    row, col = (int(x[0]) for x in (batch.rows[0].rl_weights != 0).nonzero(as_tuple=True))
    name, token = batch.where(row, col)
    sample = next(s for s in batch.samples if s.id == name)
    with torch.no_grad():
        logits = run.model.module(torch.tensor(sample.token_ids[None].astype(np.int64))).logits[0, token - 1]
    logprobs = logits.log_softmax(-1)
    want = icepop_centered(
        logprobs[int(sample.token_ids[token])][None], torch.tensor([sample.inference_logprobs[token]]),
        torch.tensor([sample.advantages[token]]), logprobs[torch.tensor(sample.topk.ids[token]).long()][None],
        torch.tensor(sample.topk.logprobs[token])[None],
    )  # fmt: skip
    assert out.per_token[row, col].item() == pytest.approx(want.per_token.item(), rel=1e-4)
    report = run.update(batch)
    assert 0 < report.metrics["score_centering/head_mass"] < 1
    assert report.metrics["score_centering/tail_scale"] == pytest.approx(1.0, abs=1e-3)
    assert report.metrics["score_centering/logit_correction_l1"] < 1e-3  # on policy nothing is out of the band


def test_off_policy_the_correction_acts_and_training_differs():
    band = {"ratio_low": 0.999, "ratio_high": 1.001}
    losses = IcePop(**band), IcePop(**band, score_centering=True, score_centering_topk=6)
    policies = small(), small()
    plain, centred = (
        runner(model=policy, loss=loss, engine=MismatchedEngine(policy.module, bits=4))
        for policy, loss in zip(policies, losses, strict=True)
    )
    reports = plain.step(), centred.step()
    assert 0 < reports[0].metrics["rl/kept"] == reports[1].metrics["rl/kept"] < 1
    assert reports[1].metrics["score_centering/logit_correction_l1"] > 1e-3
    assert not torch.equal(weights(plain), weights(centred))


def test_evaluation_does_not_record_heads_and_draws_the_same():
    assert fingerprint(runner(loss=CENTRED).evaluate("test", 2).rows()) == fingerprint(
        runner().evaluate("test", 2).rows()
    )


def test_a_missing_head_names_sample_and_token():
    batch = (run := runner()).pack(run.collect())
    with pytest.raises(DataError, match=r"score centering: token \d+ of sample .env/train\d@\d/\d/agent#0. has no"):
        run.losses(batch, {"centred": CENTRED})
    other = runner(loss=CENTRED)
    with pytest.raises(DataError, match="has no top-k log-probabilities. Roll out with"):
        other.update(other.pack([s for g in run.collect() for s in g.samples]))
    assert torch.equal(weights(other), weights(runner())) and other.history == []
    mixed = [s for g in other.collect() for s in g.samples] + list(batch.samples)
    with pytest.raises(DataError, match="has no"):
        other.losses(other.pack(mixed))


def test_ce_samples_need_no_head():
    from prl.types import supervised

    run = runner(loss=CENTRED)
    samples = [s for g in run.collect() for s in g.samples]
    report = run.update(run.pack([*samples, supervised([65], [66, END])]))
    assert report.terms["ce"] > 0


def test_refusals():
    with pytest.raises(ValidationError, match="score_centering_topk=4 without score_centering=True"):
        IcePop(score_centering_topk=4)
    with pytest.raises(ValidationError, match="temperature=0 with topk_logprobs=4"):
        Sampling(temperature=0, topk_logprobs=4)
    with pytest.raises(ConfigError, match=r"topk_logprobs=4\) and IcePop\(score_centering_topk=6"):
        runner(loss=CENTRED, sampling=Sampling(topk_logprobs=4))
    with pytest.raises(ConfigError, match="belong in evaluate"):
        runner(loss=CENTRED, sampling=Sampling(top_p=0.9))
