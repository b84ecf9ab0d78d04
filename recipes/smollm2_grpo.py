"""A few GRPO steps on a real pretrained model, SmolLM2-135M-Instruct, on a CPU.

make smollm2 && python -m recipes.smollm2_grpo
Expected on 2 CPU cores: about 10 s a step; shows that the whole path runs, not that it learns.

The task is reasoning-gym's spell_backward on words of 3 letters with partial credit, so
that answers of an untrained model differ in reward.
"""

import argparse
from pathlib import Path

from prl import AdamW, Runner, Sampling, frames, models
from prl.envs import ReasoningGym
from prl.errors import ConfigError

FOLDER = Path("models/smollm2-135m")


def main(max_steps: int = 3, folder: Path = FOLDER) -> list[float]:
    """Rewards of the steps.

    Raises:
      ConfigError: the model is not there.
    """
    if not folder.is_dir():
        raise ConfigError(f"smollm2_grpo: no folder {folder}; `make smollm2` fetches and converts the model (93 MB).")
    policy = models.load(folder, renderer="chatml")
    env = ReasoningGym("spell_backward", size=2_000, min_word_len=3, max_word_len=3)
    runner = Runner(
        policy, env, group_size=8, batch_size=16, constant_trainer_batch_size=False,
        optimizer=AdamW(lr=1e-6), sampling=Sampling(max_tokens=12),
    )  # fmt: skip
    for report in runner.fit(max_steps):
        print(f"step {report.step}: reward {report.reward:.3f}, loss {report.loss:.4f}, {report.seconds:.1f} s")
    groups = runner.score(runner.rollout(1))
    print(frames.rollouts(groups, policy.tokenizer.decode).select("reward", "completion"))
    return [report.reward for report in runner.history]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-steps", type=int, default=3)
    main(parser.parse_args().max_steps)
