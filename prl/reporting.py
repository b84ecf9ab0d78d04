"""What a Runner says of a step: the report, one line of it, and why nothing was trained."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prl.errors import TrainingError
from prl.learner import Learned
from prl.sources import Stream
from prl.types import Batch, StepReport

_EMPTY_LIMIT = 10  # steps in a row without anything to train on


def step_report(step: int, done: Learned, batch: Batch, curricula: Mapping[str, float], seconds: float) -> StepReport:
    """The report of a committed step; rollout totals come from what the batch commits."""
    totals = dict(batch.commit.totals) if batch.commit else {}
    rollout = {f"rollout/{name}": float(value) for name, value in totals.items() if name != "reward"}
    reward = totals["reward"] / totals["traces"] if totals.get("traces") else None
    trained = sum(int(rows.trained.sum()) for rows in batch.rows)
    metrics = {**done.metrics, **rollout, **curricula}
    return StepReport(step, step, done.loss, done.terms, metrics, reward, done.grad_norm, trained, seconds)


def curriculum_metrics(batch: Batch, streams: Sequence[Stream]) -> dict[str, float]:
    """Metrics of every curriculum in the state that the batch commits, as `curriculum/<env>/name`."""
    states = batch.commit.curricula if batch.commit else {}
    own = {s.env.name: s.curriculum.at(states.get(s.env.name)).metrics() for s in streams}
    return {f"curriculum/{env}/{name}": value for env, metrics in own.items() for name, value in metrics.items()}


def append_report(folder: Path, report: StepReport) -> None:
    """One line more in the folder's history.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "history.jsonl").open("a", encoding="utf8") as file:
        file.write(json.dumps(report._asdict()) + "\n")


def summary(report: StepReport) -> str:
    """The few numbers of a progress bar."""
    rate = report.metrics.get("rollout/output_tokens", 0.0) / max(report.seconds, 1e-9)
    shown = {
        "reward": report.reward, "kept": report.metrics.get("rl/kept"),
        "mismatch_kl": report.metrics.get("rl/mismatch_kl"), "tok/s": rate,
    }  # fmt: skip
    return ", ".join(f"{name}={value:.3g}" for name, value in shown.items() if value is not None)


def why_empty(batch: Batch) -> str:
    """One sentence on a batch without anything to train on."""
    if batch.commit is None:
        return "the batch holds no sample that trains anything"
    totals = batch.commit.totals
    mean = totals.get("reward", 0.0) / max(totals.get("traces", 0.0), 1.0)
    episodes, failed = totals.get("episodes", 0), totals.get("errors", 0)
    return (
        f"no sample carries a training signal ({episodes:g} episodes, {failed:g} failed, "
        f"mean reward {mean:.3g}): within each group all credit is zero"
    )


def refuse_another_empty(history: Sequence[StepReport], batch: Batch) -> None:
    """Raise TrainingError where this batch is the tenth in a row with nothing to train on."""
    recent = history[1 - _EMPTY_LIMIT :]
    if len(recent) == _EMPTY_LIMIT - 1 and not any(report.tokens for report in recent):
        raise TrainingError(
            f"Runner.update, step {history[-1].step + 1}: nothing to train on {_EMPTY_LIMIT} times in a row; "
            f"{why_empty(batch)}."
        )


def refuse_another_step(step: int, batch: Batch) -> None:
    """Raise TrainingError where the batch was collected for another step than the next one."""
    if batch.commit is not None and batch.commit.step != step:
        raise TrainingError(
            f"Runner.update: the batch was collected for step {batch.commit.step}, the next step is {step}. "
            "Collect again."
        )


def name_of(thing: Any) -> str:
    """A short name: a config's `type`, a function's name, else its repr."""
    return getattr(thing, "type", None) or getattr(thing, "__name__", None) or text_of(thing)


def text_of(thing: Any) -> str:
    """A function's name, else the repr without addresses, which differ from process to process."""
    return getattr(thing, "__qualname__", None) or re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def differences(saved: dict[str, str], mine: dict[str, str]) -> list[str]:
    """Settings whose text differs, as "name: saved -> mine"."""
    names = dict.fromkeys([*saved, *mine])
    return [f"{k}: {saved.get(k)} -> {mine.get(k)}" for k in names if saved.get(k) != mine.get(k)]


def settings_of(runner: Any, streams: Sequence[Stream]) -> dict[str, str]:
    """The settings that decide a run, as text: what a checkpoint remembers in order to name what changed."""
    own = ("batch_size", "constant_trainer_batch_size", "seed", "max_tokens", "max_grad_norm", "sampling", "overlap")
    sources = {f"source {s.env.name}": f"{text_of(s.algorithm)}, group_size={s.group_size}" for s in streams}
    named = {"loss": runner.loss, "optimizer": runner.optimizer_config}
    return {**sources, **{k: text_of(v) for k, v in {**{k: getattr(runner, k) for k in own}, **named}.items()}}
