"""The one stateful object: it holds weights, optimiser, engine and the committed state, and calls pure stages."""

import json
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import torch
from tqdm.auto import tqdm

from prl import collect as stages
from prl.algorithms import GRPO, as_algorithm
from prl.checkpoint import read_state, read_weights, write_folder, write_state
from prl.collect import Source
from prl.config import IPO, AdamW, Sampling
from prl.config.base import at_least
from prl.curricula import Curriculum
from prl.engines.base import Engine
from prl.engines.torch import TorchEngine
from prl.envs.base import Env
from prl.errors import ConfigError, DataError, TrainingError
from prl.learner import Learned, batch_losses, learn
from prl.losses.select import Loss, rl_loss
from prl.loop import LoopThread
from prl.policy import Policy, build_optimizer
from prl.rollouts import Lockstep, Setting
from prl.trajectories import pack
from prl.types import Batch, Commit, Group, Groups, StepReport, Task, TokenLoss, TrainingSample, commit_of

_EMPTY_LIMIT = 10  # steps in a row without anything to train on
_START = Commit(step=0, draws=0, algorithms={}, curricula={}, totals={})

__all__ = ["Runner", "Source"]


class Runner:
    """Drives training cell by cell. Stages read, `update` commits.

    Every stage before `update` computes from the committed state and changes nothing
    that the next call can see: a cell run twice gives the same, bit for bit. `update`
    commits weights, algorithm state, curriculum state, draws and step together.

    Args:
      model: what `models.tiny` or `models.load` return.
      env: one environment, or a list of environments and `Source`s.
      algorithm: a config such as GRPO(), or fn(group, state) -> (group, state).
      advantage: fn(rewards [group]) -> [group] instead of an algorithm.
      loss: the rl loss: a config, a function of (trainer_logprobs, inference_logprobs,
        advantages) -> TokenLoss, or the page's LossInputs -> LossOutputs.
      engine: "torch", or an Engine.
      renderer: the model's own unless given.
      batch_size: trainable traces with signal per step.
      constant_trainer_batch_size: replace traces without signal, or train on what is left.
      max_tokens: cells of a micro-batch; None is 64 x the model's context, 65,536 at most.
      max_grad_norm: L2 norm to which the gradient is clipped.
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
        seed: int = 0,
        out: str | Path | None = None,
    ) -> None:
        at_least("Runner", 1, group_size=group_size, batch_size=batch_size)
        if advantage is not None and algorithm is not None:
            raise ConfigError("Runner: got both advantage= and algorithm=; the one replaces the other, so give one.")
        self.model, self.loss, self.advantage = model, IPO() if loss is None else loss, advantage
        rl_loss(self.loss)
        self.sampling = (sampling or Sampling()).with_stop(self._stop_ids(sampling or Sampling()))
        self.sampling.for_training("Runner")
        self.renderer = renderer or model.renderer
        self.batch_size, self.seed = batch_size, seed
        self.max_tokens = max_tokens or min(64 * model.context, 65_536)
        self.max_grad_norm, self._constant = max_grad_norm, constant_trainer_batch_size
        sources = [s if isinstance(s, Source) else Source(s) for s in (env if isinstance(env, Sequence) else [env])]
        chosen = as_algorithm(GRPO() if algorithm is None else algorithm)
        self._streams = stages.resolve(sources, chosen, curriculum or Curriculum(), group_size)
        self._optimizer_config = optimizer or AdamW()
        self._optimizer = build_optimizer(model, self._optimizer_config)
        self._engine, self._weights, self._engine_weights = _engine(engine, model), 0, 0
        self._out = None if out is None else Path(out)
        self._state, self._history = _START, list[StepReport]()
        self._done: weakref.WeakKeyDictionary[Batch, StepReport] = weakref.WeakKeyDictionary()
        self._clock, self._thread = time.perf_counter(), LoopThread()

    @property
    def history(self) -> list[StepReport]:
        """One report per committed step."""
        return list(self._history)

    @property
    def step_number(self) -> int:
        """Steps committed so far; also the version of the weights."""
        return self._state.step

    def tasks(self, split: str = "train") -> list[Task]:
        """The tasks of every environment, in order."""
        return [task for stream in self._streams for task in stream.env.tasks(split)]

    def rollout(self, draws: int | None = None) -> Groups:
        """Play the next groups with the committed weights; `draws` groups, or as many as fill a batch."""
        count = stages.draws_for(self._streams, self._state.draws, self.batch_size) if draws is None else draws
        at_least("Runner.rollout", 1, draws=count)
        return self._call(self._rollout(self._next(), count))

    def score(self, groups: Sequence[Group], *, advantage: Any = None, algorithm: Any = None) -> Groups:
        """Credit on every trained token, by the Runner's algorithm or by the one given here."""
        return self._score(self._with_commit(groups), advantage, algorithm)

    def admit(self, groups: Sequence[Group]) -> Groups:
        """The groups that pass their curriculum's gates."""
        return stages.admit(self._streams, self._with_commit(groups))

    def collect(self) -> Groups:
        """Rollout, score and admit, in waves, until `batch_size` traces with signal are there."""

        async def wave(commit: Commit, draws: int) -> Groups:
            scored = self._score(await self._rollout(commit, draws), None, None)
            return stages.admit(self._streams, scored)

        return self._call(
            stages.collect(wave, self._streams, self._next(), self.batch_size, replace_silent=self._constant)
        )

    def pack(self, groups: Sequence[Group] | Sequence[TrainingSample]) -> Batch:
        """Rows, weights and counts of one step. Samples instead of groups make a batch that commits weights and step only."""
        samples = [s for g in groups for s in (g.samples if isinstance(g, Group) else [g])]
        commit = commit_of(groups) if isinstance(groups, Groups) or all(isinstance(g, Group) for g in groups) else None
        step = None if commit is None else commit.step
        share = self.model.full_attention
        return pack(samples, max_tokens=self.max_tokens, share_prompts=share, step=step, commit=commit)

    def losses(self, batch: Batch, loss: Loss | Mapping[str, Loss] | None = None) -> dict[str, dict[str, TokenLoss]]:
        """{name: {component: TokenLoss [row, seq]}} of the batch under one or several losses; changes nothing."""
        chosen = self.loss if loss is None else loss
        named = chosen if isinstance(chosen, Mapping) else {_name(chosen): chosen}

        async def work() -> dict[str, dict[str, TokenLoss]]:
            return batch_losses(self.model, batch, named)

        return self._call(work())

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
        if batch.commit is not None and batch.commit.step != self._state.step + 1 and batch not in self._done:
            raise TrainingError(
                f"Runner.update: the batch was collected for step {batch.commit.step}, the next step is "
                f"{self._state.step + 1}. Collect again."
            )
        report = self._call(self._update(batch, again), hold_interrupt=True)
        if not batch.rows:
            warnings.warn(f"step {report.step}: {_why_empty(batch)}; weights stay as they were.", stacklevel=2)
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
                bar.set_postfix_str(_summary(report), refresh=False)
        return reports

    def evaluate(self, split: str, n: int, *, sampling: Sampling | None = None, k: int = 1) -> pl.DataFrame:
        """One row per sample: env, task, prompt, answer, completion, reward, exact (full reward 1.0), error.

        The first n tasks of the split of each environment, k samples each, at the
        Runner's sampling unless given. The same draws at every call.
        """
        at_least("Runner.evaluate", 1, n=n, k=k)
        setting = self._setting(self.sampling if sampling is None else sampling.with_stop(self._stop_ids(sampling)))
        schema = {"env": pl.String, "task": pl.String, "prompt": pl.String, "answer": pl.String, "completion": pl.String}
        rows = self._call(stages.evaluate(self._streams, split, n, k, self.seed, setting))
        return pl.DataFrame(rows, schema={**schema, "reward": pl.Float64, "exact": pl.Boolean, "error": pl.String})

    def save(self, path: str | Path) -> Path:
        """Write a checkpoint folder; its `model/` opens with transformers. The old one stays until the new one is whole."""
        state = {"commit": self._state, "history": self._history, "settings": self._settings()}

        def fill(folder: Path) -> None:
            self.model.module.save_pretrained(folder / "model")
            self.model.tokenizer.save_pretrained(folder / "model")
            write_state(folder, state, self._optimizer)

        write_folder(Path(path), fill)
        return Path(path)

    def load(self, path: str | Path) -> list[str]:
        """Continue from a checkpoint, bit for bit; returns, and warns of, settings that differ from the saved run's.

        Raises:
          DataError: missing, damaged or foreign checkpoint, or one of another model. The Runner stays as it was.
        """
        folder = Path(path)
        state, slots = read_state(folder)
        weights = read_weights(folder / "model", self.model.module)
        mine = self._settings()
        changed = [f"{k}: {state['settings'].get(k)} -> {v}" for k, v in mine.items() if state["settings"].get(k) != v]

        async def restore() -> None:
            weights()
            self._optimizer.load_state_dict(slots)
            for group in self._optimizer.param_groups:
                group["lr"] = self._optimizer_config.lr
            self._state, self._history = state["commit"], list(state["history"])
            self._weights += 1
            self._done.clear()

        self._call(restore(), hold_interrupt=True)
        if changed:
            warnings.warn(f"Runner.load: settings differ from the saved run: {'; '.join(changed)}.", stacklevel=2)
        return changed

    def close(self) -> None:
        """Stop the Runner's thread; it stops by itself when the Runner is gone."""
        self._thread.close()

    def _call(self, work: Any, *, hold_interrupt: bool = False) -> Any:
        return self._thread.run(work, hold_interrupt=hold_interrupt)

    def _next(self) -> Commit:
        return self._state._replace(step=self._state.step + 1, totals={})

    def _with_commit(self, groups: Sequence[Group]) -> Groups:
        return Groups(groups, commit_of(groups) or self._next())

    def _setting(self, sampling: Sampling) -> Setting:
        lockstep = Lockstep(self._engine)
        self._thread.loop.on_stall = lockstep.on_stall
        return Setting(lockstep, self.renderer, sampling, self.model.context)

    async def _rollout(self, commit: Commit, draws: int) -> Groups:
        self._bring_engine()
        return await stages.rollout(self._streams, commit, draws, self.seed, self._setting(self.sampling))

    def _bring_engine(self) -> None:
        """Load the committed weights into the engine, unless it has them."""
        if self._engine_weights != self._weights:
            self._engine.load_weights(self.model.module.named_parameters(), self._state.step)
            self._engine_weights = self._weights

    def _score(self, groups: Groups, advantage: Any, algorithm: Any) -> Groups:
        if advantage is None and algorithm is None:
            advantage = self.advantage
        chosen = None if algorithm is None else as_algorithm(algorithm)
        return stages.score(self._streams, groups, algorithm=chosen, advantage=advantage)

    async def _update(self, batch: Batch, again: bool) -> StepReport:
        step = self._state.step + (0 if again else 1)
        if not batch.rows and len(self._history) >= _EMPTY_LIMIT - 1 and not any(r.tokens for r in self._history[1 - _EMPTY_LIMIT :]):
            raise TrainingError(f"Runner.update, step {step}: {_EMPTY_LIMIT} steps in a row had nothing to train on; last: {_why_empty(batch)}.")
        try:
            done = learn(self.model, self._optimizer, batch, self.loss, self.max_grad_norm) if batch.rows else Learned(0.0, {}, {}, 0.0)
        except TrainingError as error:
            raise TrainingError(f"Runner.update, step {step}: {error}") from None
        report = self._report(step, done, batch)
        # From here to the end nothing can fail: weights, state and history become current together.
        self._weights += 1
        if not again:
            self._state = (batch.commit or self._state)._replace(step=step)
            self._history.append(report)
            self._done[batch] = report
            self._append(report)
        return report

    def _report(self, step: int, done: Learned, batch: Batch) -> StepReport:
        totals = dict(batch.commit.totals) if batch.commit else {}
        reward = totals["reward"] / totals["traces"] if totals.get("traces") else None
        rollout = {f"rollout/{k}": float(v) for k, v in totals.items() if k != "reward"}
        curricula = batch.commit.curricula if batch.commit else {}
        pools = {s.env.name: s.curriculum.at(curricula.get(s.env.name)).metrics() for s in self._streams}
        metrics = {**done.metrics, **rollout, **{f"curriculum/{e}/{k}": v for e, m in pools.items() for k, v in m.items()}}
        trained = sum(int(rows.trained.sum()) for rows in batch.rows)
        now, before = time.perf_counter(), self._clock
        self._clock = now
        return StepReport(step, step, done.loss, done.terms, metrics, reward, done.grad_norm, trained, now - before)

    def _append(self, report: StepReport) -> None:
        if self._out is not None:
            self._out.mkdir(parents=True, exist_ok=True)
            with (self._out / "history.jsonl").open("a", encoding="utf8") as file:
                file.write(json.dumps(report._asdict()) + "\n")

    def _settings(self) -> dict[str, str]:
        parts = {f"source {s.env.name}": f"{s.algorithm!r}, group_size={s.group_size}, {len(s.tasks)} tasks" for s in self._streams}
        fixed = {"loss": _name(self.loss), "optimizer": repr(self._optimizer_config), "sampling": repr(self.sampling)}
        numbers = {"batch_size": self.batch_size, "seed": self.seed, "max_grad_norm": self.max_grad_norm}
        own = {"advantage": _name(self.advantage), "constant_trainer_batch_size": self._constant, "max_tokens": self.max_tokens}
        return {k: str(v) for k, v in {**parts, **fixed, **numbers, **own}.items()}

    def _stop_ids(self, sampling: Sampling) -> tuple[int, ...]:
        ids = list(self.model.renderer.get_stop_token_ids())
        for stop in sampling.stop:
            found = [stop] if isinstance(stop, int) else self.model.tokenizer.encode(stop, add_special_tokens=False)
            if len(found) != 1:
                raise ConfigError(f"Sampling: stop={stop!r} is {len(found)} tokens for this tokenizer; need one, or its id.")
            ids += found
        return tuple(dict.fromkeys(ids))


def _engine(engine: str | Engine, model: Policy) -> Engine:
    if engine == "torch":
        return TorchEngine(model.module)
    if isinstance(engine, str):
        raise ConfigError(f"Runner: unknown engine {engine!r}; need 'torch' or an Engine object.")
    return engine


def _name(thing: Any) -> str:
    return getattr(thing, "type", None) or getattr(thing, "__name__", None) or repr(thing)


def _why_empty(batch: Batch) -> str:
    if batch.commit is None:
        return "the batch holds no sample that trains anything"
    totals = batch.commit.totals
    return (
        f"no sample carries a training signal ({totals.get('episodes', 0)} episodes, {totals.get('errors', 0)} failed, "
        f"mean reward {totals.get('reward', 0) / max(totals.get('traces', 0), 1):.3g}): within each group all credit is zero"
    )


def _summary(report: StepReport) -> str:
    m = report.metrics
    rate = m.get("rollout/output_tokens", 0) / max(report.seconds, 1e-9)
    shown = {"reward": report.reward, "kept": m.get("rl/kept"), "mismatch_kl": m.get("rl/mismatch_kl"), "tok/s": rate}
    return ", ".join(f"{k}={v:.3g}" for k, v in shown.items() if v is not None)
