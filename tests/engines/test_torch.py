"""The embedded engine says what the trainer would say: tokens, log-probabilities, limits, prefill."""

import asyncio

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import GPT2Config, GPT2LMHeadModel

from prl.config import Sampling
from prl.engines.base import Request
from prl.engines.sampling import sample
from prl.engines.torch import TorchEngine
from prl.errors import EngineError
from prl.ops import next_token_logprobs
from prl.randomness import uniforms
from tests.helpers import END, small

POLICY = small(hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128)
STOPS = (END, *range(40))  # a random model says one of these after about six tokens
DRAWS = 20_000


def generate(requests, engine=None):
    return asyncio.run((engine or TorchEngine(POLICY.module)).generate(requests))


def request(prompt, key=0, **sampling):
    return Request(np.array(prompt, np.int32), Sampling(**sampling), ("test", key))


def prompts(n, longest=30):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, rng.integers(1, longest)).tolist() for _ in range(n)]


@torch.no_grad()
def trainer(ids, temperature=1.0, module=POLICY.module):
    """log p(token t | tokens < t) from one fresh forward of one sequence."""
    ids = torch.tensor(np.asarray(ids)[None], dtype=torch.long)
    return next_token_logprobs(module(input_ids=ids, use_cache=False).logits, ids, temperature=temperature)[0].numpy()


@torch.no_grad()
def next_logits(ids):
    return POLICY.module(input_ids=torch.tensor([ids])).logits[0, -1]


def assert_frequencies(tokens, probabilities):
    """Chi-square against the exact distribution; bins below 5 expected draws together."""
    n = len(tokens)
    seen, expected = np.bincount(tokens, minlength=len(probabilities)), n * np.asarray(probabilities, np.float64)
    rare = expected < 5
    assert seen[expected == 0].sum() == 0
    bins = [*seen[~rare], seen[rare].sum()], [*expected[~rare], expected[rare].sum()]
    keep = np.array(bins[1]) > 0
    seen, expected = (np.array(b, np.float64)[keep] for b in bins)
    assert len(seen) == 1 or chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_log_probabilities_are_the_trainers(batch, temperature):
    asked = [
        request(p, i, temperature=temperature, max_tokens=1 + i % 12, stop=STOPS) for i, p in enumerate(prompts(batch))
    ]
    for r, c in zip(asked, generate(asked), strict=True):
        expected = trainer([*r.prompt_ids, *c.token_ids], temperature)[len(r.prompt_ids) :]
        np.testing.assert_allclose(c.logprobs, expected, atol=1e-5)
        assert c.token_ids.dtype == np.int32 and c.logprobs.dtype == np.float32


def test_one_call_may_mix_temperatures():
    asked = [request([65, 66, 67], i, temperature=t, max_tokens=6) for i, t in enumerate((0.5, 1.0, 1.7, 0.0))]
    for r, c in zip(asked[:3], generate(asked), strict=False):
        expected = trainer([*r.prompt_ids, *c.token_ids], r.sampling.temperature)[3:]
        np.testing.assert_allclose(c.logprobs, expected, atol=1e-5)


def test_it_ends_at_its_stop_token_or_its_limit():
    asked = [request(p, i, max_tokens=1 + i % 12, stop=STOPS) for i, p in enumerate(prompts(64))]
    done = generate(asked)
    for r, c in zip(asked, done, strict=True):
        *body, last = c.token_ids.tolist()
        assert not set(body) & set(STOPS)
        assert c.finish_reason == ("stop" if last in STOPS else "length")
        assert c.finish_reason == "stop" or len(c.token_ids) == r.sampling.max_tokens
    assert {c.finish_reason for c in done} == {"stop", "length"}


def test_the_context_is_a_limit():
    policy = small(max_positions=32)
    asked = [request([1] * n, n, max_tokens=64) for n in (20, 30, 31)]
    done = generate(asked, TorchEngine(policy.module))
    assert [(len(c.token_ids), c.finish_reason) for c in done] == [(12, "length"), (2, "length"), (1, "length")]


def test_finished_rows_that_wait_do_not_run_out_of_positions():
    config = GPT2Config(vocab_size=260, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    module = GPT2LMHeadModel(config).eval()
    asked = [request([1] * 14, 0), *(request([1, 2], i) for i in range(1, 16))]
    done = generate(asked, TorchEngine(module))
    assert [len(c.token_ids) for c in done] == [2] + 15 * [14]
    for r, c in zip(asked, done, strict=True):
        expected = trainer([*r.prompt_ids, *c.token_ids], module=module)[len(r.prompt_ids) :]
        np.testing.assert_allclose(c.logprobs, expected, atol=1e-5)


def test_frequencies_of_sample():
    logits = torch.linspace(-3, 3, 12)
    u = torch.from_numpy(uniforms(("frequencies",), DRAWS))
    for temperature in (0.5, 1.0, 1.7):
        tokens, logprobs, _ = sample(logits.expand(DRAWS, 12), u, torch.full((DRAWS,), temperature))
        probabilities = (logits / temperature).softmax(-1)
        assert_frequencies(tokens.numpy(), probabilities)
        torch.testing.assert_close(logprobs, probabilities.log()[tokens])


def test_frequencies_of_the_engine():
    done = generate([request([65, 66], i, max_tokens=1) for i in range(DRAWS)])
    assert_frequencies(np.array([c.token_ids[0] for c in done]), next_logits([65, 66]).softmax(-1).numpy())


@pytest.mark.parametrize(("top_p", "top_k"), [(0.5, None), (1.0, 3), (0.9, 2), (0.05, None)])
def test_truncated_sampling_renormalises(top_p, top_k):
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])  # 0.636, 0.234, 0.086, 0.032, 0.012
    kept = {(0.5, None): 1, (1.0, 3): 3, (0.9, 2): 2, (0.05, None): 1}[top_p, top_k]
    probabilities = torch.zeros(5)
    probabilities[:kept] = logits[:kept].softmax(-1)
    u = torch.from_numpy(uniforms(("truncated",), DRAWS))
    tokens, logprobs, _ = sample(logits.expand(DRAWS, 5), u, torch.ones(DRAWS), top_p=top_p, top_k=top_k)
    assert_frequencies(tokens.numpy(), probabilities)
    torch.testing.assert_close(logprobs, probabilities[tokens].log())


def test_the_engine_truncates_each_request_by_its_own_setting():
    top = next_logits([65]).topk(2)
    asked = [request([65], i, max_tokens=1, top_k=2 if i % 2 else None) for i in range(200)]
    done = generate(asked)
    assert {int(c.token_ids[0]) for c in done[1::2]} == set(top.indices.tolist())
    assert len({int(c.token_ids[0]) for c in done[::2]}) > 20
    expected = dict(zip(top.indices.tolist(), top.values.log_softmax(-1).tolist(), strict=True))
    assert all(abs(float(c.logprobs[0]) - expected[int(c.token_ids[0])]) < 1e-5 for c in done[1::2])


def test_greedy_takes_the_likeliest_token_with_log_probability_zero():
    (done,) = generate([request([65, 66], max_tokens=5, temperature=0)])
    ids = [65, 66]
    for token in done.token_ids.tolist():
        assert token == int(next_logits(ids).argmax())
        ids.append(token)
    assert done.logprobs.tolist() == [0.0] * 5


def test_extreme_uniforms_draw_existing_tokens():
    logits = torch.tensor([[-100.0, 0.0, 0.0, -100.0]]).expand(2, 4)
    tokens, logprobs, _ = sample(logits, torch.tensor([0.0, 1 - 2**-24]), torch.ones(2))
    assert logprobs.isfinite().all() and int(tokens[1]) in (1, 2)


def test_a_shared_prompt_is_prefilled_once():
    engine, cells = TorchEngine(POLICY.module), []
    engine._module.register_forward_pre_hook(lambda m, a, kw: cells.append(kw["input_ids"].numel()), with_kwargs=True)
    generate([request([65] * 10 if i < 6 else [66] * 4, i, max_tokens=3) for i in range(8)], engine)
    assert cells == [2 * 10, 8, 8]  # two prompts, padded to the longer one; then one token for each request


def test_same_requests_same_bits_and_keys_decide():
    asked = [request(p, i, max_tokens=8) for i, p in enumerate(prompts(7))]
    first, second = generate(asked), generate(asked)
    for a, b in zip(first, second, strict=True):
        assert a.token_ids.tobytes() == b.token_ids.tobytes() and a.logprobs.tobytes() == b.logprobs.tobytes()
    twins = generate([request([65], key, max_tokens=8) for key in (1, 1, 2)])
    assert twins[0].token_ids.tolist() == twins[1].token_ids.tolist() != twins[2].token_ids.tolist()


def test_score_is_the_trainers():
    sequences = [np.array(p, np.int32) for p in prompts(9)]
    for ids, scored in zip(sequences, asyncio.run(TorchEngine(POLICY.module).score(sequences)), strict=True):
        np.testing.assert_allclose(scored, trainer(ids), atol=1e-5)


def test_load_weights_is_exact_and_nothing_else_changes_the_engine():
    other, policy = small(seed=1), small()
    engine = TorchEngine(policy.module)
    before = generate([request([65], max_tokens=8)], engine)[0]
    with torch.no_grad():
        policy.module.load_state_dict(other.module.state_dict())
    assert generate([request([65], max_tokens=8)], engine)[0].logprobs.tobytes() == before.logprobs.tobytes()
    engine.load_weights(other.module.named_parameters(), 5)
    got, expected = (generate([request([65], max_tokens=8)], e)[0] for e in (engine, TorchEngine(other.module)))
    assert got.logprobs.tobytes() == expected.logprobs.tobytes() != before.logprobs.tobytes()
    assert (before.version, got.version) == (0, 5)


def test_load_weights_names_what_does_not_fit():
    engine, given = TorchEngine(POLICY.module), dict(POLICY.module.named_parameters())
    name = next(iter(given))
    with pytest.raises(EngineError, match=f"1 names differ from the module's, first '{name}'"):
        engine.load_weights(((k, v) for k, v in given.items() if k != name), 1)
    with pytest.raises(EngineError, match=rf"1 shapes differ from the module's, first '{name}': \[1, 64\], need \[260"):
        engine.load_weights({**given, name: given[name][:1]}.items(), 1)
    assert engine.version == 0


ERRORS = {
    "empty prompt": (request([]), r"the prompt has 0 tokens; the model's context is 256, need 1 to 255"),
    "prompt too long": (request([1] * 256), r"the prompt has 256 tokens; the model's context is 256, need 1 to 255"),
}


@pytest.mark.parametrize(("asked", "text"), ERRORS.values(), ids=ERRORS)
def test_what_it_cannot_do_is_an_error(asked, text):
    with pytest.raises(EngineError, match=text):
        generate([asked])
