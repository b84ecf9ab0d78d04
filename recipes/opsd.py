"""Self-distillation (SDFT) on spell_backward: the policy is its own teacher, shown the answer first.

python -m recipes.opsd
No result is recorded yet for these settings.
A model this small does not know by itself what a demonstration is, so its warm start holds
questions with and without one; then the question alone is pulled toward what the same
weights say after the demonstration (Shenfeld et al., arXiv:2601.19897).
"""

import random

from tqdm.auto import tqdm

from prl import AdamW, Runner, Sampling, models
from prl.algorithms import OPSD
from prl.policy import Policy
from prl.types import Task, TrainingSample, supervised
from recipes.demo import (
    HELD_OUT,
    MAX_TOKENS,
    MEASURE_BELOW,
    WARM_EVERY,
    WARM_RATE,
    WARM_TARGET,
    WARM_WORDS,
    answer_sample,
    environment,
)  # fmt: skip
from recipes.task import command_line, report, trainer

STEPS, LEARNING_RATE = 80, 6e-4
WARM_STEPS, HINTED_SHARE = 2000, 3  # hinted words beside each plain one
TEMPLATE = "{demonstration}"


def hinted_sample(policy: Policy, task: Task) -> TrainingSample:
    """The task after its own answer, as OPSD shows it, with the answer as what is trained."""
    plain = answer_sample(policy, task)
    hint = policy.renderer.render([{"role": "system", "content": TEMPLATE.format(demonstration=task.answer)}])
    first = int(plain.loss_mask.argmax())
    ids = plain.token_ids.tolist()
    return supervised([*hint.token_ids, *ids[:first]], ids[first:], id=f"hinted {task.key}")


def warm_start(seed: int, max_steps: int) -> Policy:
    """Cross-entropy on answers with and without the demonstration, until a quarter of the plain words are right."""
    policy = models.tiny(layers=2, seed=seed)
    run = Runner(policy, environment(), optimizer=AdamW(lr=WARM_RATE, betas=(0.9, 0.95)),
                 sampling=Sampling(max_tokens=MAX_TOKENS), seed=seed)  # fmt: skip
    tasks, rng = run.tasks(), random.Random(seed)
    for step in tqdm(range(1, max_steps + 1), desc="warm start"):
        words = rng.sample(tasks, WARM_WORDS * (1 + HINTED_SHARE))
        samples = [answer_sample(policy, t) for t in words[:WARM_WORDS]]
        samples += [hinted_sample(policy, t) for t in words[WARM_WORDS:]]
        loss = run.update(run.pack(samples)).loss
        if step % WARM_EVERY == 0 and loss < MEASURE_BELOW:
            if run.evaluate("train", HELD_OUT // 2)["exact"].mean() >= WARM_TARGET:
                break
    return policy


def main(max_steps: int = STEPS, seed: int = 0) -> dict[str, float]:
    policy = warm_start(seed, min(WARM_STEPS, 10 * max_steps))
    algorithm = OPSD(demo_key="answer", template=TEMPLATE)
    return report("opsd", trainer(policy, seed, algorithm, lr=LEARNING_RATE, group_size=1), max_steps)


if __name__ == "__main__":
    command_line(main, __doc__, STEPS)
