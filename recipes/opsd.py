"""Self-distillation (SDFT) on spell_backward: the policy is its own teacher, shown the answer first.

python -m recipes.opsd
No result is recorded yet for these settings.
A model this small does not know by itself what a demonstration is, so its warm start holds
questions with and without one; then the question alone is pulled toward what the same
weights say after the demonstration (Shenfeld et al., arXiv:2601.19897).
"""

from prl.algorithms import OPSD
from prl.policy import Policy
from prl.types import Task, TrainingSample, supervised
from recipes.demo import answer_sample, runner, warm_start
from recipes.task import command_line, report

STEPS, LEARNING_RATE, WARM_STEPS = 80, 6e-4, 2000
TEMPLATE = "{demonstration}"


def with_and_without(policy: Policy, task: Task) -> list[TrainingSample]:
    """The answer after the question, and after its demonstration and the question, as OPSD shows it."""
    plain = answer_sample(policy, task)
    hint = policy.renderer.render([{"role": "system", "content": TEMPLATE.format(demonstration=task.answer)}])
    first, ids = int(plain.loss_mask.argmax()), plain.token_ids.tolist()
    return [plain, supervised([*hint.token_ids, *ids[:first]], ids[first:], id=f"hinted {task.key}")]


def main(max_steps: int = STEPS, seed: int = 0) -> dict[str, float]:
    policy = warm_start(seed, min(WARM_STEPS, 10 * max_steps), lesson=with_and_without)
    algorithm = OPSD(demo_key="answer", template=TEMPLATE)
    return report("opsd", runner(policy, seed, LEARNING_RATE, algorithm=algorithm, group_size=1), max_steps)


if __name__ == "__main__":
    command_line(main, __doc__, STEPS)
