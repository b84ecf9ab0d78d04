"""The functional core against its peers, in one process and one run: a table with ratios, losing rows included.

    python -m benchmarks.core                      everything: about 15 minutes on 2 cores
    python -m benchmarks.core --only by_group      head, head_large, centred, interleave or by_group

Every row is a whole computation, taken in turn with the others of its table, round by
round; seconds are medians, `prl / it` is the median over rounds of prl's seconds over
the row's. Peers live in `.venv-peers`, see `benchmarks/_peers.py`.

    head         forward and backward of IPO's loss from hidden states (2048 tokens, dim 576, vocab 49,152)
    head_large   the same at (1024, 1024, 151,936)
                 `three products` are the matrix products alone that any exact gradient needs. `memory` is the
                 peak resident set above the inputs, without the gradients of hidden states and weight, measured
                 in a process of its own.
    centred      `fused_loss` with icepop and with icepop_centered, 128 candidates, at head's shape
    interleave   traces that hold the extension property, against verifiers' graph of the same calls
    by_group     group baselines of ragged groups in random order, against verl's two and segment sums by hand
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._peers import ROOT, environment, verifiers_calls, verifiers_samples
from prl.advantages import by_group, group_norm
from prl.losses import icepop, icepop_centered, ipo
from prl.ops import fused_loss, linear_logprobs
from prl.trajectories import interleave
from prl.types import Step

HEAD, HEAD_LARGE, TOPK = (2048, 576, 49_152), (1024, 1024, 151_936), 128
Work = Callable[[], Any]


class Head:
    """Random hidden states, head and streams of a shape, and each way from them to a loss with its gradients."""

    def __init__(self, tokens: int, dim: int, vocab: int) -> None:
        g = torch.Generator().manual_seed(0)
        self.hidden = torch.randn(tokens, dim, generator=g).requires_grad_()
        self.weight = (torch.randn(vocab, dim, generator=g) * dim**-0.5).requires_grad_()
        self.targets = torch.randint(0, vocab, (tokens,), generator=g)
        with torch.no_grad():
            inference = linear_logprobs(self.hidden, self.weight, self.targets)[0]
        inference = inference + 0.1 * torch.randn(tokens, generator=g)
        self.streams = {"inference": inference, "advantages": torch.randn(tokens, generator=g)}

    def loss(self, logprobs: Tensor, streams: Mapping[str, Tensor]) -> tuple[Tensor, None]:
        return ipo(logprobs, streams["inference"], streams["advantages"]).per_token.sum() / len(self.targets), None

    def fused(self) -> None:
        fused_loss(self.hidden, self.weight, self.targets, self.streams, self.loss)[0].backward()

    def linear(self) -> None:
        self.loss(linear_logprobs(self.hidden, self.weight, self.targets)[0], self.streams)[0].backward()

    def eager(self) -> None:
        logprobs = (self.hidden @ self.weight.T).log_softmax(-1).gather(-1, self.targets[:, None]).squeeze(-1)
        self.loss(logprobs, self.streams)[0].backward()

    def trl(self) -> None:
        from trl.trainer.utils import selective_log_softmax

        logits = self.hidden @ self.weight.T
        self.loss(selective_log_softmax(logits[None], self.targets[None])[0], self.streams)[0].backward()

    def verl(self) -> None:
        from verl.utils.experimental.torch_functional import FusedLinearForPPO

        logprobs, _ = FusedLinearForPPO()(self.hidden[None], self.weight, self.targets[None])
        self.loss(logprobs[0], self.streams)[0].backward()

    def products(self) -> None:
        with torch.no_grad():
            logits = self.hidden @ self.weight.T
            self.hidden.grad, self.weight.grad = logits @ self.weight, logits.T @ self.hidden

    def gradients(self, way: str) -> tuple[Tensor, Tensor]:
        """Fresh gradients of hidden states and weight by one of the ways."""
        self.hidden.grad = self.weight.grad = None
        getattr(self, way)()
        assert self.hidden.grad is not None and self.weight.grad is not None
        return self.hidden.grad, self.weight.grad


WAYS = {
    "prl fused_loss": "fused", "prl linear_logprobs": "linear", "eager log_softmax + gather": "eager",
    "TRL selective_log_softmax": "trl", "verl FusedLinearForPPO": "verl", "three products": "products",
}  # fmt: skip


def head(shape: tuple[int, int, int], rounds: int) -> None:
    """Seconds and memory of every way to one loss; their gradients agree."""
    work = Head(*shape)
    exact = work.gradients("eager")
    for way in ("fused", "linear", "trl", "verl"):
        for a, b in zip(work.gradients(way), exact, strict=True):
            assert (a - b).norm() <= 1e-5 * b.norm(), f"{way} computes another gradient"
    seconds = alternate({name: lambda way=way: work.gradients(way) for name, way in WAYS.items()}, rounds)
    memory = {name: f"{peak_memory(way, shape) / 2**20:,.0f} MB" for name, way in WAYS.items()}
    print(table(f"head, forward and backward, (tokens, dim, vocab) = {shape}", seconds, "prl fused_loss", memory))
    for name in list(WAYS)[:2]:
        best = min((other for other in list(WAYS)[2:5]), key=lambda other: median(seconds[other]))
        ratio, bare = (paired(seconds[name], seconds[other]) for other in (best, "three products"))
        print(f"  {name}: {ratio:.2f} of the best peer ({best}), {bare:.2f} of three products")


def peak_memory(way: str, shape: tuple[int, int, int]) -> int:
    """Bytes by which the resident set peaks above the inputs, without the two gradients, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.core", "--memory", json.dumps([way, *shape])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def measure_memory(way: str, *shape: int) -> None:
    work = Head(*shape)
    Head(8, 8, 64).gradients(way)  # imports and thread pools are not the method's
    status = Path("/proc/self/status")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _kilobytes(status, "VmRSS")
    hidden, weight = work.gradients(way)
    print(1024 * (_kilobytes(status, "VmHWM") - before) - hidden.nbytes - weight.nbytes)


def _kilobytes(status: Path, name: str) -> int:
    return int(next(line for line in status.read_text().splitlines() if line.startswith(name)).split()[1])


def centred(shape: tuple[int, int, int], rounds: int) -> None:
    """What score centering adds to the fused pass."""
    work = Head(*shape)
    with torch.no_grad():
        ids = torch.cat([(h @ work.weight.T).topk(TOPK).indices for h in work.hidden.split(256)])
        topk = linear_logprobs(work.hidden, work.weight, work.targets, topk_ids=ids)[1]
    assert topk is not None
    noise = 0.1 * torch.randn(topk.shape, generator=torch.Generator().manual_seed(1))
    streams = {**work.streams, "topk": topk + noise}

    def plain(lp: Tensor, s: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
        out = icepop(lp, s["inference"], s["advantages"])
        return out.per_token.sum() / len(work.targets), out.kept

    def with_head(lp: Tensor, s: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
        out = icepop_centered(lp, s["inference"], s["advantages"], s["topk_trainer_logprobs"], s["topk"])
        return out.per_token.sum() / len(work.targets), (out.kept, out.metrics)

    def run(objective: Any, **more: Any) -> Work:
        def once() -> None:
            work.hidden.grad = work.weight.grad = None
            fused_loss(work.hidden, work.weight, work.targets, streams, objective, **more)[0].backward()

        return once

    seconds = alternate({"icepop_centered": run(with_head, topk_ids=ids), "icepop": run(plain)}, rounds)
    print(table(f"score centering in the fused pass, {TOPK} candidates, {shape}", seconds, "icepop_centered"))


def conversation(turns: int, answer: int, observation: int, seed: int = 0) -> list[Step]:
    """One trace whose every prompt extends what went before."""
    rng, steps, history = np.random.default_rng(seed), [], np.array([1], np.int32)
    for _ in range(turns):
        prompt = np.concatenate([history, rng.integers(2, 50_000, observation, dtype=np.int32)])
        reply = rng.integers(2, 50_000, answer, dtype=np.int32)
        steps.append(Step(prompt, reply, np.full(answer, -1.0, np.float32)))
        history = np.concatenate([prompt, reply])
    return steps


def interleaving(rounds: int) -> None:
    """Tokens a second of interleave and of verifiers' graph, on traces of 4 to 64 turns of 100 and 1,000 tokens."""
    for turns, size in ((4, 100), (16, 100), (64, 100), (4, 1000), (16, 1000), (64, 1000)):
        traces = [conversation(turns, 6 * size // 10, 4 * size // 10, seed) for seed in range(256 // turns)]
        tokens = sum(len(t[-1].prompt_ids) + len(t[-1].completion_ids) for t in traces)
        calls = [verifiers_calls(t) for t in traces]  # messages and responses are made outside the clock
        for steps, call in zip(traces, calls, strict=True):
            (sample,), (branch,) = interleave(steps), verifiers_samples(call)
            assert (branch[0], branch[1]) == (sample.token_ids.tolist(), sample.loss_mask.tolist())
        ways = {
            "prl interleave": lambda traces=traces: [interleave(t) for t in traces],
            "verifiers graph": lambda calls=calls: [verifiers_samples(c) for c in calls],
        }
        seconds = alternate(ways, rounds)
        speed = {name: f"{tokens / median(s) / 1e6:.2f} M tokens/s" for name, s in seconds.items()}
        print(table(f"interleave, {len(traces)} traces of {turns} turns of {size} tokens, {tokens:,} in all", seconds,
                    "prl interleave", speed))  # fmt: skip


def grouping(rounds: int) -> None:
    """Group means of ragged groups in any order."""
    for rows in (65_536, 1_000_000):
        rewards, ids = ragged(rows)
        ways: dict[str, Work] = {
            "prl by_group(r - r.mean())": lambda r=rewards, i=ids: by_group(lambda x: x - x.mean(), i, r),
            "prl by_group(group_norm)": lambda r=rewards, i=ids: by_group(group_norm, i, r),
            "segment sums by hand": lambda r=rewards, i=ids: segment_sums(r, i),
            "verl vectorised": lambda r=rewards, i=ids: verl_grpo(r, i, "vectorized"),
        }
        if rows < 100_000:
            ways["verl loop"] = lambda r=rewards, i=ids: verl_grpo(r, i, "loop")
        want = segment_sums(rewards, ids)
        assert all(torch.allclose(way(), want, atol=1e-5) for way in ways.values()), "the ways differ"
        title = f"group baselines, {rows:,} rollouts in groups of 1 to 16, any order"
        print(table(title, alternate(ways, rounds), "prl by_group(r - r.mean())"))


def ragged(rows: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 17, (rows,), generator=g)
    ids = torch.repeat_interleave(torch.arange(rows), sizes)[:rows]
    return torch.randint(0, 2, (rows,), generator=g).float(), ids[torch.randperm(rows, generator=g)]


def segment_sums(rewards: Tensor, ids: Tensor) -> Tensor:
    groups = int(ids.max()) + 1
    sums = torch.zeros(groups).index_add_(0, ids, rewards)
    return rewards - (sums / torch.bincount(ids, minlength=groups))[ids]


def verl_grpo(rewards: Tensor, ids: Tensor, kind: str) -> Tensor:
    from verl.trainer.ppo import core_algos

    name = {"loop": "compute_grpo_outcome_advantage", "vectorized": "compute_grpo_vectorized_outcome_advantage"}[kind]
    mask = torch.ones(len(rewards), 1)
    out, _ = getattr(core_algos, name)(rewards[:, None], mask, ids.numpy(), norm_adv_by_std_in_grpo=False)
    sizes = torch.bincount(ids)[ids]
    return torch.where(sizes == 1, 0.0, out[:, 0])  # verl leaves a lone rollout its reward


def alternate(ways: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, one after the other in every round; a round before the first is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, work in ways.items():
            started = time.perf_counter()
            work()
            if round_:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def paired(ours: list[float], theirs: list[float]) -> float:
    """Median over rounds of ours / theirs."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def table(title: str, seconds: Mapping[str, list[float]], ours: str, more: Mapping[str, str] | None = None) -> str:
    lines = [title, f"  {'':<30}{'seconds':>10}  prl / it"]
    for name, taken in seconds.items():
        shown = f"  {name:<30}{median(taken):>10.4f}  {paired(seconds[ours], taken):>8.2f}"
        lines.append(shown + (f"  {more[name]}" if more else ""))
    return "\n".join(lines)


PARTS: dict[str, Callable[[int], None]] = {
    "head": lambda rounds: head(HEAD, rounds),
    "head_large": lambda rounds: head(HEAD_LARGE, max(2, rounds // 2)),
    "centred": lambda rounds: centred(HEAD, rounds),
    "interleave": interleaving,
    "by_group": grouping,
}


def main(parts: list[str], rounds: int) -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {rounds} rounds\n")
    for name in parts:
        PARTS[name](rounds)
        print(flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        measure_memory(*json.loads(options.memory))
    elif Path(sys.executable) != (python := environment()):
        sys.exit(subprocess.run([str(python), "-m", "benchmarks.core", *sys.argv[1:]], cwd=ROOT).returncode)
    else:
        main(options.only, options.rounds)
