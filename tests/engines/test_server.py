"""A real vLLM server on a CPU against the trainer's own forward, and its weights while requests run."""

import asyncio

import httpx
import numpy as np
import pytest

from prl.config import IPO, AdamW, IcePop, Sampling
from prl.engines.base import Request
from prl.engines.server import ServerEngine
from prl.errors import EngineError
from prl.runner import Runner
from tests.engines.live import (
    CONTEXT,
    MAX_LOGPROBS,
    NAME,
    STOPS,
    VOCAB,
    distribution,
    model,
    needs_vllm,
    quiet,
    trainer,
)
from tests.helpers import PlayEnv, one_reply

pytestmark = [needs_vllm, quiet]
POLICY = model()
TOPK = MAX_LOGPROBS - 2


def request(prompt, key=0, **sampling):
    return Request(np.array(prompt, np.int32), Sampling(**sampling), ("test", key))


def prompts(n, longest=60):
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCAB, rng.integers(1, longest)).tolist() for _ in range(n)]


def generate(engine, *requests):
    return asyncio.run(engine.generate(requests))


def score(engine, *sequences):
    return asyncio.run(engine.score([np.array(s, np.int32) for s in sequences]))


def test_what_is_sampled_is_the_trainers_distribution(server):
    engine = ServerEngine(server, NAME)
    asked = [
        request(
            p,
            i,
            temperature=(0.5, 1.0, 1.7)[i % 3],
            max_tokens=1 + i % 24,
            stop=STOPS,
            topk_logprobs=TOPK if i % 2 else None,
        )
        for i, p in enumerate(prompts(36))
    ]
    done = generate(engine, *asked)
    for r, c in zip(asked, done, strict=True):
        p, ids = len(r.prompt_ids), [*r.prompt_ids, *c.token_ids]
        expected = trainer(POLICY.module, ids, r.sampling.temperature)[p:]
        np.testing.assert_allclose(c.logprobs, expected, atol=1e-4)
        *body, last = c.token_ids.tolist()
        assert not set(body) & set(STOPS) and c.finish_reason == ("stop" if last in STOPS else "length")
        assert c.finish_reason == "stop" or len(c.token_ids) == r.sampling.max_tokens
        assert (c.topk is None) == (r.sampling.topk_logprobs is None) and c.version == 0
        if c.topk is not None:
            rows = distribution(POLICY.module, ids, r.sampling.temperature)[p - 1 : -1]
            head = np.argsort(-rows, -1, kind="stable")[:, :TOPK]
            assert c.topk.ids.tolist() == head.tolist()
            np.testing.assert_allclose(c.topk.logprobs, np.take_along_axis(rows, head, -1), atol=1e-4)
    assert {c.finish_reason for c in done} == {"stop", "length"}


def test_scores_limits_and_keys(server):
    engine = ServerEngine(server, NAME)
    sequences = [[], [7], *prompts(9), list(range(CONTEXT - 1))]
    for ids, scored in zip(sequences, score(engine, *sequences), strict=True):
        assert scored.shape == (len(ids),) and scored.dtype == np.float32
        if ids:
            np.testing.assert_allclose(scored, trainer(POLICY.module, ids), atol=1e-4)

    (cut,) = generate(engine, request([1] * (CONTEXT - 12), max_tokens=64))
    assert (len(cut.token_ids), cut.finish_reason) == (12, "length")
    (greedy,) = generate(engine, request([65, 66], max_tokens=5, temperature=0))
    full = distribution(POLICY.module, [65, 66, *greedy.token_ids])
    assert greedy.token_ids.tolist() == full[1:-1].argmax(-1).tolist() and greedy.logprobs.tolist() == [0.0] * 5
    (best,) = generate(engine, request([65, 66], max_tokens=1, top_k=1))
    assert best.logprobs.tolist() == [0.0] and best.token_ids[0] == greedy.token_ids[0]

    one, twin, other = generate(engine, *(request([65], key, max_tokens=12) for key in (1, 1, 2)))
    assert one.token_ids.tolist() == twin.token_ids.tolist() != other.token_ids.tolist()


def test_what_the_server_refuses(server):
    engine = ServerEngine(server, NAME)
    with pytest.raises(EngineError, match=f"status 400: .*Requested sample logprobs of {TOPK + 3}, which"):
        generate(engine, request([65], topk_logprobs=TOPK + 1))
    with pytest.raises(EngineError, match="status 400: .*Token id 300 is out of vocabulary"):
        generate(engine, request([65, VOCAB]))
    with pytest.raises(EngineError, match=r"/models: no max_model_len for 'another'; it serves \['small'\]"):
        generate(ServerEngine(server, "another"), request([65]))


def test_new_weights_are_exact_and_no_prompt_of_the_old_ones_is_left(policy_server):
    prompt, other = [65] * 200, model(seed=1)  # longer than a block of the prefix cache
    (before,) = generate(policy_server, request(prompt, max_tokens=8))
    policy_server.load_weights(other.module.named_parameters(), 5)
    (after,) = generate(policy_server, request(prompt, max_tokens=8))
    assert (before.version, after.version) == (0, 5)
    np.testing.assert_allclose(before.logprobs, trainer(POLICY.module, [*prompt, *before.token_ids])[200:], atol=1e-4)
    np.testing.assert_allclose(after.logprobs, trainer(other.module, [*prompt, *after.token_ids])[200:], atol=1e-4)
    np.testing.assert_allclose(score(policy_server, prompt)[0], trainer(other.module, prompt), atol=1e-4)


def running(server):
    """Requests that the server is working on."""
    metrics = httpx.get(server.removesuffix("/v1") + "/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in metrics if line.startswith("vllm:num_requests_running"))


def test_weights_that_change_while_requests_run(server, policy_server):
    """Those in flight keep the version at sending; a later one has no part of the old weights, cached prompt or not."""
    other, prompt = model(seed=1), [65] * 140

    async def updated():
        asked = [request(prompt, i, max_tokens=100) for i in range(4)]
        flying = asyncio.create_task(policy_server.generate(asked))
        while await asyncio.to_thread(running, server) < 4 and not flying.done():
            await asyncio.sleep(0.01)
        await asyncio.to_thread(policy_server.load_weights, other.module.named_parameters(), 3)
        late = await policy_server.generate([request(prompt, max_tokens=4)])
        return await flying, late

    flying, (late,) = asyncio.run(updated())
    assert [c.version for c in flying] == [0] * 4 and late.version == 3
    np.testing.assert_allclose(late.logprobs, trainer(other.module, [*prompt, *late.token_ids])[140:], atol=1e-4)


@pytest.mark.parametrize(
    "loss", [IPO(), IcePop(score_centering=True, score_centering_topk=TOPK)], ids=["ipo", "centered"]
)
def test_a_run(policy_server, loss):
    """What samples and what trains agree before and after an update: every ratio is 1."""
    settings = dict(group_size=4, batch_size=8, sampling=Sampling(max_tokens=8), optimizer=AdamW(lr=1e-3))
    run = Runner(model(), PlayEnv(one_reply), engine=policy_server, loss=loss, **settings)
    for version in range(3):
        report = run.step()
        assert report.version == version + 1 and abs(report.metrics["rl/mismatch_kl"]) < 1e-6
    assert policy_server.version == 2
