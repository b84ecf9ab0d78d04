"""The one stateful object: it holds weights, optimiser, engine and the committed state, and calls pure stages."""

import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import torch
from tqdm.auto import tqdm

from prl.algorithms import GRPO, as_algorithm, choose
from prl.checkpoint import read_state, read_weights, write_checkpoint
from prl.collect import EVALUATION, admit, draws_for
from prl.config import IPO, AdamW, IcePop, Sampling
from prl.config.base import above_zero, at_least
from prl.curricula import Curriculum
from prl.engines import build_engine, stopping
from prl.engines.base import Engine
from prl.envs.base import Env
from prl.errors import TrainingError
from prl.learner import Learned, batch_losses, learn
from prl.loop import LoopThread
from prl.losses.select import Loss, checked
from prl.overlap import Ahead, Weights
from prl.policy import Policy, build_optimizer
from prl.reporting import (
    append_report,
    curriculum_metrics,
    differences,
    name_of,
    refuse_another_empty,
    refuse_another_step,
    settings_of,
    step_report,
    summary,
    why_empty,
)
from prl.serving import Collector, Serving
from prl.sources import Source, resolve
from prl.trajectories import pack
from prl.types import Batch, Commit, Group, Groups, StepReport, Task, TokenLoss, TrainingSample, commit_of

__all__ = ["Runner", "Source"]
_START = Commit(step=0, draws=0, algorithms={}, curricula={}, totals={})


class Runner:
    """Drives training cell by cell. Stages read, `update` commits.

    Every stage before `update` computes from the committed state and changes nothing that
    the next call can see. `update` commits weights, states, draws and step together.

    Args:
      model: what `models.tiny` or `models.load` return.
      env: one environment, or a list of environments and `Source`s.
      algorithm: a config such as GRPO(), or fn(group, state) -> (group, state).
      advantage: fn(rewards [group]) -> [group] instead of an algorithm.
      loss: the rl loss: a config, a function of (trainer_logprobs, inference_logprobs,
        advantages) -> TokenLoss, or the page's LossInputs -> LossOutputs.
      engine: "torch" or "vllm" in this process, or an Engine. renderer: the model's own unless given.
      batch_size: trainable traces with signal per step.
      constant_trainer_batch_size: replace traces without signal, else train on what is left.
      max_tokens: cells of a micro-batch; None is 64 x the model's context, 65,536 at most.
      max_grad_norm: L2 norm to which the gradient is clipped.
      overlap: `update` also collects the next step, so that step n trains on rollouts of
        version max(0, n - 2). Off, it trains on version n - 1.
      seed: with it everything is a function of the settings; on CPU with the torch engine, bit for bit.
      out: folder to which each StepReport is appended as a line of history.jsonl.

    Raises:
      ConfigError: settings that are wrong or do not fit each other.
    """

    def __init__(
        self,
        model: Policy,
        env: Env | Sequence[Env | Source],
        *,
        algorithm: Any = None,
        advantage: Callable[[torch.Tensor], torch.Tensor] | None = None,
        loss: Loss | None = None,
        optimizer: AdamW | None = None,
        engine: str | Engine = "torch",
        renderer: Any = None,
        curriculum: Curriculum | None = None,
        group_size: int = 8,
        batch_size: int = 64,
        constant_trainer_batch_size: bool = True,
        max_tokens: int | None = None,
        max_grad_norm: float = 1.0,
        sampling: Sampling | None = None,
        overlap: bool = False,
        seed: int = 0,
        out: str | Path | None = None,
    ) -> None:
        self.max_tokens = min(64 * model.context, 65_536) if max_tokens is None else max_tokens
        at_least("Runner", 1, group_size=group_size, batch_size=batch_size, max_tokens=self.max_tokens)
        self.model, self.loss, self.max_grad_norm = model, checked(loss or IPO()), above_zero(max_grad_norm)
        self.renderer = renderer or model.renderer
        self.sampling = stopping(sampling or Sampling(), self.renderer, model.tokenizer).for_training("Runner")
        drawn = self.sampling.with_candidates(self.loss.candidates if isinstance(self.loss, IcePop) else None)
        self.batch_size, self.constant_trainer_batch_size, self.seed = batch_size, constant_trainer_batch_size, seed
        algorithm = choose(algorithm, advantage, "Runner") or as_algorithm(GRPO())
        self._streams = resolve(env, algorithm, curriculum or Curriculum(), group_size)
        self.optimizer_config = optimizer or AdamW()
        self._optimizer = build_optimizer(model, self.optimizer_config)
        built = build_engine(engine, model.module, model.tokenizer, drawn.topk_logprobs or 0)
        self.overlap, self._ahead, self._weights, self._thread = overlap, Ahead(), 0, LoopThread()
        serving = Serving(built, self.renderer, model.tokenizer, model.context, self._thread.loop)
        self._collector = Collector(self._streams, serving, drawn, batch_size, constant_trainer_batch_size, seed)
        self._out, self._state, self._history = None if out is None else Path(out), _START, list[StepReport]()
        self._done: weakref.WeakKeyDictionary[Batch, StepReport] = weakref.WeakKeyDictionary()
        self._clock, self._call = time.perf_counter(), self._thread.run

    @property
    def history(self) -> list[StepReport]:
        """One report per committed step."""
        return list(self._history)

    def tasks(self, split: str = "train") -> list[Task]:
        """The tasks of every environment, in order."""
        return [task for stream in self._streams for task in stream.env.tasks(split)]

    def rollout(self, draws: int | None = None) -> Groups:
        """Play the next groups with the committed weights; `draws` groups, or as many as fill a batch."""
        count = draws_for(self._streams, self._state.draws, self.batch_size) if draws is None else draws
        at_least("Runner.rollout", 1, draws=count)
        return self._call(self._collector.rollout(self._next(), count, self._scheduled()))

    def score(self, groups: Sequence[Group], *, advantage: Any = None, algorithm: Any = None) -> Groups:
        """Credit on every trained token, by each environment's algorithm or by the one given here.

        An algorithm with memory sees every group once: score what `rollout` returned, not what was scored.
        """
        chosen = choose(algorithm, advantage, "Runner.score")
        return self._call(self._collector.score(self._with_commit(groups), self._scheduled(), chosen))

    def admit(self, groups: Sequence[Group]) -> Groups:
        """The groups that pass their curriculum's gates."""
        return admit(self._streams, self._with_commit(groups))

    def collect(self) -> Groups:
        """Rollout, score and admit, in waves, until `batch_size` traces with signal are there.

        Overlapped, it is what `update` has collected already, if that came to its end.
        """
        return self._call(self._collected())

    def pack(self, groups: Sequence[Group] | Sequence[TrainingSample]) -> Batch:
        """Rows, weights and counts of one step. Bare samples make a batch that commits weights and step only."""
        samples = [s for g in groups for s in (g.samples if isinstance(g, Group) else [g])]
        commit = commit_of([g for g in groups if isinstance(g, Group)] if not isinstance(groups, Groups) else groups)
        step, share = None if commit is None else commit.step, self.model.full_attention
        return pack(samples, max_tokens=self.max_tokens, share_prompts=share, step=step, commit=commit)

    def losses(self, batch: Batch, loss: Loss | Mapping[str, Loss] | None = None) -> dict[str, dict[str, TokenLoss]]:
        """{name: {component: TokenLoss [row, seq]}} of the batch under one or several losses; changes nothing."""
        chosen = self.loss if loss is None else loss
        named = chosen if isinstance(chosen, Mapping) else {name_of(chosen): chosen}
        return self._call(batch_losses(self.model, batch, named))

    def update(self, batch: Batch, *, again: bool = False) -> StepReport:
        """Take one optimiser step and commit what the batch carries; an interrupt is held back until it is whole.

        A batch that was updated before returns its report and changes nothing;
        `again=True` takes another step on it and commits weights only.

        Raises:
          TrainingError: loss or gradient is not finite, the batch is of another step, or
            ten steps in a row had nothing to train on. Nothing is changed then.
        """
        if batch in self._done and not again:
            return self._done[batch]
        if batch not in self._done:
            refuse_another_step(self._state.step + 1, batch)
        if not batch.rows:
            refuse_another_empty(self._history, batch)
        report = self._call(self._update(batch, again), hold_interrupt=True, on_interrupt=lambda: self._ahead.cancel())
        if not again and self._out is not None:
            append_report(self._out, report)
        if not batch.rows:
            warnings.warn(f"step {report.step}: {why_empty(batch)}; weights stay as they were.", stacklevel=2)
        return report

    def step(self) -> StepReport:
        """update(pack(collect()))."""
        return self.update(self.pack(self.collect()))

    def fit(self, steps: int) -> list[StepReport]:
        """That many steps with a progress bar. An interrupt leaves the Runner at the last whole step."""
        at_least("Runner.fit", 1, steps=steps)
        reports = []
        with tqdm(range(steps), desc="step", mininterval=0.5) as bar:
            for _ in bar:
                reports.append(report := self.step())
                bar.set_postfix_str(summary(report), refresh=False)
        return reports

    def evaluate(self, split: str, n: int, *, sampling: Sampling | None = None, k: int = 1) -> pl.DataFrame:
        """One row per sample: env, task, prompt, answer, completion, reward, exact (full reward 1.0), error.

        The first n tasks of the split of each environment, k samples each, with the
        committed weights, at the Runner's sampling unless given. The same draws at every call.
        """
        at_least("Runner.evaluate", 1, n=n, k=k)
        chosen = self.sampling if sampling is None else stopping(sampling, self.renderer, self.model.tokenizer)
        rows = self._call(self._collector.evaluate(split, n, k, chosen, self._now()))
        return pl.DataFrame(rows, schema=EVALUATION)

    def save(self, path: str | Path) -> Path:
        """Write a checkpoint folder; its `model/` opens with transformers. An old one stays until it is whole.

        Overlapped, it holds the collected next step too, which an interrupt may have left to be collected first.
        """
        waiting = self._call(self._collected()) if self.overlap and self._state.step else None
        queue = None if waiting is None else (list(waiting), waiting.commit)
        state = {"commit": self._state, "history": self._history, "settings": settings_of(self, self._streams)}
        state |= {"queue": queue}
        return write_checkpoint(Path(path), state, self.model, self._optimizer)

    def load(self, path: str | Path) -> list[str]:
        """Continue from a checkpoint, bit for bit; returns, and warns of, settings that differ from the saved run's.

        Raises:
          DataError: missing, damaged or foreign checkpoint, or one of another model. The Runner stays as it was.
        """
        state, slots = read_state(Path(path), self._optimizer)
        weights = read_weights(Path(path) / "model", self.model.module)
        self._call(
            self._restore(state, lambda: (weights(), self._optimizer.load_state_dict(slots))), hold_interrupt=True
        )
        changed = differences(state["settings"], settings_of(self, self._streams))
        if changed:
            warnings.warn(f"Runner.load: settings differ from the saved run: {'; '.join(changed)}.", stacklevel=2)
        return changed

    def close(self) -> None:
        """Stop the Runner's thread; it stops by itself when the Runner is gone."""
        self._thread.close()

    def _next(self) -> Commit:
        return self._state._replace(step=self._state.step + 1, totals={})

    def _with_commit(self, groups: Sequence[Group]) -> Groups:
        return Groups(groups, commit_of(groups) or self._next())

    def _scheduled(self) -> Weights:
        """What samples the next step."""
        return self._ahead.weights or self._now()

    def _now(self) -> Weights:
        return Weights(self._weights, self._state.step, dict(self.model.module.named_parameters()))

    async def _collected(self) -> Groups:
        if self._ahead.groups is None:
            groups = await self._collector.collect(self._next(), self._scheduled())
            if not self.overlap:
                return groups
            self._ahead.groups = groups
        return self._ahead.groups

    async def _restore(self, state: Any, fill: Callable[[], object]) -> None:
        fill()
        self._state, self._history = state["commit"], list(state["history"])
        self._weights += 1
        self._ahead = Ahead(Groups(*state["queue"]) if self.overlap and state["queue"] else None)
        self._done.clear()

    async def _update(self, batch: Batch, again: bool) -> StepReport:
        where, step = "Runner.update, step", self._state.step + (0 if again else 1)
        curricula, before = curriculum_metrics(batch, self._streams), self._ahead
        if self.overlap and batch.commit is not None and not again:
            self._ahead = Ahead(weights=(weights := self._now().copy()))
            after = batch.commit._replace(step=step + 1, totals={})
            self._ahead.start(self._collector.collect(after, weights))
        done = Learned(0.0, {}, {}, 0.0)
        if batch.rows:
            try:
                done = await learn(self.model, self._optimizer, batch, self.loss, self.max_grad_norm)
            except BaseException as error:
                self._ahead.cancel()
                await self._ahead.finish()
                self._ahead = before
                raise TrainingError(f"{where} {step}: {error}") if isinstance(error, TrainingError) else error from None
        # From here on nothing can fail: weights, state and history become current together.
        now, self._clock = time.perf_counter() - self._clock, time.perf_counter()
        report = step_report(step, done, batch, curricula, now)
        self._weights += 1
        if not again:
            self._state = (batch.commit or self._state)._replace(step=step)
            self._history.append(report)
            self._done[batch] = report
        await self._ahead.finish()
        return report
