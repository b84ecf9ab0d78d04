"""GRPO with IPO on spell_backward, from a supervised warm start at one word in five.

python -m recipes.grpo
Expected on 2 CPU cores: held-out accuracy from about 0.2 to EXPECTED in 120 steps, MINUTES.
The demo is the same with more steps, a lower rate at the end, pictures and a checkpoint.
"""

from prl.algorithms import GRPO
from recipes.demo import LEARNING_RATE, WARM_STEPS, warm_start
from recipes.task import command_line, report, trainer

STEPS = 120


def main(max_steps: int = STEPS, seed: int = 0) -> dict[str, float]:
    policy = warm_start(seed, min(WARM_STEPS, 10 * max_steps))
    return report("grpo", trainer(policy, seed, GRPO(), lr=LEARNING_RATE), max_steps)


if __name__ == "__main__":
    command_line(main, __doc__, STEPS)
