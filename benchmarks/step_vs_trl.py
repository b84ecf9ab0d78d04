"""One training step of prl and of TRL on a CPU: the same model, weights, prompts and rewards, taking turns.

    python -m benchmarks.step_vs_trl             about 3 minutes, after .venv-peers is built (some minutes, once)

The model is `models.tiny()`: Qwen3, 0.66M parameters, random weights. A step is 64
rollouts of at most 64 tokens, 8 to a prompt, then loss, gradient and one AdamW step.
Prompts are reasoning-gym's spell_backward through ChatML, 72 tokens each. The reward
is a hash of the text, so every rollout has credit and neither side may skip one.

    fixed    no id ends a completion (the only stop is an id that the model lacks): all have 64 tokens
    varied   26 of the 512 ids end a completion, about 1 draw in 20: 1 to 64 tokens, 19 on average

TRL pads a batch to its longest completion; prl lets finished rows leave and trains on
prompts held once per group. Settings of TRL: `benchmarks/_trl.py`.

Medians are of the steps after the warm-up; `ratio` is the median over pairs of
neighbouring steps of prl's seconds / TRL's. `rollout` ends where rewards are asked for
(TRL) or where `collect` returns (prl); `train` is the rest.
"""

import argparse
import random
from collections.abc import Sequence
from statistics import median
from typing import Any
from zlib import crc32

from benchmarks._trl import PrlSteps, TrlSteps, Worker, prompt_tokens, serve
from prl import AdamW, Runner, Sampling, models
from prl.envs import ReasoningGym
from prl.policy import Policy
from prl.renderers import ChatML
from prl.types import Task

ROLLOUTS, GROUP_SIZE, MAX_TOKENS, LEARNING_RATE = 64, 8, 64, 1e-6
VOCAB = 512
STOPS = {"fixed": [VOCAB], "varied": list(range(VOCAB - 26, VOCAB))}
WARM_UP = 3


class StopsAt(ChatML):
    """ChatML, but the given ids end a completion."""

    def __init__(self, tokenizer: Any, stops: Sequence[int]) -> None:
        super().__init__(tokenizer)
        self._stops = list(stops)

    def get_stop_token_ids(self) -> list[int]:
        return self._stops


class Noise:
    """Words to spell backward, rewarded by chance."""

    name, agents = "noise", ("agent",)

    def __init__(self) -> None:
        self._gym = ReasoningGym("spell_backward", size=4000, min_word_len=5, max_word_len=5)

    def tasks(self, split: str) -> Sequence[Task]:
        return self._gym.tasks(split)

    async def play(self, task: Task, agents: Any, rng: random.Random) -> float:
        return noise(task, (await agents["agent"].respond(task.prompt)).content)


def noise(task: Task, text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return crc32(text.encode()) / 2**32


class Side:
    """prl or TRL, ready to step."""

    def __init__(self, name: str, regime: str) -> None:
        plain, env = models.tiny(vocab_size=VOCAB), Noise()
        policy = Policy(plain.module, plain.tokenizer, StopsAt(plain.tokenizer, STOPS[regime]))
        sizes: dict[str, Any] = {"group_size": GROUP_SIZE, "batch_size": ROLLOUTS}
        self._prompt = prompt_tokens(policy, env.tasks("train")[:64])
        if name == "prl":
            optimizer, sampling = AdamW(lr=LEARNING_RATE), Sampling(max_tokens=MAX_TOKENS)
            self._steps: Any = PrlSteps(Runner(policy, env, optimizer=optimizer, sampling=sampling, **sizes))
        else:
            given = {"lr": LEARNING_RATE, "max_tokens": MAX_TOKENS, "stops": STOPS[regime]}
            self._steps = TrlSteps(policy, env.tasks("train"), noise, **sizes, **given)

    def step(self) -> dict[str, float]:
        return {**self._steps.step(), "prompt": self._prompt}


def measure(regime: str, steps: int) -> dict[str, list[dict[str, float]]]:
    """What each step took, by side; the two sides take turns."""
    workers = [Worker("benchmarks.step_vs_trl", name, regime=regime) for name in ("prl", "trl")]
    taken: dict[str, list[dict[str, float]]] = {worker.name: [] for worker in workers}
    for _ in range(WARM_UP + steps):
        for worker in workers:
            taken[worker.name].append(worker.call("step"))
    for worker in workers:
        worker.close()
    return {name: rows[WARM_UP:] for name, rows in taken.items()}


def table(regime: str, taken: dict[str, list[dict[str, float]]]) -> str:
    """One line for each side, and the ratio."""
    lines = [f"{regime:8}{'s/step':>8}{'fastest':>9}{'rollout':>9}{'train':>8}{'tokens':>8}{'prompt':>8}"]
    for name, rows in taken.items():
        whole, rollout = ([row[key] for row in rows] for key in ("seconds", "rollout"))
        train = median(a - b for a, b in zip(whole, rollout, strict=True))
        tokens = sum(row["length"] for row in rows) / len(rows)
        times = f"{median(whole):8.3f}{min(whole):9.3f}{median(rollout):9.3f}{train:8.3f}"
        lines.append(f"  {name:6}{times}{tokens:8.1f}{rows[0]['prompt']:8.1f}")
    return "\n".join([*lines, f"  ratio {ratio(taken):8.2f}  prl / TRL, {len(taken['prl'])} steps each"])


def ratio(taken: dict[str, list[dict[str, float]]]) -> float:
    """Median over neighbouring steps of prl's seconds / TRL's."""
    return median(a["seconds"] / b["seconds"] for a, b in zip(taken["prl"], taken["trl"], strict=True))


def main(steps: int) -> None:
    for regime in STOPS:
        print(table(regime, measure(regime, steps)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each side")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(Side, options.worker)
    main(options.steps)
