"""What the recipes share: a measured run on the demo's task, from a teacher or without one."""

import argparse
import time
from collections.abc import Callable
from typing import Any

from prl import Runner
from prl.config import FrozenModel
from recipes import demo
from recipes.serving import NAME, serve

TEACHER_ACCURACY, TEACHER_STEPS = 0.9, 3000


def accuracy(run: Runner) -> float:
    """Share of exact answers on the held-out words, one sample each at temperature 1."""
    return float(run.evaluate("test", demo.HELD_OUT)["exact"].mean())  # type: ignore[arg-type]


def report(name: str, run: Runner, steps: int) -> dict[str, float]:
    """Accuracy before and after so many steps, and their wall time, printed and returned."""
    before, started = accuracy(run), time.perf_counter()
    run.fit(steps)
    seconds, after = time.perf_counter() - started, accuracy(run)
    print(f"{name}: held-out accuracy {before:.3f} -> {after:.3f} in {steps} steps, {seconds:.0f} s")
    return {"before": before, "after": after, "steps": steps, "seconds": seconds}


def distil(name: str, algorithm: Callable[[FrozenModel], Any], *, steps: int, seed: int, lr: float) -> dict[str, float]:
    """`report` of a student beside a teacher that went to school for longer and is served by vLLM."""
    teacher = demo.warm_start(seed + 1000, min(TEACHER_STEPS, 10 * steps), TEACHER_ACCURACY)
    student = demo.warm_start(seed, min(demo.WARM_STEPS, 10 * steps))
    known = accuracy(demo.runner(teacher, seed))
    with serve(teacher) as base_url:
        served = FrozenModel(name=NAME, base_url=base_url)
        result = report(name, demo.runner(student, seed, lr, algorithm=algorithm(served), group_size=1), steps)
    print(f"the teacher: {known:.3f}")
    return {**result, "teacher": known}


def command_line(main: Callable[..., Any], doc: str | None, steps: int) -> None:
    """--max-steps and --seed."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    main(options.max_steps, options.seed)
