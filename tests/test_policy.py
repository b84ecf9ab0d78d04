"""The trainable model: its log-probabilities, its mask, its optimiser step."""

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from prl.config import AdamW
from prl.errors import ConfigError
from prl.models import tiny
from prl.ops import next_token_logprobs
from prl.policy import Policy, attention_mask, build_optimizer, optimizer_step
from prl.trajectories import pack
from prl.types import TrainingSample

SMALL = dict(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=32, vocab_size=260, max_positions=64)


def gemma():
    """A model whose logits are soft-capped after the head, and whose layers see a window by turns."""
    config = Gemma2Config(
        vocab_size=260, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=32, sliding_window=4, max_position_embeddings=64, final_logit_softcapping=0.5,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Gemma2ForCausalLM(config)
    helper = tiny(**SMALL)
    return Policy(module, helper.tokenizer, helper.renderer)


def rl(id, prompt, completion, **streams):
    mask = [0] * len(prompt) + [1] * len(completion)
    return TrainingSample(id, [*prompt, *completion], mask, [-1.0 * m for m in mask], advantages=mask, **streams)


SAMPLES = [
    rl("x", [5, 6, 7], [8, 9], temperatures=[1, 1, 1, 0.5, 0.5]),
    rl("y", [5, 6, 7], [10]),
    rl("z", [11, 12], [13, 14, 15, 16]),
]


@pytest.mark.parametrize("make", [lambda: tiny(**SMALL), gemma], ids=["plain head", "soft-capped head"])
def test_log_probabilities_are_the_whole_model_s(make):
    policy, seen = make(), []

    def look(logprobs, streams):
        seen.extend(zip(streams["sample"].tolist(), streams["token"].tolist(), logprobs.tolist(), strict=True))
        return logprobs.sum(), "aux"

    batch = pack(SAMPLES, max_tokens=99, share_prompts=policy.full_attention)
    for rows in batch.rows:
        loss, aux = policy(rows, look)
    assert aux == "aux" and loss.requires_grad and loss.ndim == 0
    assert len(seen) == 2 + 1 + 4  # trained tokens only
    for index, token, logprob in seen:
        sample = batch.samples[index]
        ids = torch.tensor(sample.token_ids.tolist())[None]
        temperature = 0.5 if sample.id == "x" else 1.0
        whole = next_token_logprobs(policy.module(input_ids=ids).logits, ids, temperature=temperature)
        assert logprob == pytest.approx(whole[0, token].item(), abs=1e-5)


def test_what_the_objective_receives():
    policy = tiny(**SMALL, dtype=torch.bfloat16)
    (rows,) = pack(SAMPLES[:2], max_tokens=99).rows

    def look(logprobs, streams):
        assert logprobs.dtype == torch.float32  # at least, whatever the model's
        assert streams["inference_logprobs"].tolist() == streams["advantages"].neg().tolist() == [-1, -1, -1]
        assert streams["rl_weights"].tolist() == [1, 1, 1]
        assert (streams["sample"].tolist(), streams["token"].tolist()) == ([0, 0, 1], [3, 4, 3])
        return logprobs.sum(), None

    policy(rows, look)


def test_attention_mask_by_hand():
    # A prompt of 2, two continuations of 2 and 1; then a row of two blocks and padding.
    rows = pack([rl("x", [1, 2], [3, 4]), rl("y", [1, 2], [5])], max_tokens=99).rows[0]
    seen = attention_mask(rows, torch.float32) == 0
    assert seen.shape == (1, 1, 5, 5)
    assert seen[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],  # not 3 and 4
    ]
    blocks = pack([rl("x", [1], [2]), rl("y", [3], [4]), rl("z", [5], [6, 7, 8, 9])], max_tokens=99, row_tokens=5)
    seen = attention_mask(blocks.rows[0], torch.float32)[1, 0] == 0
    assert seen[:4, :4].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert seen.any(-1).all()  # padding sees itself, so that its softmax exists


def test_context_and_full_attention():
    assert (tiny(**SMALL).context, tiny(**SMALL).full_attention) == (64, True)
    assert not gemma().full_attention


def test_a_tokenizer_that_the_model_cannot_embed_is_refused():
    policy = tiny(**SMALL)
    policy.module.resize_token_embeddings(200, mean_resizing=False)
    with pytest.raises(ConfigError, match="the tokenizer has 259 tokens, the model embeds 200"):
        Policy(policy.module, policy.tokenizer, policy.renderer)


def test_dropout_is_off():
    assert not any(module.training for module in tiny(**SMALL).module.modules())


def grown(policy, size):
    """Gradients of total norm `size`."""
    for p in policy.parameters():
        p.grad = torch.ones_like(p)
    norm = sum(p.numel() for p in policy.parameters()) ** 0.5
    for p in policy.parameters():
        p.grad *= size / norm


@pytest.mark.parametrize(("size", "used"), [(4.0, 1.0), (0.5, 0.5)])
def test_the_gradient_is_clipped_in_total_norm_and_cleared(size, used):
    policy = tiny(**SMALL)
    before = [p.detach().clone() for p in policy.parameters()]
    grown(policy, size)
    assert optimizer_step(policy, torch.optim.SGD(policy.parameters(), lr=1.0), 1.0) == pytest.approx(size, rel=1e-5)
    moved = torch.cat([(a - b.detach()).flatten() for a, b in zip(before, policy.parameters(), strict=True)])
    assert moved.norm().item() == pytest.approx(used, rel=1e-4)
    assert all(p.grad is None for p in policy.parameters())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_changes_no_weight(bad):
    policy = tiny(**SMALL)
    optimizer = build_optimizer(policy, AdamW(lr=0.1))
    before = [p.detach().clone() for p in policy.parameters()]
    grown(policy, 1.0)
    next(policy.parameters()).grad[0, 0] = bad
    assert not torch.isfinite(torch.tensor(optimizer_step(policy, optimizer, 1.0)))
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    assert all(p.grad is None for p in policy.parameters()) and not optimizer.state


def test_settings_reach_the_optimiser_and_frozen_weights_do_not():
    policy = tiny(**SMALL)
    frozen = next(policy.parameters()).requires_grad_(False)
    (group,) = build_optimizer(policy, AdamW(lr=0.25, betas=(0.5, 0.75), weight_decay=0.125)).param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.25, (0.5, 0.75), 0.125)
    assert frozen not in set(group["params"]) and len(group["params"]) == len(list(policy.parameters())) - 1
