"""The demo's task by prl and by TRL from one model warmed up to 0.78: training seconds to held-out accuracy 0.85.

    python -m benchmarks.demo_vs_trl                       one seed; makes the warm start itself
    python -m benchmarks.demo_vs_trl --seeds 0 1 2
    python -m benchmarks.demo_vs_trl --checkpoint runs/warm

Both sides have the task, words, group size, rollouts per step and completion limit of
`recipes/demo.py`, AdamW (learning rate 2e-4, betas 0.9, 0.999, weight decay 0),
gradients clipped to norm 1, and one optimiser step per batch of rollouts. Prompts have
the tokens that the table states. The reward is 1.0 for the exact answer and else 0.0,
read from the same tokens by the same parser; groups without signal are not replaced.
Training words come in source order. prl trains with IPO, TRL with its clipped loss; in
the first update on a batch, the only one here, both have the policy gradient. They
differ in N: prl counts the tokens of samples with signal, TRL those of all samples.
Settings of TRL: `benchmarks/_trl.py`.

The sides take turns, EVERY steps each. Then the clock stops and prl's
`Runner.evaluate`, at the weights of the side, samples 512 words that training never
sees at temperature 1. A side is done at the first of two evaluations in a row that reach
0.85; its time is that of its steps alone up to there. `ratio` is prl's seconds / TRL's.

A --checkpoint folder holds `model/`, as `Runner.save` writes it.
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._trl import PrlSteps, TrlSteps, Worker, prompt_tokens, serve
from prl import AdamW, Runner, Sampling, models
from prl.engines.torch import TorchEngine
from prl.types import Task
from recipes import demo

TARGET, WARM_TARGET, EVERY, HELD_OUT, LEARNING_RATE = 0.85, 0.78, 10, 512, 2e-4
WARM = Path("runs/bench-warm-start")


class Exact:
    """An environment whose reward is 1.0 for the exact answer, else 0.0."""

    def __init__(self, env: Any) -> None:
        self.name, self.agents, self._env = env.name, env.agents, env

    def tasks(self, split: str) -> Sequence[Task]:
        return self._env.tasks(split)

    async def play(self, task: Task, agents: Any, rng: random.Random) -> float:
        return exact(task, (await agents["agent"].respond(task.prompt)).content)


def exact(task: Task, text: str) -> float:
    """1.0 if the reply is the answer, else 0.0."""
    return float(text == task.answer)


class Side:
    """prl or TRL at the checkpoint's weights. Both evaluate through a Runner; prl trains with it too."""

    def __init__(self, name: str, checkpoint: str, seed: int, lr: float) -> None:
        self._policy, env = models.load(Path(checkpoint) / "model", renderer="chatml"), Exact(demo.environment())
        self._engine = TorchEngine(self._policy.module)
        sizes: dict[str, Any] = {"group_size": demo.GROUP_SIZE, "batch_size": demo.BATCH_SIZE, "seed": seed}
        self._runner = Runner(
            self._policy, env, engine=self._engine, optimizer=AdamW(lr=lr),
            sampling=Sampling(max_tokens=demo.MAX_TOKENS), constant_trainer_batch_size=False, **sizes,
        )  # fmt: skip
        self._steps: Any = PrlSteps(self._runner)
        if name == "trl":
            given = {"lr": lr, "max_tokens": demo.MAX_TOKENS}
            self._steps = TrlSteps(self._policy, env.tasks("train"), exact, **sizes, **given)

    def prompt(self) -> float:
        """Mean tokens of a prompt."""
        return prompt_tokens(self._policy, self._runner.tasks()[:HELD_OUT])

    def train(self, steps: int) -> list[dict[str, float]]:
        return [self._steps.step() for _ in range(steps)]

    def accuracy(self) -> float:
        """Share of held-out words answered exactly, one sample each."""
        self._engine.load_weights(self._policy.module.named_parameters(), 0)
        return float(self._runner.evaluate("test", HELD_OUT)["exact"].mean())  # type: ignore[arg-type]


def warm_start(seed: int) -> Path:
    """The demo's supervised warm start, in a folder; made once."""
    folder = WARM / str(seed)
    if not (folder / "model").exists():
        policy = demo.warm_start(seed, target=WARM_TARGET)
        policy.module.save_pretrained(folder / "model")
        policy.tokenizer.save_pretrained(folder / "model")
    return folder


def reached(curve: Sequence[tuple[float, float]], target: float = TARGET) -> float | None:
    """Seconds at the first of two evaluations in a row that reach the target; None before that."""
    pairs = zip(curve, curve[1:], strict=False)
    return next((a[0] for a, b in pairs if min(a[1], b[1]) >= target), None)


def race(checkpoint: Path, seed: int, lr: float, limit: int) -> dict[str, float | None]:
    """Each side's seconds to the target, None if `limit` steps did not get there. The sides take turns."""
    settings = {"checkpoint": str(checkpoint), "seed": seed, "lr": lr}
    workers = [Worker("benchmarks.demo_vs_trl", name, **settings) for name in ("prl", "trl")]
    curves = {worker.name: [(0.0, worker.call("accuracy"))] for worker in workers}
    print(f"seed {seed}: prompts of {workers[0].call('prompt'):.1f} tokens, accuracy {curves['prl'][0][1]:.3f}")
    for step in range(EVERY, limit + 1, EVERY):
        for worker in workers:
            if reached(curves[worker.name]) is None:
                curves[worker.name].append(_slice(worker, curves[worker.name][-1][0], step))
    for worker in workers:
        worker.close()
    return {name: reached(curve) for name, curve in curves.items()}


def _slice(worker: Worker, before: float, step: int) -> tuple[float, float]:
    """EVERY steps by the clock, then an evaluation outside it: seconds so far, accuracy."""
    rows = worker.call("train", steps=EVERY)
    seconds, accuracy = before + sum(row["seconds"] for row in rows), worker.call("accuracy")
    reward, length = (sum(row[key] for row in rows) / EVERY for key in ("reward", "length"))
    print(f"  {worker.name}  step {step:4}  {seconds:7.1f} s  held-out {accuracy:.3f}  reward {reward:.3f}"
          f"  {length:.1f} tokens", flush=True)  # fmt: skip
    return seconds, accuracy


def verdict(seed: int, times: dict[str, float | None]) -> str:
    """One line for the seed."""
    shown = ", ".join(f"{name} {'not reached' if t is None else f'{t:.1f} s'}" for name, t in times.items())
    prl, trl = times["prl"], times["trl"]
    return f"seed {seed}: to {TARGET}: {shown}" + (f", ratio {prl / trl:.2f}" if prl and trl else "")


def main(seeds: Sequence[int], checkpoint: str | None, lr: float, limit: int) -> None:
    lines = []
    for seed in seeds:
        start = Path(checkpoint) if checkpoint else warm_start(seed)
        lines.append(verdict(seed, race(start, seed, lr, limit)))
        print(lines[-1], flush=True)
    print(f"\n{demo.BATCH_SIZE} rollouts a step, {demo.GROUP_SIZE} to a prompt, lr {lr:g}", *lines, sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--checkpoint", help="folder with model/; default: the demo's warm start of each seed")
    parser.add_argument("--lr", type=float, default=LEARNING_RATE, help="learning rate of both sides")
    parser.add_argument("--limit", type=int, default=400, help="most steps of a side")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(Side, options.worker)
    main(options.seeds, options.checkpoint, options.lr, options.limit)
