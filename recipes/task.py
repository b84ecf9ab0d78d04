"""What the recipes share: the demo's task and model, and one line of result."""

import argparse
import time
from collections.abc import Callable
from typing import Any

from prl import AdamW, Runner, Sampling
from prl.policy import Policy
from recipes.demo import HELD_OUT, MAX_TOKENS, environment


def trainer(policy: Policy, seed: int, algorithm: Any, *, lr: float, batch_size: int = 256, **changes: Any) -> Runner:
    """A Runner on spell_backward whose batches are whole waves: groups without signal are not replaced."""
    return Runner(
        policy, environment(), algorithm=algorithm, batch_size=batch_size, optimizer=AdamW(lr=lr), seed=seed,
        constant_trainer_batch_size=False, sampling=Sampling(max_tokens=MAX_TOKENS), **changes,
    )  # fmt: skip


def accuracy(run: Runner, n: int = HELD_OUT) -> float:
    """Share of exact answers on the first n held-out words, one sample each at temperature 1."""
    return float(run.evaluate("test", n)["exact"].mean())  # type: ignore[arg-type]


def report(name: str, run: Runner, steps: int) -> dict[str, float]:
    """Accuracy before and after so many steps, and their wall time, printed and returned."""
    before, started = accuracy(run), time.perf_counter()
    run.fit(steps)
    seconds, after = time.perf_counter() - started, accuracy(run)
    print(f"{name}: held-out accuracy {before:.3f} -> {after:.3f} in {steps} steps, {seconds:.0f} s")
    return {"before": before, "after": after, "steps": steps, "seconds": seconds}


def command_line(main: Callable[..., Any], doc: str | None, steps: int) -> None:
    """--max-steps and --seed."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    main(options.max_steps, options.seed)
