"""Pictures: how a run went (`history`), and what each token of a group got (`group_advantages`)."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.ticker import MaxNLocator

from prl import frames
from prl.types import Group, StepReport, Trace
from prl.viz import palette
from prl.viz.picture import FONT, MONO, WIDTH, Picture, drawable, note, tidy
from prl.viz.text import visible

DIVERGING = LinearSegmentedColormap.from_list(
    "prl_diverging", [*reversed(palette.NEGATIVE), palette.PAPER, *palette.POSITIVE]
)
_TITLE = 70  # characters of a prompt
_COLOURS = {"total": palette.REWARD, "reward": palette.REWARD} | palette.COMPONENTS


def history(frame_or_reports: pl.DataFrame | Sequence[StepReport]) -> Picture:
    """Reward, loss, mismatch KL and kept share against the training step; a panel without data is left out.

    Args:
      frame_or_reports: `frames.steps(...)`, or the reports themselves.
    """
    given = isinstance(frame_or_reports, pl.DataFrame)
    frame = frame_or_reports if given else frames.steps(frame_or_reports)
    panels = _panels(frame)
    if not panels:
        return note("No training step yet.")
    picture = Picture(figsize=(WIDTH, 2.75 * ((len(panels) + 1) // 2)))
    axes = list(picture.subplots((len(panels) + 1) // 2, min(2, len(panels)), squeeze=False).flat)
    for ax, (label, columns) in zip(axes, panels.items(), strict=False):
        _lines(ax, frame, label, columns)
    for ax in axes[len(panels) :]:
        ax.remove()
    return picture


def _panels(frame: pl.DataFrame) -> dict[str, dict[str, str]]:
    """Label of the y axis -> {name of the line: column}, for columns that hold a number."""
    names = palette.COMPONENTS
    terms = {name: f"loss/{name}" for name in names if _ever_trained(frame, name)}
    panels = {
        "reward, mean per rollout": {"reward": "reward"},
        "loss per token (ce in nats)": {"total": "loss"} | terms,
        "mismatch KL (nats per token)": {name: f"{name}/mismatch_kl" for name in names},
        "kept share of tokens": {name: f"{name}/kept" for name in names},
    }
    filled = {label: {k: c for k, c in lines.items() if _has_numbers(frame, c)} for label, lines in panels.items()}
    return {label: lines for label, lines in filled.items() if lines}


def _ever_trained(frame: pl.DataFrame, component: str) -> bool:
    """A component without a member token in any step has a term of 0 throughout and no line."""
    column = f"loss/{component}"
    return _has_numbers(frame, column) and bool((frame[column] != 0).any())


def _has_numbers(frame: pl.DataFrame, column: str) -> bool:
    return column in frame.columns and frame[column].count() > 0


def _lines(ax: Axes, frame: pl.DataFrame, label: str, columns: Mapping[str, str]) -> None:
    few = len(frame) <= 40
    for name, column in columns.items():
        seen = frame.filter(pl.col(column).is_not_null())
        style = "--" if name == "total" and len(columns) > 1 else "-"
        dot = "o" if few else None
        ax.plot(seen["step"], seen[column], style, color=_COLOURS[name], label=name, marker=dot, markersize=3)
    if label.startswith("kept"):
        ax.set_ylim(-0.03, 1.03)
    ax.set(xlabel="training step", ylabel=label)
    if len(frame) == 1:
        ax.set_xlim(frame["step"][0] - 1, frame["step"][0] + 1)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(ax)
    if list(columns) != ["reward"]:
        ax.legend(frameon=False, fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1, 1))


def group_advantages(group: Group, decode_token: Callable[[int], str]) -> Picture:
    """The advantage of every trained token of a group: a lane per rollout, its reward at the right.

    x counts the tokens of the mask, over all samples of the trace, from 0: prompt and tool
    output are left out. Blue with a solid line is above 0, orange with a dotted line below,
    white is 0 or not scored. A token is written into its cell where it fits.

    Args:
      group: its valid trainable traces are drawn, in order; without one, a sentence says so.
      decode_token: token id to text; see `prl.viz.token_text`.
    """
    if not group.traces:
        failed = sum(episode.error is not None for episode in group.episodes)
        return note(f"{group.id}: no rollout takes part ({failed} of {len(group.episodes)} episodes failed).")
    lanes = [_lane(trace) for trace in group.traces]
    table, longest = _table([values for _, values in lanes]), max(len(ids) for ids, _ in lanes)
    lane_height = max(0.16, min(0.45, 5.0 / len(lanes)))
    picture = Picture(figsize=(WIDTH, 1.5 + lane_height * len(lanes)))
    ax = picture.subplots()
    scored = any(sample.advantages is not None for sample in group.samples)
    largest = float(np.abs(table[np.isfinite(table)]).max(initial=0.0)) or 1.0
    mesh = ax.pcolormesh(table, cmap=DIVERGING, norm=Normalize(-largest, largest), edgecolors="none")
    _sign_lines(ax, table)
    _write_tokens(ax, lanes, mesh.to_rgba(table), decode_token, cell=(7.0 * 72 / longest, lane_height * 72))
    _name_lanes(ax, group, longest)
    if scored:
        bar = {"pad": 0.02, "aspect": max(8, 4 * len(lanes)), "fraction": 0.05}
        picture.colorbar(mesh, ax=ax, label="advantage (no unit)", **bar)
    state = "" if scored else " (not scored yet)"
    title = (
        f"{group.env}: {' '.join(group.task.prompt.split())[:_TITLE]}{'...' * (len(group.task.prompt) > _TITLE)}{state}"
    )
    ax.set_title(drawable(title), fontsize=10, parse_math=False)
    return picture


def _lane(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and advantages of the trace's trained tokens; 0.0 before scoring."""
    ids = [s.token_ids[s.loss_mask] for s in trace.samples]
    streams = [np.zeros(len(s), np.float32) if s.advantages is None else s.advantages for s in trace.samples]
    values = [stream[s.loss_mask] for stream, s in zip(streams, trace.samples, strict=True)]
    return np.concatenate(ids), np.concatenate(values).astype(np.float64)


def _table(values: Sequence[np.ndarray]) -> np.ndarray:
    """[lanes, longest], NaN behind the end of a lane."""
    table = np.full((len(values), max(map(len, values))), np.nan)
    for row, lane in zip(table, values, strict=True):
        row[: len(lane)] = lane
    return table


def _sign_lines(ax: Axes, table: np.ndarray) -> None:
    """Under each run of tokens of one sign a line: solid above 0, dotted below. Lanes are set apart by white."""
    ax.hlines(np.arange(1, len(table)), 0, table.shape[1], color=palette.PAPER, linewidth=2)
    for sign, style in ((1, "solid"), (-1, (0, (1, 1.5)))):
        for lane, row in enumerate(np.sign(table) == sign):
            edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
            heights = np.full(len(edges) // 2, lane + 0.88)
            ax.hlines(heights, edges[::2], edges[1::2], color=palette.INK, linewidth=1.2, linestyle=style)


def _write_tokens(
    ax: Axes,
    lanes: Sequence[tuple[np.ndarray, np.ndarray]],
    colours: np.ndarray,
    decode_token: Callable[[int], str],
    cell: tuple[float, float],
) -> None:
    """Write each token in its cell, along or upright, where it fits; `cell` is width and height in points."""
    size = 7.0
    width, height = 0.62 * size, 1.3 * size  # of a monospace character
    if cell[0] < width:
        return
    for lane, (ids, _) in enumerate(lanes):
        for x, token_id in enumerate(ids.tolist()):
            text = drawable(visible(decode_token(token_id)), MONO)
            along = len(text) * width <= cell[0] and height <= 0.8 * cell[1]
            if not along and not (len(text) * width <= 0.8 * cell[1] and height <= cell[0]):
                continue
            ink = _ink(colours[lane, x])
            ax.text(
                x + 0.5, lane + 0.45, text, rotation=0 if along else 90, ha="center", va="center", color=ink,
                fontsize=size, family=MONO, parse_math=False, clip_on=True,
            )  # fmt: skip


def _ink(rgba: np.ndarray) -> str:
    return palette.ink_on("#" + "".join(f"{round(255 * float(c)):02x}" for c in rgba[:3]))


def _name_lanes(ax: Axes, group: Group, longest: int) -> None:
    """Rollouts at the left, their rewards at the right, first rollout on top."""
    several = len(set(group.agents)) > 1
    names = [f"{i} {agent}" if several else f"{i}" for i, agent in enumerate(group.agents)]
    middles = np.arange(len(names)) + 0.5
    style = {"fontsize": 8, "family": FONT, "parse_math": False}
    ax.set(xlim=(0, longest), ylim=(len(names), 0), ylabel="rollout")
    ax.set_xlabel("position among the trained tokens (tokens)")
    ax.set_yticks(middles, [drawable(name) for name in names], **style)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_facecolor("#eef0f3")
    right = ax.secondary_yaxis("right")
    right.set_yticks(middles, [f"{reward:.3g}" for reward in group.rewards.tolist()], **style)
    right.set_ylabel("reward (no unit)")
    for axis in (ax, right):
        axis.tick_params(axis="y", length=0)
