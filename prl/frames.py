"""Polars frames of what the stages pass along: one row per token, rollout, group, training step.

Log-probabilities are in nats; rewards, advantages and weights have no unit. A value that
does not exist is null: a stream that a sample does not have, the reward of a failed episode.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import polars as pl

from prl.types import ROLES, Batch, Episode, Group, StepReport, Trace, TrainingSample

Decode = Callable[[list[int]], str]
"""Token ids to text, as `tokenizer.decode`."""

_STREAM_COLUMNS = {
    "mask": ("loss_mask", pl.Boolean),
    "role": ("roles", pl.String),
    "step": ("step", pl.Int32),
    "message": ("message", pl.Int32),
    "advantage": ("advantages", pl.Float32),
    "inference_logprob": ("inference_logprobs", pl.Float32),
    "ref_logprob": ("ref_logprobs", pl.Float32),
    "rl_weight": ("rl_weights", pl.Float32),
    "ce_weight": ("ce_weights", pl.Float32),
    "ref_kl_weight": ("ref_kl_weights", pl.Float32),
    "temperature": ("temperatures", pl.Float32),
    "version": ("version", pl.Int32),
}
_TOKENS = {"sample_id": pl.String, "position": pl.Int32, "token_id": pl.Int32}
_ROLLOUTS = {
    "group_id": pl.String,
    "env": pl.String,
    "task_key": pl.String,
    "episode_id": pl.String,
    "trace_id": pl.String,
    "agent": pl.String,
    "reward": pl.Float64,
    "valid": pl.Boolean,
    "trainable": pl.Boolean,
    "error": pl.String,
    "output_tokens": pl.Int64,
    "turns": pl.Int64,
    "truncated": pl.Boolean,
    "mean_advantage": pl.Float64,
}
_GROUPS = {
    "group_id": pl.String,
    "env": pl.String,
    "task_key": pl.String,
    "rollouts": pl.Int64,
    "errors": pl.Int64,
    "mean_reward": pl.Float64,
    "min_reward": pl.Float64,
    "max_reward": pl.Float64,
    "signal": pl.Boolean,
}
_STEPS = {
    "step": pl.Int64,
    "version": pl.Int64,
    "loss": pl.Float64,
    "reward": pl.Float64,
    "grad_norm": pl.Float64,
    "tokens": pl.Int64,
    "seconds": pl.Float64,
}


def tokens(x: TrainingSample | Group | Batch | Sequence[Any], decode: Decode | None = None) -> pl.DataFrame:
    """One row per token of every sample in `x`, in order; a group gives the samples of its valid trainable traces.

    Args:
      x: a sample, a group, a batch, or a sequence of them.
      decode: token ids to text; adds a `text` column, each token decoded by itself.

    Returns:
      sample_id, position (from 0), token_id, [text], mask, role (a name of `ROLES`), step,
      message (-1 outside any), advantage, inference_logprob and ref_logprob (nats),
      rl_weight, ce_weight, ref_kl_weight, temperature, version. Streams are as stored: null
      where a sample has none, so a null rl_weight still means 1.0 on the mask.
    """
    schema = _TOKENS | {name: dtype for name, (_, dtype) in _STREAM_COLUMNS.items()}
    frame = pl.concat([pl.DataFrame(schema=schema), *(_token_rows(sample) for sample in _samples(x))])
    if decode is None:
        return frame
    text = {i: decode([i]) for i in frame["token_id"].unique().to_list()}
    column = pl.Series("text", [text[i] for i in frame["token_id"]], pl.String)
    return frame.insert_column(3, column)


def _samples(x: TrainingSample | Group | Batch | Sequence[Any]) -> Iterable[TrainingSample]:
    match x:
        case TrainingSample():
            return [x]
        case Group() | Batch():
            return x.samples
        case _:
            return chain.from_iterable(_samples(item) for item in x)


def _token_rows(sample: TrainingSample) -> pl.DataFrame:
    n = len(sample)
    columns = [
        pl.repeat(sample.id, n, dtype=pl.String, eager=True).alias("sample_id"),
        pl.Series("position", np.arange(n, dtype=np.int32)),
        pl.Series("token_id", sample.token_ids),
    ]
    for name, (stream, dtype) in _STREAM_COLUMNS.items():
        values = getattr(sample, stream)
        if stream == "roles" and values is not None:
            values = [ROLES[code] for code in values]
        missing = pl.repeat(None, n, dtype=dtype, eager=True)
        columns.append(missing.alias(name) if values is None else pl.Series(name, values, dtype))
    return pl.DataFrame(columns)


def rollouts(groups: Sequence[Group], decode: Decode | None = None) -> pl.DataFrame:
    """One row per trace, whether or not it takes part in training; an episode that left no trace has one row too.

    Returns:
      group_id, env, task_key, episode_id, trace_id, agent, reward (null where it is not a
      finite number), valid, trainable, error (see `error_line`), output_tokens (tokens the
      model wrote), turns (model calls), truncated (a call hit the token limit),
      mean_advantage (over the tokens of the mask; null before scoring), and with `decode`
      completion: the text of each call, joined by a blank line.
    """
    rows = [_rollout_row(g, e, t, decode) for g in groups for e in g.episodes for t in e.traces or (None,)]
    return pl.DataFrame(rows, _ROLLOUTS | ({"completion": pl.String} if decode else {}))


def _rollout_row(group: Group, episode: Episode, trace: Trace | None, decode: Decode | None) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(_ROLLOUTS)
    row |= {"group_id": group.id, "env": group.env, "task_key": group.task.key, "episode_id": episode.id}
    row["error"] = error_line(episode.error)
    if trace is None:
        return row | {"valid": False, "trainable": False, "output_tokens": 0, "turns": 0, "truncated": False}
    row |= {"trace_id": trace.id, "agent": trace.agent, "valid": trace.valid, "trainable": trace.trainable}
    row["reward"] = float(trace.reward) if math.isfinite(trace.reward) else None
    row["output_tokens"] = sum(len(step.completion_ids) for step in trace.steps)
    row["turns"] = len(trace.steps)
    row["truncated"] = any(step.truncated for step in trace.steps)
    row["mean_advantage"] = _mean_advantage(trace.samples)
    if decode is not None:
        row["completion"] = "\n\n".join(decode(step.completion_ids.tolist()) for step in trace.steps)
    return row


def _mean_advantage(samples: Sequence[TrainingSample]) -> float | None:
    trained = [s.advantages[s.loss_mask] for s in samples if s.advantages is not None]
    values = np.concatenate(trained) if trained else np.zeros(0)
    return float(values.mean()) if len(values) else None


def error_line(error: str | None) -> str | None:
    """The line of a traceback that names the exception; of any other text the first line."""
    if not error:
        return error
    lines = error.strip().splitlines() or [""]
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    after = lines[starts[-1] + 1 :] if starts else lines
    return next((line for line in after if line and not line.startswith(" ")), lines[0])


def groups(groups: Sequence[Group]) -> pl.DataFrame:
    """One row per group.

    Returns:
      group_id, env, task_key, rollouts (valid trainable traces), errors (episodes that
      failed), mean_reward, min_reward and max_reward over the rollouts (null where there are
      none), signal (some token has an advantage that is not 0; null before scoring).
    """
    return pl.DataFrame([_group_row(group) for group in groups], _GROUPS)


def _group_row(group: Group) -> dict[str, Any]:
    rewards = [float(trace.reward) for trace in group.traces]
    advantages = [s.advantages for s in group.samples if s.advantages is not None]
    return {
        "group_id": group.id,
        "env": group.env,
        "task_key": group.task.key,
        "rollouts": len(rewards),
        "errors": sum(episode.error is not None for episode in group.episodes),
        "mean_reward": math.fsum(rewards) / len(rewards) if rewards else None,
        "min_reward": min(rewards, default=None),
        "max_reward": max(rewards, default=None),
        "signal": any(a.any() for a in advantages) if advantages else None,
    }


def steps(history: Sequence[StepReport]) -> pl.DataFrame:
    """One row per report: step, version, loss, reward, grad_norm, tokens, seconds, then terms and metrics.

    A term is a column `loss/rl`, a metric one of its own name, as `rl/mismatch_kl`; null in
    the steps that do not report it. Losses and log-ratios are in nats.
    """
    rows = [_step_row(report) for report in history]
    extra = dict.fromkeys(name for row in rows for name in row if name not in _STEPS)
    schema = _STEPS | {name: pl.Float64 for name in extra}
    return pl.DataFrame({name: [row.get(name) for row in rows] for name in schema}, schema)


def _step_row(report: StepReport) -> Mapping[str, Any]:
    row = {name: getattr(report, name) for name in _STEPS}
    row |= {f"loss/{name}": float(value) for name, value in report.terms.items()}
    return row | {name: float(value) for name, value in report.metrics.items()}
