"""Tiny models: small, seeded, and free of side effects."""

import pytest
import torch

from prl.errors import ConfigError
from prl.models import tiny
from prl.renderers import ChatML

SMALL = dict(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=32, vocab_size=260)


def weights(**changes):
    return torch.cat([p.detach().flatten() for p in tiny(**SMALL | changes).parameters()])


def test_size_at_the_defaults():
    # 512*128 embeddings, 4 layers of (2*128*128 + 2*128*64 + 3*128*256 + 2*128 + 2*32), 128 for the last norm
    policy = tiny()
    assert sum(p.numel() for p in policy.parameters()) == 656_768
    assert policy.module.lm_head.weight is policy.module.model.embed_tokens.weight
    assert isinstance(policy.renderer, ChatML)


def test_the_seed_alone_decides_the_weights():
    first = weights(seed=3)
    torch.manual_seed(99)
    assert torch.equal(weights(seed=3), first)
    assert not torch.equal(weights(seed=4), first)


def test_the_global_generator_stays_as_it_was():
    before = torch.get_rng_state()
    tiny(**SMALL)
    assert torch.equal(torch.get_rng_state(), before)


def test_dtype_rounds_the_same_weights():
    assert torch.equal(weights(dtype=torch.bfloat16), weights().to(torch.bfloat16))


def test_every_id_of_the_tokenizer_has_a_finite_logit():
    policy = tiny(**SMALL)
    ids = policy.renderer.render_ids([{"role": "user", "content": "hi"}], add_generation_prompt=True)
    logits = policy.module(input_ids=torch.tensor([ids])).logits
    assert logits.shape == (1, len(ids), 260) and logits.isfinite().all()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (dict(hidden=18, heads=4), "got hidden=18, heads=4; need hidden to be a multiple"),
        (dict(heads=4, kv_heads=3), "got heads=4, kv_heads=3; need kv_heads to divide"),
        (dict(vocab_size=256), "got vocab_size=256; need at least the 259"),
    ],
)
def test_bad_sizes_are_refused(bad, message):
    with pytest.raises(ConfigError, match=message):
        tiny(**bad)
