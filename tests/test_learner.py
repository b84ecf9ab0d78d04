"""One optimiser step: what it reports, what it refuses; and the losses of a batch without a step."""

import asyncio
import math
import warnings

import pytest
import torch

from prl.config import IPO
from prl.errors import TrainingError
from prl.learner import batch_losses
from prl.losses import LossOutputs, TokenLoss
from prl.models import tiny
from prl.trajectories import pack
from prl.types import TrainingSample, supervised
from tests.helpers import run_learn

SMALL = dict(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=32, vocab_size=260, max_positions=64)


def rl(id, prompt, completion, advantage=1.0):
    mask = [0] * len(prompt) + [1] * len(completion)
    streams = {"advantages": [advantage * m for m in mask]}
    return TrainingSample(id, [*prompt, *completion], mask, [-5.5 * m for m in mask], **streams)


SAMPLES = [rl("x", [1, 2], [3]), rl("y", [4, 5, 6], list(range(10, 19)), -2.0), supervised([7], [8, 9], id="taught")]


def weights(policy):
    return torch.cat([p.detach().flatten().clone() for p in policy.parameters()])


def run(loss, *, max_tokens=99, samples=SAMPLES, lr=0.1):
    policy = tiny(**SMALL)
    before = weights(policy)
    batch = pack(samples, max_tokens=max_tokens)
    learned = run_learn(policy, torch.optim.SGD(policy.parameters(), lr=lr), batch, loss, 1.0)
    return learned, (weights(policy) - before).norm().item()


def test_a_step_reports_what_it_did():
    learned, moved = run(IPO())
    assert learned.loss == pytest.approx(sum(learned.terms.values()))
    assert set(learned.terms) == {"rl", "ce", "ref_kl"} and learned.terms["ref_kl"] == 0.0
    assert learned.terms["ce"] == pytest.approx(5.56, abs=0.1)  # about ln 260, of an untrained model
    assert set(learned.metrics) == {"rl/kept", "rl/clamped", "rl/mismatch_kl", "ce/kept"}
    assert moved == pytest.approx(0.1 * min(1.0, learned.grad_norm), rel=1e-3)


def marks(trainer, inference, advantages):
    """1 on the tokens of positive advantage."""
    return TokenLoss(-trainer, trainer < 0, {"positive": (advantages > 0).to(trainer.dtype)})


def mark(inputs):
    return LossOutputs(
        -inputs.trainer_logprobs.sum(), {"positive": (inputs.advantages[inputs.loss_mask] > 0).float().mean()}
    )


@pytest.mark.parametrize("max_tokens", [12, 99])
def test_metrics_are_token_means_and_those_of_a_sequence_loss_sequence_means(max_tokens):
    # 1 token of sample x, 9 of sample y, in one micro-batch or two: 1/10 of the tokens, 1/2 of the sequences.
    assert run(marks, max_tokens=max_tokens)[0].metrics["rl/positive"] == pytest.approx(0.1)
    assert run(mark, max_tokens=max_tokens)[0].metrics["rl/positive"] == pytest.approx(0.5)
    assert run(mark, max_tokens=max_tokens)[0].terms["rl"] == pytest.approx(run(marks)[0].terms["rl"])


def test_a_loss_that_is_no_number_names_sample_and_token_and_takes_no_step():
    def broken(trainer, inference, advantages):
        per_token = torch.where(torch.arange(len(trainer)) == 2, float("nan"), -trainer)
        return TokenLoss(per_token, trainer < 0, {})

    policy = tiny(**SMALL)
    before = weights(policy)
    text = (
        r"the rl loss is nan at token 5 of sample 'y' \(trainer_logprob -5\.\d+, inference_logprob -5.5, advantage -2\)"
    )
    with pytest.raises(TrainingError, match=text + "; 1 such tokens. No step was taken"):
        run_learn(policy, torch.optim.SGD(policy.parameters(), lr=0.1), pack(SAMPLES[1:], max_tokens=99), broken, 1.0)
    assert torch.equal(weights(policy), before)


def test_ratios_that_overflow_float32_are_capped_and_every_metric_stays_finite():
    streams = {"ref_logprobs": [0, -1, -1], "ref_kl_weights": [0, 1, 1], "advantages": [0, 1, 1]}
    rare = TrainingSample("rare", [1, 2, 3], [0, 1, 1], [0, -5.5, -120], **streams)
    learned, moved = run(IPO(), samples=[rare])
    assert learned.metrics["rl/clamped"] == learned.metrics["ref_kl/clamped"] == 0.5
    assert all(math.isfinite(x) for x in (*learned.terms.values(), *learned.metrics.values(), learned.grad_norm))
    assert moved == pytest.approx(0.1, rel=1e-3)


def ignores(inputs):
    return LossOutputs(-inputs.trainer_logprobs[inputs.loss_mask].sum(), {})


def reads(inputs):
    return LossOutputs(-(inputs.loss_weights * inputs.trainer_logprobs).sum(), {})


PROMPT_MEAN = [SAMPLES[0], SAMPLES[1].with_streams(rl_weights=[0] * 3 + [0.125] * 9)]
IGNORED = (
    r"loss 'ignores': rl weights are not all 0 or 1, and it does not read inputs.loss_weights. Its sum is divided by "
    r"N_rl = 2.125, the sum of the weights: multiply each token's loss by inputs.loss_weights"
)


def test_a_page_style_loss_that_ignores_its_weights_is_told_so():
    with pytest.warns(UserWarning, match=IGNORED):
        run(ignores, samples=PROMPT_MEAN)
    run(ignores)  # the weights of SAMPLES are 0 and 1: nothing to ignore
    learned, _ = run(reads, samples=PROMPT_MEAN)
    by_token, _ = run(lambda lp, mu, a: TokenLoss(-lp, lp < 0, {}), samples=PROMPT_MEAN)
    assert learned.terms["rl"] == pytest.approx(by_token.terms["rl"])


def test_the_warning_comes_before_the_step_and_also_from_the_losses_of_a_batch():
    policy = tiny(**SMALL)
    before, batch = weights(policy), pack(PROMPT_MEAN, max_tokens=12)
    with warnings.catch_warnings(), pytest.raises(UserWarning, match=IGNORED):
        warnings.simplefilter("error")
        run_learn(policy, torch.optim.SGD(policy.parameters(), lr=0.1), batch, ignores, 1.0)
    assert torch.equal(weights(policy), before)
    with pytest.warns(UserWarning, match=IGNORED) as caught:
        asyncio.run(batch_losses(policy, batch, {"mine": ignores, "reads": reads, "ipo": IPO()}))
    assert len(caught) == 1


def test_a_gradient_that_is_no_number_takes_no_step():
    def steep(trainer, inference, advantages):
        return TokenLoss((trainer - trainer.detach()).abs().sqrt(), trainer < 0, {})  # 0, with slope inf * 0

    policy = tiny(**SMALL)
    before = weights(policy)
    with pytest.raises(TrainingError, match="the gradient norm is nan; no step was taken. Largest term: ce, 5"):
        run_learn(policy, torch.optim.SGD(policy.parameters(), lr=0.1), pack(SAMPLES, max_tokens=99), steep, 1.0)
    assert torch.equal(weights(policy), before)


def test_batch_losses_stand_on_the_grid_of_all_rows():
    policy = tiny(**SMALL)
    batch = pack(SAMPLES, max_tokens=12)
    grids = asyncio.run(batch_losses(policy, batch, {"default": IPO(), "marks": marks}))
    assert len(batch.rows) > 1
    rl_grid = grids["marks"]["rl"]
    assert rl_grid.per_token.shape == (3, 12)
    for row, col in rl_grid.per_token.nonzero().tolist():
        id, token = batch.where(row, col)
        sample = next(s for s in SAMPLES if s.id == id)
        assert sample.members("rl")[token]
        ids = torch.tensor(sample.token_ids.tolist())[None]
        want = -policy.module(input_ids=ids).logits[0, token - 1].log_softmax(-1)[ids[0, token]]
        assert rl_grid.per_token[row, col].item() == pytest.approx(want.item(), abs=1e-5)
        assert rl_grid.metrics["positive"][row, col] == (id == "x")
    assert (rl_grid.per_token != 0).sum() == 10 and (grids["default"]["ce"].per_token != 0).sum() == 2
    assert not grids["default"]["rl"].per_token.requires_grad
