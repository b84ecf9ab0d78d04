"""From a committed state to a step's groups: rollouts, credit, admission. Nothing here changes the Runner."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from prl.algorithms import Algorithm
from prl.config import FrozenModel
from prl.curricula import Curriculum
from prl.errors import DataError, TrainingError
from prl.randomness import Key, python_random
from prl.references import Scorers, add_references
from prl.rollouts import Chat, Play, Setting, play_all
from prl.sources import Stream
from prl.trajectories import drop_zero_signal
from prl.types import Commit, Group, Groups, Task, Trace

_GIVE_UP = 10  # batch-equivalents in a row without a trace to train


class _Draw(NamedTuple):
    stream: Stream
    number: int
    task: Task

    @property
    def id(self) -> str:
        return f"{self.stream.env.name}/{self.task.key}@{self.number}"


ChatOf = Callable[[str, FrozenModel], Chat]
"""(environment, model) -> the environment's client of it."""


async def rollout(
    streams: Sequence[Stream], commit: Commit, draws: int, seed: int, setting: Setting, chat_of: ChatOf
) -> Groups:
    """The next `draws` groups, streams taken in turn; the result's commit has used them up.

    Raises:
      TrainingError: every episode of the step so far failed; raised from the first one's exception.
    """
    curricula = {s.env.name: s.curriculum.at(commit.curricula.get(s.env.name)) for s in streams}
    plan = [_draw(streams, curricula, commit.draws + i, seed) for i in range(draws)]
    plays = [play for d in plan for play in _plays(d, seed, chat_of)]
    played = iter(await play_all(plays, setting))
    outcomes = {d.id: [next(played) for _ in range(d.stream.group_size)] for d in plan}
    errors = [p.error for group in outcomes.values() for p in group if p.error is not None]
    if errors and len(errors) == len(plays) and not commit.totals.get("traces"):
        raise TrainingError(f"rollout: all {len(plays)} episodes failed; the first with {errors[0]!r}.") from errors[0]
    groups = [Group(d.id, d.stream.env.name, d.task, tuple(p.episode for p in outcomes[d.id])) for d in plan]
    return Groups(groups, commit._replace(draws=commit.draws + draws, totals=_count(groups, commit.totals)))


def _plays(draw: _Draw, seed: int, chat_of: ChatOf) -> list[Play]:
    stream, name = draw.stream, draw.stream.env.name
    chats = {role: chat_of(name, model) for role, model in stream.frozen.items()}
    options: dict[str, Any] = {
        "chats": chats, "pinned": frozenset(stream.pinned), "needed": stream.algorithm.component == "rl"
    }  # fmt: skip
    key = (seed, "train", name, draw.number)
    return [Play(f"{draw.id}/{e}", stream.env, draw.task, (*key, e), **options) for e in range(stream.group_size)]


def _draw(streams: Sequence[Stream], curricula: Mapping[str, Curriculum], number: int, seed: int) -> _Draw:
    stream, own = streams[number % len(streams)], number // len(streams)
    rng = python_random((seed, "task", stream.env.name, own))
    return _Draw(stream, own, curricula[stream.env.name].sampler.sample(stream.tasks, own, rng))


async def score(
    streams: Sequence[Stream], groups: Groups, scorers: Scorers, *, instead: Algorithm | None = None
) -> Groups:
    """References, then credit for each group in order, each environment's state passed on from group to group.

    `instead` replaces every environment's algorithm for this call: it starts from its own
    first state, and what will be committed stays as it was.
    """
    chosen = {s.env.name: instead or s.algorithm for s in streams}
    committed = {} if instead else groups.commit.algorithms
    states = copy.deepcopy(dict(committed))  # a function that changes its state in place stays harmless
    scored = []
    groups = await add_references(chosen, groups, scorers)
    for group in groups:
        algorithm, state = chosen[group.env], states.get(group.env)
        fresh, states[group.env] = algorithm.score_group(group, algorithm.init_state() if state is None else state)
        scored.append(fresh)
    return Groups(scored, groups.commit if instead else groups.commit._replace(algorithms=states))


def admit(streams: Sequence[Stream], groups: Groups) -> Groups:
    """Groups that pass every gate of their curriculum. Samplers observe all of them."""
    curricula = {s.env.name: s.curriculum.at(groups.commit.curricula.get(s.env.name)) for s in streams}
    admitted = []
    for group in groups:
        curricula[group.env].sampler.observe(group)
        if curricula[group.env].admit(group):
            admitted.append(group)
    states = {name: curriculum.state_dict() for name, curriculum in curricula.items()}
    return Groups(admitted, groups.commit._replace(curricula=states))


async def collect(
    wave: Callable[[Commit, int], Any],
    streams: Sequence[Stream],
    commit: Commit,
    batch_size: int,
    *,
    replace_silent: bool,
) -> Groups:
    """Waves of scored and admitted groups until `batch_size` traces with signal are there.

    `wave(commit, draws)` rolls out, scores and admits. Replacements come in waves of
    exactly the missing number; the last group may overshoot. With `replace_silent` off
    there is one wave. A first batch-equivalent without any signal ends the collection.

    Raises:
      TrainingError: ten batch-equivalents in a row brought no signal to a batch that had some.
    """
    kept: list[Group] = []
    have, barren = 0, 0.0
    while have < batch_size:
        draws = draws_for(streams, commit.draws, batch_size - have)
        groups = await wave(commit, draws)
        commit, gained = groups.commit, sum(has_signal(t) for g in groups for t in g.traces)
        kept, have = [*kept, *groups], have + gained
        barren = 0.0 if gained else barren + draws_size(streams, commit.draws - draws, draws) / batch_size
        if not replace_silent or (have == 0 and barren >= 1):
            break
        if barren >= _GIVE_UP:
            raise TrainingError(
                f"collect: {have} of {batch_size} traces have signal; {_GIVE_UP} batches of rollouts brought no more. "
                "Set constant_trainer_batch_size=False to train on what is there, or look at the rewards."
            )
    return Groups(kept, commit)


def draws_size(streams: Sequence[Stream], first: int, draws: int) -> int:
    """Trainable traces in `draws` groups from draw number `first` on, where every role speaks in every episode."""
    turn = [streams[(first + i) % len(streams)] for i in range(draws)]
    return sum(stream.group_size * stream.learners for stream in turn)


def draws_for(streams: Sequence[Stream], first: int, traces: int) -> int:
    """Fewest groups from draw number `first` on that hold at least that many traces, by `draws_size`."""
    draws = 0
    while draws_size(streams, first, draws) < traces:
        draws += 1
    return draws


def has_signal(trace: Trace) -> bool:
    """Whether some sample of the trace still trains after zero-advantage tokens are dropped."""
    return bool(drop_zero_signal(trace.samples))


EVALUATION = {
    **dict.fromkeys(("env", "task", "prompt", "answer", "completion"), pl.String),
    "reward": pl.Float64, "exact": pl.Boolean, "error": pl.String,
}  # fmt: skip
"""Columns of an evaluation."""


async def evaluate(
    streams: Sequence[Stream], split: str, n: int, k: int, seed: int, setting: Setting, chat_of: ChatOf
) -> list[dict[str, Any]]:
    """One row per sample: the first n tasks of the split of each environment, k samples each, the same draws always.

    A failed episode has reward null and is not exact.
    """
    plays = []
    for stream in streams:
        tasks = stream.env.tasks(split)
        if n > len(tasks):
            raise DataError(
                f"evaluate: {n} tasks asked for; the {split!r} split of {stream.env.name!r} holds {len(tasks)}."
            )
        for i, task in enumerate(tasks[:n]):
            key: Key = (seed, "eval", stream.env.name, i)
            chats = {role: chat_of(stream.env.name, model) for role, model in stream.pinned.items()}
            name = f"{stream.env.name}/{task.key}@eval"
            plays += [Play(f"{name}/{e}", stream.env, task, (*key, e), chats, stream.pinned) for e in range(k)]
    played = await play_all(plays, setting)
    return [_row(play, p.episode) for play, p in zip(plays, played, strict=True)]


def _row(play: Play, episode: Any) -> dict[str, Any]:
    rewards = [t.reward for t in episode.traces if episode.error is None]
    reward = sum(rewards) / len(rewards) if rewards else None
    said = [m["content"] for t in episode.traces for m in t.messages if m["role"] == "assistant"]
    return {
        "env": play.env.name, "task": play.task.key, "prompt": play.task.prompt, "answer": play.task.answer,
        "completion": said[-1] if said else None, "reward": reward, "exact": reward == 1.0, "error": episode.error,
    }  # fmt: skip


def _count(groups: Sequence[Group], before: Mapping[str, float]) -> dict[str, float]:
    """Sums over the step's rollouts so far."""
    episodes = [e for g in groups for e in g.episodes]
    traces = [t for e in episodes if e.error is None for t in e.traces]
    steps = [s for t in traces for s in t.steps]
    fresh = {
        "episodes": len(episodes), "errors": sum(e.error is not None for e in episodes), "traces": len(traces),
        "reward": sum(t.reward for t in traces), "calls": len(steps), "truncated": sum(s.truncated for s in steps),
        "output_tokens": sum(len(s.completion_ids) for s in steps),
    }  # fmt: skip
    return {name: float(before.get(name, 0) + value) for name, value in fresh.items()}
