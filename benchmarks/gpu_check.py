"""Whether prl does on a GPU what it does on a CPU, and how long its loss and a GRPO step take there.

    python -m benchmarks.gpu_check                        one GPU, under 6 minutes on an H200; no downloads, no vLLM
    python -m benchmarks.gpu_check --device cpu --small   the script itself, in a minute

Checks are asserted: loss and gradient of the head, a whole training step, the engine's
log-probabilities; float32 against the CPU, bfloat16 against float32. Timings are
printed: the loss path at vocab 151,936 against eager log_softmax, and a GRPO step of 64
rollouts on a model of Qwen3-0.6B's shape in bfloat16 (random weights).
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prl import AdamW, Runner, Sampling, models
from prl.engines import Request, TorchEngine
from prl.envs import ReasoningGym
from prl.losses import ipo
from prl.ops import fused_loss, linear_logprobs, next_token_logprobs

QWEN3_06B = dict(hidden=1024, layers=28, heads=16, kv_heads=8, intermediate=3072, vocab_size=151_936)
SMALL = dict(hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128, vocab_size=512)
HEAD, SMALL_HEAD = (8192, 1024, 151_936), (256, 64, 2048)


def relative(a: Tensor, b: Tensor) -> float:
    """Norm of the difference over the norm of b, on the CPU in float64."""
    a, b = a.detach().cpu().double(), b.detach().cpu().double()
    return float((a - b).norm() / b.norm())


def head_inputs(shape: tuple[int, int, int], device: str, dtype: torch.dtype) -> Any:
    """(hidden, weight, targets, streams), the same numbers on every device."""
    tokens, dim, vocab = shape
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, dim, generator=g)
    weight = torch.randn(vocab, dim, generator=g) * dim**-0.5
    targets, advantages = torch.randint(0, vocab, (tokens,), generator=g), torch.randn(tokens, generator=g)
    with torch.no_grad():
        old = linear_logprobs(hidden[:64], weight, targets[:64])[0].mean().expand(tokens).clone()
    leaves = [x.to(device, dtype).requires_grad_() for x in (hidden, weight)]
    return *leaves, targets.to(device), {"old": old.to(device), "advantages": advantages.to(device)}


def objective(logprobs: Tensor, streams: Mapping[str, Tensor]) -> tuple[Tensor, None]:
    return ipo(logprobs, streams["old"], streams["advantages"], eps=1.0).per_token.sum() / 1000, None


def fused(hidden: Tensor, weight: Tensor, targets: Tensor, streams: Any) -> Tensor:
    return fused_loss(hidden, weight, targets, streams, objective)[0]


def eager(hidden: Tensor, weight: Tensor, targets: Tensor, streams: Any) -> Tensor:
    logits = (hidden @ weight.T).float()
    return objective(logits.log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1), streams)[0]


def gradients(way: Callable[..., Tensor], inputs: Any) -> list[Tensor]:
    """Loss and gradients of hidden states and weight."""
    loss = way(*inputs)
    return [loss, *torch.autograd.grad(loss, inputs[:2])]


def check_head(device: str) -> None:
    shape = (512, 128, 8192)
    want = gradients(eager, head_inputs(shape, "cpu", torch.float32))
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 3e-2)):
        worst = max(map(relative, gradients(fused, head_inputs(shape, device, dtype)), want))
        print(f"head, {dtype}: fused_loss on {device} against eager float32 on the CPU: {worst:.1e}")
        assert worst < tolerance


def step_on(device: str, samples: Any = None) -> tuple[Any, Any, Tensor]:
    """(samples, report, weights) of one step of a small model; given samples, it trains on those."""
    policy = models.tiny(**SMALL)
    policy.module.to(device)
    env = ReasoningGym("spell_backward", size=400, min_word_len=3, max_word_len=4)
    run = Runner(policy, env, optimizer=AdamW(lr=1e-3), sampling=Sampling(max_tokens=16), batch_size=64)
    samples = samples or [s for group in run.collect() for s in group.samples]
    report = run.update(run.pack(samples))
    return samples, report, torch.cat([p.detach().flatten().cpu() for p in policy.parameters()])


def check_step(device: str) -> None:
    samples, on_cpu, cpu_weights = step_on("cpu")
    _, on_device, weights = step_on(device, samples)
    print(f"step: gradient norm {on_device.grad_norm:.6f} on {device}, {on_cpu.grad_norm:.6f} on the CPU")
    assert abs(on_device.grad_norm / on_cpu.grad_norm - 1) < 1e-3 and relative(weights, cpu_weights) < 1e-3


def check_engine(device: str) -> None:
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.2)):
        policy = models.tiny(**SMALL, dtype=dtype)
        policy.module.to(device)
        sampling = Sampling(max_tokens=24, stop=(257,))
        prompts = [np.arange(5 + i % 7, dtype=np.int32) + i for i in range(32)]
        requests = [Request(p, sampling, ("check", i)) for i, p in enumerate(prompts)]
        worst = 0.0
        for prompt, done in zip(prompts, asyncio.run(TorchEngine(policy.module).generate(requests)), strict=True):
            ids = torch.tensor(np.concatenate([prompt, done.token_ids]), device=device).long()[None]
            with torch.no_grad():
                fresh = next_token_logprobs(policy.module(ids).logits, ids)[0, len(prompt) :]
            worst = max(worst, float((fresh.cpu() - torch.tensor(done.logprobs)).abs().max()))
        print(f"engine, {dtype}: sampled log-probabilities against a fresh forward: {worst:.1e}")
        assert worst < tolerance


def clock(device: str, work: Callable[[], Any], rounds: int = 3) -> tuple[float, float]:
    """(seconds, GB at the peak) of the fastest of some rounds after the first."""
    taken, sync = [], torch.cuda.synchronize if device == "cuda" else lambda: None
    for _ in range(rounds + 1):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        sync()
        started = time.perf_counter()
        work()
        sync()
        taken.append(time.perf_counter() - started)
    return min(taken[1:]), torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")


def time_head(device: str, shape: tuple[int, int, int]) -> None:
    inputs = head_inputs(shape, device, torch.bfloat16)
    for name, way in (("fused_loss", fused), ("eager", eager)):
        seconds, peak = clock(device, lambda way=way: gradients(way, inputs))
        print(f"loss and gradients, (tokens, dim, vocab) = {shape}, bfloat16, {name}: {seconds:.3f} s, {peak:.1f} GB")


def time_step(device: str, shape: dict[str, int], tokens: int) -> None:
    policy = models.tiny(**shape, dtype=torch.bfloat16)
    policy.module.to(device)
    env = ReasoningGym("spell_backward", size=400)
    run = Runner(policy, env, advantage=lambda r: torch.linspace(-1, 1, len(r)), batch_size=64,
                 sampling=Sampling(max_tokens=tokens), optimizer=AdamW(lr=1e-6))  # fmt: skip
    groups = run.collect()
    rollout, _ = clock(device, run.collect, rounds=1)
    batch = run.pack(groups)
    update, peak = clock(device, lambda: run.update(batch, again=bool(run.history)), rounds=2)
    drawn = sum(len(s.completion_ids) for g in groups for t in g.traces for s in t.steps)
    size = sum(p.numel() for p in policy.parameters()) / 1e6
    print(f"GRPO step, {size:,.0f}M parameters, bfloat16, 64 rollouts: rollout {rollout:.2f} s "
          f"({drawn / rollout:,.0f} tokens/s), update {update:.2f} s, {peak:.1f} GB")  # fmt: skip


def main(device: str, small: bool) -> None:
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}")
    started = time.perf_counter()
    check_head(device)
    check_step(device)
    check_engine(device)
    time_head(device, SMALL_HEAD if small else HEAD)
    time_step(device, SMALL if small else QWEN3_06B, 16 if small else 128)
    print(f"all checks hold; {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="small shapes")
    options = parser.parse_args()
    main(options.device, options.small)
