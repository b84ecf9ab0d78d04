"""MaxRL on spell_backward, from a supervised warm start at one word in twenty.

python -m recipes.max_rl
No result is recorded yet for these settings.
Credit is (r - mean) / mean, so a word that is spelled right once in sixteen tries moves the
policy sixteen times as much per success as under GRPO (Tajwar et al., arXiv:2602.02710);
groups of 16 leave fewer of those words without any success.
"""

from prl.algorithms import MaxRL
from recipes.demo import WARM_STEPS, runner, warm_start
from recipes.task import command_line, report

STEPS, LEARNING_RATE, GROUP_SIZE, START = 120, 4e-4, 16, 0.05


def main(max_steps: int = STEPS, seed: int = 0) -> dict[str, float]:
    policy = warm_start(seed, min(WARM_STEPS, 10 * max_steps), START)
    run = runner(policy, seed, LEARNING_RATE, algorithm=MaxRL(), group_size=GROUP_SIZE)
    return report("max_rl", run, max_steps)


if __name__ == "__main__":
    command_line(main, __doc__, STEPS)
