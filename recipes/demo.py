"""A two-layer, 0.36M-parameter model learns to spell words backward: supervised warm start, then GRPO with IPO.

python -m recipes.demo            (make demo)
Expected on 2 CPU cores: held-out accuracy from about 0.28 to 0.7 or more, in under 5 minutes.

The task is reasoning-gym's spell_backward on words of 4 and 5 letters. The reward is 1
for an exact answer and 0 for any other; accuracy is the share of exact answers, one
sample each at temperature 1, on words that training never saw.
"""

import argparse
import json
import platform
import random
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import torch
from tqdm.auto import tqdm

from prl import AdamW, Runner, Sampling, frames, models, viz
from prl.envs import ReasoningGym
from prl.policy import Policy
from prl.types import Task, TrainingSample, supervised

MAX_TOKENS = 8
GROUP_SIZE, BATCH_SIZE, LEARNING_RATE, STEPS = 8, 256, 6e-4, 320
COOL_RATE = 2e-4  # of the last quarter: at the higher rate accuracy swings by several points from step to step
WARM_RATE, WARM_WORDS, WARM_STEPS, WARM_EVERY, WARM_TARGET = 2e-3, 32, 1000, 5, 0.28
MEASURE_BELOW = 0.6  # nats per token; above it no word of five tokens comes out right
HELD_OUT = 512


def environment() -> ReasoningGym:
    return ReasoningGym("spell_backward", size=30_000, exact=True, min_word_len=4, max_word_len=5)


def runner(
    policy: Policy, seed: int, lr: float = LEARNING_RATE, *, algorithm: Any = None, group_size: int = GROUP_SIZE
) -> Runner:
    """A Runner whose batches are whole waves: groups without signal are not replaced."""
    return Runner(
        policy, environment(), algorithm=algorithm, group_size=group_size, batch_size=BATCH_SIZE,
        constant_trainer_batch_size=False, optimizer=AdamW(lr=lr), sampling=Sampling(max_tokens=MAX_TOKENS), seed=seed,
    )  # fmt: skip


def answer_sample(policy: Policy, task: Task) -> TrainingSample:
    """The task with its own answer as a supervised sample."""
    prompt = policy.renderer.render_ids([{"role": "user", "content": task.prompt}], add_generation_prompt=True)
    answer = policy.tokenizer.encode(task.answer, add_special_tokens=False)
    return supervised(prompt, answer + policy.renderer.get_stop_token_ids(), id=task.key)


def answer(policy: Policy, task: Task) -> list[TrainingSample]:
    """What the warm start shows of a task."""
    return [answer_sample(policy, task)]


def warm_start(
    seed: int,
    max_steps: int = WARM_STEPS,
    target: float = WARM_TARGET,
    lesson: Callable[[Policy, Task], list[TrainingSample]] = answer,
) -> Policy:
    """Cross-entropy on each task's lesson until the share of training words spelled right, as measured, is `target`."""
    policy = models.tiny(layers=2, seed=seed)
    trainer = Runner(policy, environment(), optimizer=AdamW(lr=WARM_RATE, betas=(0.9, 0.95)),
                     sampling=Sampling(max_tokens=MAX_TOKENS), seed=seed)  # fmt: skip
    words, rng = [lesson(policy, task) for task in trainer.tasks()], random.Random(seed)
    with tqdm(range(1, max_steps + 1), desc="warm start") as bar:
        for step in bar:
            report = trainer.update(trainer.pack([s for samples in rng.sample(words, WARM_WORDS) for s in samples]))
            if step % WARM_EVERY == 0 and report.loss < MEASURE_BELOW:
                accuracy = trainer.evaluate("train", HELD_OUT // 2)["exact"].mean()
                bar.set_postfix_str(f"loss={report.loss:.2f}, accuracy={accuracy:.2f}", refresh=False)
                if accuracy >= target:
                    break
    trainer.close()
    return policy


def cooled(trainer: Runner, seed: int, checkpoint: Path) -> Runner:
    """The same run, from its checkpoint on, at the lower rate."""
    trainer.save(checkpoint)
    trainer.close()
    slower = runner(trainer.model, seed, COOL_RATE)
    with warnings.catch_warnings(action="ignore"):  # load names what differs: the rate
        slower.load(checkpoint)
    return slower


def pictures(trainer: Runner, out: Path) -> None:
    """Reward and losses over steps, and what every token of one group got."""
    viz.history(trainer.history).savefig(out / "history.png", dpi=150)
    groups = trainer.score(trainer.rollout(16))
    group = max(groups, key=lambda g: g.rewards.std().item())
    text = viz.token_text(trainer.model.tokenizer)
    viz.group_advantages(group, text).savefig(out / "group.png", dpi=150)
    viz.token_html(group, text).save(out / "group.html")


def side_by_side(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    pair = before.select("answer", before="completion").hstack(after.select(after="completion", reward="reward"))
    return pair.head(12)


def main(max_steps: int = STEPS, seed: int = 0, out: str = "runs/demo") -> dict[str, float]:
    folder, started = Path(out), time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    policy = warm_start(seed, min(WARM_STEPS, max_steps * 10))
    trainer = runner(policy, seed)
    before = trainer.evaluate("test", HELD_OUT)
    cool = max_steps // 4 or int(max_steps > 1)
    trainer.fit(max_steps - cool)
    if cool:
        trainer = cooled(trainer, seed, folder / "checkpoint")
        trainer.fit(cool)
    after = trainer.evaluate("test", HELD_OUT)
    trainer.save(folder / "checkpoint")
    frames.steps(trainer.history).write_parquet(folder / "history.parquet")
    pictures(trainer, folder)
    result = {"accuracy_warm_start": before["exact"].mean(), "accuracy_final": after["exact"].mean(),
              "wall_s": round(time.perf_counter() - started, 1), "seed": seed}  # fmt: skip
    write_summary(folder, trainer, result)
    with pl.Config(tbl_rows=12, tbl_hide_column_data_types=True, tbl_hide_dataframe_shape=True):
        print(side_by_side(before, after))
    print(f"held-out accuracy {result['accuracy_warm_start']:.3f} -> {result['accuracy_final']:.3f} "
          f"on {HELD_OUT} words, {result['wall_s']:.0f} s; files in {folder}/")  # fmt: skip
    return result


def write_summary(folder: Path, trainer: Runner, result: dict[str, float]) -> None:
    """The result with versions, settings and both word lists."""
    words = {split: [task.info["metadata"]["word"] for task in trainer.tasks(split)] for split in ("train", "test")}
    about = {
        "steps": len(trainer.history), "held_out": HELD_OUT, "reward": "1 for an exact answer, else 0",
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads", "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "transformers", "reasoning-gym", "prl")},
        "train_words": words["train"], "held_out_words": words["test"][:HELD_OUT],
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(result | about, indent=1), encoding="utf8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/demo")
    options = parser.parse_args()
    main(options.max_steps, options.seed, options.out)
