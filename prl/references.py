"""Reference scoring: the only model calls between rollouts and credit."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from prl.algorithms import Algorithm, Models, references_of
from prl.config import FrozenModel, ModelRef
from prl.engines.base import Engine
from prl.errors import DataError, TrainingError
from prl.types import Group, Groups, Task, TrainingSample

FrozenScore = Callable[[str, FrozenModel, np.ndarray], Awaitable[np.ndarray]]
"""(environment, model, token ids) -> log-probabilities, by the environment's own client."""


class Scorers(NamedTuple):
    """Who scores: the policy's engine at `version`, frozen models, and the policy's renderer and tokenizer."""

    policy: Engine
    version: int
    frozen: FrozenScore
    renderer: Any
    tokenizer: Any


class _Job(NamedTuple):
    group: int
    sample: int
    stream: str


async def add_references(algorithms: Mapping[str, Algorithm], groups: Groups, scorers: Scorers) -> Groups:
    """Every stream that the groups' algorithms ask models for, on the samples; 0.0 outside the loss mask.

    Samples are asked for side by side. An episode whose scoring fails is recorded with the
    traceback and counts no more. The version at which the policy scored goes to the step's
    totals as `reference_version`.

    Raises:
      TrainingError: scoring failed for every sample, from the first failure.
    """
    jobs = [
        _Job(g, i, stream)
        for g, group in enumerate(groups)
        for stream in references_of(algorithms[group.env])
        for i, sample in enumerate(group.samples)
        if sample.loss_mask.any()
    ]
    if not jobs:
        return groups
    local = _LocalScores(len(jobs))
    try:
        found = await _all([_score(j, number, groups, algorithms, local, scorers) for number, j in enumerate(jobs)])
    finally:
        local.stop()
    failed = {job: value for job, value in zip(jobs, found, strict=True) if isinstance(value, Exception)}
    if len(failed) == len(jobs):
        first = next(iter(failed.values()))
        raise TrainingError(f"reference scoring: all {len(jobs)} samples failed; the first with {first!r}.") from first
    streams = {job: value for job, value in zip(jobs, found, strict=True) if not isinstance(value, Exception)}
    scored = [_assigned(group, g, streams, failed) for g, group in enumerate(groups)]
    lost = sum(e.error is not None for g in scored for e in g.episodes)
    lost -= sum(e.error is not None for g in groups for e in g.episodes)
    totals = {**groups.commit.totals, "errors": groups.commit.totals.get("errors", 0.0) + lost}
    totals |= {"reference_version": float(scorers.version)} if scorers.policy in local.asked else {}
    return Groups(scored, groups.commit._replace(totals=totals))


async def _score(
    job: _Job,
    number: int,
    groups: Sequence[Group],
    algorithms: Mapping[str, Algorithm],
    local: "_LocalScores",
    scorers: Scorers,
) -> np.ndarray | Exception:
    group = groups[job.group]
    sample = group.samples[job.sample]

    async def score(model: ModelRef | Engine, token_ids: np.ndarray) -> np.ndarray:
        ids = np.asarray(token_ids, np.int32)
        if isinstance(model, FrozenModel):
            return await scorers.frozen(group.env, model, ids)
        return await local.score(scorers.policy if isinstance(model, str) else model, number, ids)

    try:
        reference = references_of(algorithms[group.env])[job.stream]
        values = await reference(sample, Models(score, group.task, scorers.renderer, scorers.tokenizer))
        return _checked(job.stream, sample, group.task, values)
    except Exception as error:
        return error
    finally:
        local.leave()


def _checked(stream: str, sample: TrainingSample, task: Task, values: Any) -> np.ndarray:
    values = np.asarray(values, np.float32)
    if values.shape != (len(sample),):
        raise DataError(
            f"reference {stream}, sample {sample.id!r}: got shape {list(values.shape)}; need [{len(sample)}], one "
            "number per token."
        )
    if (bad := np.flatnonzero(sample.loss_mask & ~np.isfinite(values))).size:
        raise DataError(f"reference {stream}, sample {sample.id!r}: got {values[bad[0]]} at token {bad[0]}.")
    return np.where(sample.loss_mask, values, np.float32(0))


def _assigned(group: Group, number: int, streams: Mapping[_Job, np.ndarray], failed: Mapping[_Job, Exception]) -> Group:
    """The group with its streams, and with the episodes marked whose scoring failed."""
    if not any(job.group == number for job in (*streams, *failed)):
        return group
    names = dict.fromkeys(job.stream for job in (*streams, *failed) if job.group == number)
    nothing = [np.zeros(len(sample), np.float32) for sample in group.samples]
    given = {
        name: [streams.get(_Job(number, i, name), blank) for i, blank in enumerate(nothing)] for name in names
    }  # fmt: skip
    errors = {group.samples[job.sample].id: error for job, error in failed.items() if job.group == number}
    group = group.assign(**given)

    def marked(episode: Any) -> Any:
        own = [s.id for trace in episode.traces for s in trace.samples if s.id in errors]
        if not own:
            return episode
        text = "".join(traceback.format_exception(errors[own[0]]))
        return replace(episode, error=text, traces=[replace(t, valid=False) for t in episode.traces])

    return replace(group, episodes=[marked(episode) for episode in group.episodes])


class _Waiting(NamedTuple):
    job: int
    engine: Engine
    ids: np.ndarray
    future: "asyncio.Future[np.ndarray]"


class _LocalScores:
    """Asks an engine for many samples at once: when every job waits for one, or jobs that do not have left."""

    def __init__(self, jobs: int) -> None:
        self._live = jobs
        self.asked: list[Engine] = []
        self._waiting: list[_Waiting] = []
        self._runs: list[asyncio.Task[None]] = []

    async def score(self, engine: Engine, job: int, ids: np.ndarray) -> np.ndarray:
        future: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
        if engine not in self.asked:
            self.asked.append(engine)
        self._waiting.append(_Waiting(job, engine, ids, future))
        self._start()
        return await future

    def leave(self) -> None:
        self._live -= 1
        self._start()

    def stop(self) -> None:
        for run in self._runs:
            run.cancel()

    def _start(self) -> None:
        if self._waiting and len(self._waiting) >= self._live:
            batch, self._waiting = sorted(self._waiting, key=lambda w: w.job), []
            for engine in self.asked:
                own = [w for w in batch if w.engine is engine]
                self._runs.append(asyncio.get_running_loop().create_task(_score_batch(engine, own)))


async def _score_batch(engine: Engine, batch: list[_Waiting]) -> None:
    try:
        answers: list[Any] = [*await engine.score([w.ids for w in batch])] if batch else []
    except Exception as error:
        answers = [error] * len(batch)
    for waiting, answer in zip(batch, answers, strict=True):
        if not waiting.future.done():
            failed = isinstance(answer, Exception)
            waiting.future.set_exception(answer) if failed else waiting.future.set_result(answer)


async def _all(coros: list[Any]) -> list[Any]:
    """Their results in order; cancelled together."""
    tasks = [asyncio.create_task(coro) for coro in coros]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
