"""Task -> Trace -> Episode -> Group: what one prompt's rollouts said and earned."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from prl.errors import DataError
from prl.types.sample import TrainingSample
from prl.types.step import Step, new_prompt_tokens

ASSIGNABLE = ("advantages", "ref_logprobs", "rl_weights", "ce_weights", "ref_kl_weights")


@dataclass(frozen=True)
class Task:
    """One problem of an environment. `key` is stable and unique in its split; `info` is the environment's own."""

    key: str
    prompt: str
    answer: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """One agent's part of an episode: its calls, and the samples they merged into.

    `valid`: the rollout counts (it ended without error). `trainable`: the policy may
    learn from it. A reward must be finite unless the trace is not valid. `edges` are
    (source step, target step, kind) of calls that belong together, as `subagent_steps` reads them.

    Raises:
      DataError: the reward of a valid trace is not a finite number.
    """

    id: str
    agent: str
    steps: Sequence[Step]
    samples: Sequence[TrainingSample]
    reward: float | int
    valid: bool = True
    trainable: bool = True
    messages: Sequence[Mapping[str, Any]] = ()
    edges: Sequence[tuple[int, int, str]] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "samples", "messages", "edges"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "reward", float(self.reward))
        if self.valid and not math.isfinite(self.reward):
            raise DataError(f"Trace {self.id!r}: reward is {self.reward}; a valid rollout needs a finite number.")

    def __repr__(self) -> str:
        return f"Trace({self.id!r}, reward {self.reward:.4g}, {len(self.steps)} calls, {len(self.samples)} samples)"

    @property
    def takes_part(self) -> bool:
        """True where the trace takes part in baselines and training: valid, trainable, with a sampled token."""
        return self.valid and self.trainable and any(sample.loss_mask.any() for sample in self.samples)


@dataclass(frozen=True, eq=False, repr=False)
class Episode:
    """One play of a task. `error` is the traceback of a play that failed, else None."""

    id: str
    traces: Sequence[Trace]
    error: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "traces", tuple(self.traces))

    def __repr__(self) -> str:
        last = "" if self.error is None else f", failed: {self.error.strip().splitlines()[-1]}"
        return f"Episode({self.id!r}, {len(self.traces)} traces{last})"


class Commit(NamedTuple):
    """What a step leaves behind besides weights; it travels on groups and batch and `Runner.update` makes it current.

    `draws` counts groups drawn since the start; `algorithms` and `curricula` hold each
    environment's state; `totals` sums what the step's rollouts were (rewards, errors, tokens, ...).
    """

    step: int
    draws: int
    algorithms: Mapping[str, Any]
    curricula: Mapping[str, Any]
    totals: Mapping[str, float]


@dataclass(frozen=True, eq=False, repr=False)
class Group:
    """The rollouts of one prompt.

    Every property speaks of the valid trainable traces, in order: the axis `traces`.
    """

    id: str
    env: str
    task: Task
    episodes: Sequence[Episode]
    commit: Commit | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "episodes", tuple(self.episodes))

    def __repr__(self) -> str:
        mean = f", mean reward {self.rewards.mean():.4g}" if self.traces else ""
        return f"Group({self.id!r}, {len(self.traces)} of {sum(len(e.traces) for e in self.episodes)} traces{mean})"

    @cached_property
    def traces(self) -> tuple[Trace, ...]:
        return tuple(t for episode in self.episodes if episode.error is None for t in episode.traces if t.takes_part)

    @property
    def rewards(self) -> Tensor:
        """float32 [traces]."""
        return torch.tensor([trace.reward for trace in self.traces], dtype=torch.float32)

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(trace.agent for trace in self.traces)

    @property
    def episode_ids(self) -> tuple[str, ...]:
        return tuple(e.id for e in self.episodes if e.error is None for t in e.traces if t.takes_part)

    @property
    def samples(self) -> tuple[TrainingSample, ...]:
        return tuple(sample for trace in self.traces for sample in trace.samples)

    @property
    def lengths(self) -> Tensor:
        """float32 [traces]: trained tokens of each trace, over all its samples."""
        return self._per_trace(lambda trace: sum(int(s.loss_mask.sum()) for s in trace.samples))

    @property
    def output_tokens(self) -> Tensor:
        """float32 [traces]: tokens the model wrote, each call once."""
        return self._per_trace(lambda trace: sum(len(step.completion_ids) for step in trace.steps))

    @property
    def input_tokens(self) -> Tensor:
        """float32 [traces]: tokens put in front of the model, those it had already seen left out."""
        return self._per_trace(lambda trace: sum(new_prompt_tokens(trace.steps)))

    @property
    def turns(self) -> Tensor:
        """float32 [traces]: model calls."""
        return self._per_trace(lambda trace: len(trace.steps))

    def _per_trace(self, count: Any) -> Tensor:
        return torch.tensor([count(trace) for trace in self.traces], dtype=torch.float32)

    def assign(self, **streams: Tensor | Sequence[Any]) -> "Group":
        """The same group with streams set on its samples.

        A tensor [traces] gives each trace one number, spread over its trained tokens
        and 0.0 elsewhere. A list gives one stream per sample, of the sample's length or
        aligned to its trained tokens.

        Raises:
          DataError: unknown stream, or a length that fits neither.
        """
        per_sample = {name: self._spread(name, values) for name, values in streams.items()}
        pieces = ({name: values[i] for name, values in per_sample.items()} for i in range(len(self.samples)))
        return self._with_samples([old.with_streams(**piece) for old, piece in zip(self.samples, pieces, strict=True)])

    def _with_samples(self, fresh: Sequence[TrainingSample]) -> "Group":
        rest = iter(fresh)

        def renew(episode: Episode, trace: Trace) -> Trace:
            if episode.error is not None or not trace.takes_part:
                return trace
            return replace(trace, samples=[next(rest) for _ in trace.samples])

        return replace(self, episodes=[replace(e, traces=[renew(e, t) for t in e.traces]) for e in self.episodes])

    def _spread(self, name: str, values: Tensor | Sequence[Any]) -> list[np.ndarray]:
        where = f"Group {self.id!r}, assign({name}=...)"
        if name not in ASSIGNABLE:
            raise DataError(f"{where}: unknown stream; one of {', '.join(ASSIGNABLE)}.")
        if isinstance(values, Tensor):
            if values.shape != (len(self.traces),):
                raise DataError(
                    f"{where}: a tensor of shape {list(values.shape)}; need [{len(self.traces)}], one per trace."
                )
            numbers = values.detach().cpu().numpy().astype(np.float32)
            owners = [i for i, trace in enumerate(self.traces) for _ in trace.samples]
            return [np.where(s.loss_mask, numbers[i], np.float32(0)) for i, s in zip(owners, self.samples, strict=True)]
        if len(values) != len(self.samples):
            raise DataError(f"{where}: {len(values)} streams for {len(self.samples)} samples; give one per sample.")
        return [_aligned(where, s, v) for s, v in zip(self.samples, values, strict=True)]


def _aligned(where: str, sample: TrainingSample, values: Any) -> np.ndarray:
    values = np.asarray(values, np.float32)
    if values.ndim != 1:
        raise DataError(
            f"{where}, sample {sample.id!r}: got shape {list(values.shape)}; a list holds one stream per sample. "
            "For one number per trace give a tensor."
        )
    if len(values) == len(sample):
        return values
    trained = int(sample.loss_mask.sum())
    if len(values) != trained:
        raise DataError(
            f"{where}, sample {sample.id!r}: stream has {len(values)} entries; need {len(sample)}, one per token, "
            f"or {trained}, one per trained token."
        )
    stream = np.zeros(len(sample), np.float32)
    stream[sample.loss_mask] = values
    return stream


class Groups(list[Group]):
    """Groups of one step with what they will commit, also where none of them is left."""

    def __init__(self, groups: Iterable[Group], commit: Commit) -> None:
        super().__init__(replace(group, commit=commit) for group in groups)
        self.commit = commit


def commit_of(groups: Sequence[Group]) -> Commit | None:
    """The commit of `Groups`, or the latest that a plain list of groups carries; None for hand-made ones."""
    if isinstance(groups, Groups):
        return groups.commit
    commits = [group.commit for group in groups if group.commit is not None]
    return max(commits, key=lambda c: (c.step, c.draws), default=None)
