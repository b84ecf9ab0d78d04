"""What both comparisons with TRL share: two worker processes, and TRL set up as prl is.

TRL lives in `.venv-peers`, see `benchmarks/_peers.py`. Both sides run on that one
interpreter, each in a process of its own, and take turns: while one works the other
waits for its next line, so noise hits both alike.

A worker is a module's `side(name, **settings)`: an object whose methods the driver
calls. A call is one JSON line on the worker's stdin, its result one JSON line back.

TRL's GRPOTrainer runs with these settings:

    loss_type="dapo"               sum over tokens / tokens of the batch, which is prl's rl term
    beta=0.0, num_iterations=1     no reference model; one update per batch, so no pass for old log-probabilities
    scale_rewards="none"           advantage = reward - mean of the group, as GRPO() in prl
    epsilon=0.2                    TRL's default; without effect, the ratio is 1 in the only update
    mask_truncated_completions=False, temperature=1, top_p=1, top_k=0
    per_device_train_batch_size    all rollouts of a step: one generation, one micro-batch, no accumulation
    gradient_checkpointing=False, bf16=False, use_cpu=True; eager, SDPA attention (so is prl)
    optim="adamw_torch_fused", lr constant, betas (0.9, 0.999), weight_decay=0, max_grad_norm=1
    shuffle_dataset=False          tasks in source order, as prl's StandardSampler
    logging, saving, reporting, progress bar off; dataloader_num_workers=0, dataloader_pin_memory=False

It always computes the entropy and clip statistics of a batch; there is no switch. prl
computes its own (kept, mismatch_kl). prl counts only samples with signal in N, TRL all.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from benchmarks._peers import ROOT, environment
from prl import Runner
from prl.policy import Policy
from prl.types import Task


class Worker:
    """One side in a process of its own, on the peers' interpreter unless given; `call` waits for its answer."""

    def __init__(self, module: str, name: str, *, python: str | None = None, **settings: Any) -> None:
        self.name = name
        command = [python or str(environment()), "-m", module, "--worker", json.dumps({"name": name, **settings})]
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **quiet}, **pipes)
        self._read()  # it is ready

    def call(self, method: str, **arguments: Any) -> Any:
        """The result of the side's method."""
        assert self._process.stdin
        print(json.dumps([method, arguments]), file=self._process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout
        if line := self._process.stdout.readline():
            return json.loads(line)
        sys.exit(f"benchmarks: the {self.name} worker ended with status {self._process.wait()}; its error is above")


def serve(make: Callable[..., Any], settings: str) -> NoReturn:
    """A worker's life: build the side, then answer calls. Whatever libraries print goes to stderr."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        side = make(**json.loads(settings))
        print(json.dumps("ready"), file=answers, flush=True)
        for line in sys.stdin:
            method, arguments = json.loads(line)
            print(json.dumps(getattr(side, method)(**arguments)), file=answers, flush=True)
    os._exit(0)  # TRL's training thread still waits


class PrlSteps:
    """A Runner with the same `step()`. `rollout` is its `collect`: rollouts and credit."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def step(self) -> dict[str, float]:
        """One optimiser step: seconds in all and of the rollouts, mean completion tokens, mean reward."""
        started = time.perf_counter()
        groups = self._runner.collect()
        collected = time.perf_counter()
        report = self._runner.update(self._runner.pack(groups))
        ended = time.perf_counter()
        length = report.metrics["rollout/output_tokens"] / report.metrics["rollout/episodes"]
        return {"seconds": ended - started, "rollout": collected - started, "length": length,
                "reward": report.reward or 0.0}  # fmt: skip


class TrlSteps:
    """A GRPOTrainer that takes one step per `step()`: `train()` runs in a thread and pauses at each step's end.

    Args:
      score: reward of (task, completion text); the text is what prl's renderer reads in the tokens.
      stops: ids that end a completion; the tokenizer's own unless given.
    """

    def __init__(
        self, policy: Policy, tasks: Sequence[Task], score: Callable[[Task, str], float], *,
        group_size: int, batch_size: int, lr: float, max_tokens: int, seed: int = 0, stops: Sequence[int] = (),
    ) -> None:  # fmt: skip
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        self._policy, self._tasks, self._score = policy, tasks, score
        self._go, self._done, self._error = threading.Semaphore(0), threading.Semaphore(0), None
        rows = [{"prompt": [{"role": "user", "content": t.prompt}], "index": i} for i, t in enumerate(tasks)]
        config = GRPOConfig(
            output_dir=tempfile.mkdtemp(), seed=seed, use_cpu=True, bf16=False, gradient_checkpointing=False,
            per_device_train_batch_size=batch_size, gradient_accumulation_steps=1, num_generations=group_size,
            max_completion_length=max_tokens, temperature=1.0, top_p=1.0, top_k=0, loss_type="dapo", beta=0.0,
            num_iterations=1, scale_rewards="none", epsilon=0.2, mask_truncated_completions=False,
            learning_rate=lr, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0,
            optim="adamw_torch_fused", adam_beta1=0.9, adam_beta2=0.999, shuffle_dataset=False, max_steps=10**6,
            logging_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True,
            dataloader_num_workers=0, dataloader_pin_memory=False,
        )  # fmt: skip
        self._trainer = GRPOTrainer(
            policy.module, self._rewards, config, Dataset.from_list(rows), processing_class=policy.tokenizer,
            callbacks=[_pauses(self)],
        )  # fmt: skip
        if stops:  # the one list that both generation and the completion mask follow
            self._trainer.eos_token_ids = list(stops)
            self._trainer.generation_config.eos_token_id = list(stops)
        threading.Thread(target=self._train, daemon=True).start()
        self._done.acquire()

    def step(self) -> dict[str, float]:
        """One optimiser step: seconds in all and until rewards were asked for, mean completion tokens, mean reward."""
        started = time.perf_counter()
        self._go.release()
        self._done.acquire()
        seconds = time.perf_counter() - started
        if self._error is not None:
            raise self._error
        return {"seconds": seconds, "rollout": self._rollout_end - started, "length": self._length,
                "reward": self._reward}  # fmt: skip

    def pause(self) -> None:
        """Called by the training thread at the end of a step: wait for the next `step()`."""
        self._done.release()
        self._go.acquire()

    def _train(self) -> None:
        try:
            self._trainer.train()
        except BaseException as error:
            self._error = error
        self._done.release()

    def _rewards(self, completion_ids: list[list[int]], index: list[int], **_: Any) -> list[float]:
        self._rollout_end = time.perf_counter()
        texts = [self._policy.renderer.parse_response(ids).content for ids in completion_ids]
        rewards = [self._score(self._tasks[i], text) for i, text in zip(index, texts, strict=True)]
        self._length = sum(map(len, completion_ids)) / len(completion_ids)
        self._reward = sum(rewards) / len(rewards)
        return rewards


def _pauses(steps: TrlSteps) -> Any:
    from transformers import TrainerCallback

    class Pause(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            steps.pause()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            steps.pause()

    return Pause()


def prompt_tokens(policy: Policy, tasks: Sequence[Task]) -> float:
    """Mean prompt length; checks that prl's renderer and the chat template that TRL applies give the same tokens."""
    lengths = []
    for task in tasks:
        messages = [{"role": "user", "content": task.prompt}]
        ids = policy.renderer.render_ids(messages, add_generation_prompt=True)
        template = policy.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ids == template, f"renderer and chat template differ on task {task.key}"
        lengths.append(len(ids))
    return sum(lengths) / len(lengths)
