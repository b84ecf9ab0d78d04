"""GRPO with IPO on spell_backward, from a supervised warm start at more than one word in four.

python -m recipes.grpo
No result is recorded yet for these settings; the demo is the same with more steps, a lower
rate at the end, pictures and a checkpoint, and its result stands in the README.
"""

from prl.algorithms import GRPO
from recipes.demo import LEARNING_RATE, WARM_STEPS, runner, warm_start
from recipes.task import command_line, report

STEPS = 120


def main(max_steps: int = STEPS, seed: int = 0) -> dict[str, float]:
    policy = warm_start(seed, min(WARM_STEPS, 10 * max_steps))
    return report("grpo", runner(policy, seed, LEARNING_RATE, algorithm=GRPO()), max_steps)


if __name__ == "__main__":
    command_line(main, __doc__, STEPS)
