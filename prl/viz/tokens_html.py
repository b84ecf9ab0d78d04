"""Tokens coloured by one of their streams, as HTML: `token_html`."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from prl.errors import DataError
from prl.frames import error_line
from prl.types import Episode, Group, Trace, TrainingSample
from prl.viz.html import Html
from prl.viz.palette import STEPS
from prl.viz.text import printable, visible
from prl.viz.tokens_css import PLACES, STREAMS, step_class, stylesheet

DecodeToken = Callable[[int], str]


class _Row(NamedTuple):
    """One rollout: its heading and its samples."""

    heading: str
    samples: Sequence[TrainingSample]


class _View(NamedTuple):
    """What all rows share: the streams present with the |value| at the end of their scale, the places present, text."""

    scales: dict[str, float]
    places: list[str]
    text: dict[int, str]
    fold: bool


def token_html(
    sample_or_group: TrainingSample | Group,
    decode_token: DecodeToken,
    *,
    stream: str = "advantages",
    title: str | None = None,
) -> Html:
    """Every token, coloured by a stream on a scale centred at 0: blue and underlined above, orange and dotted below.

    Buttons switch the stream, without a script. Hover or keyboard focus shows position, id,
    role and all values of a token. Boxed tokens are in the mask, grey italic ones are context.
    A scale is fixed by the largest finite |value| among all samples shown, so the rollouts of
    a group compare. Whatever the model wrote is escaped.

    Args:
      sample_or_group: a group shows a row per trace, in order, also of those that do not
        take part, with prompts folded; an episode that failed shows its error.
      decode_token: token id to text; see `prl.viz.token_text`.
      stream: the one to show first, by its name on `TrainingSample`. Where no sample has
        it, nothing is coloured until a button is pressed.
      title: plain text; the sample or the group's task by default.

    Raises:
      DataError: `stream` is not one that can be shown.
    """
    if stream not in STREAMS:
        raise DataError(f"token_html: stream is {stream!r}; need one of {', '.join(STREAMS)}.")
    if isinstance(sample_or_group, Group):
        heading, rows = _group_heading(sample_or_group), _group_rows(sample_or_group)
    else:
        sample = sample_or_group
        heading = sample.id
        rows = [_Row(f"{int(sample.loss_mask.sum())} of {len(sample)} tokens in the mask", [sample])]
    heading = printable(heading if title is None else title)
    view = _view([s for row in rows for s in row.samples], decode_token, fold=isinstance(sample_or_group, Group))
    return Html("".join(_fragment(heading, rows, view, stream)), title=heading)


def _fragment(heading: str, rows: list[_Row], view: _View, stream: str) -> Iterable[str]:
    name = "prl-" + "".join([STREAMS[key].letter for key in view.scales] + [PLACES[key].letter for key in view.places])
    yield f'<form method="dialog" class="prl {name}"><style>{stylesheet(name, view.scales, view.places)}</style>'
    yield f'<div class="h">{escape(heading)}</div>'
    for key in view.scales:
        checked = " checked" if key == stream else ""
        yield f'<input type="radio" name="stream" class="k{STREAMS[key].letter}" aria-label="{key}"{checked}>'
    if stream not in view.scales:
        yield f'<div class="n">{stream}: not set on these samples.</div>'
    yield '<div class="b">'
    yield from (_legend(key, scale) for key, scale in view.scales.items())
    for row in rows:
        yield f'<div class="r"><div class="n">{escape(printable(row.heading))}</div>'
        yield from (_sample_html(sample, view) for sample in row.samples)
        yield "</div>"
    yield "</div></form>"


def _group_heading(group: Group) -> str:
    rewards = [trace.reward for trace in group.traces]
    mean = f"mean reward {sum(rewards) / len(rewards):.4g}" if rewards else "no rollout takes part"
    return f"{group.env}, task {group.task.key}: {len(rewards)} rollouts, {mean}"


def _group_rows(group: Group) -> list[_Row]:
    rows = []
    for episode in group.episodes:
        rows += [_Row(_trace_heading(episode, trace), trace.samples) for trace in episode.traces]
        if not episode.traces:
            rows.append(_Row(f"{episode.id}: {_failure(episode) or 'no traces'}", []))
    return rows


def _trace_heading(episode: Episode, trace: Trace) -> str:
    trained = sum(int(sample.loss_mask.sum()) for sample in trace.samples)
    notes = [trace.id, trace.agent, f"reward {trace.reward:.4g}", f"{trained} tokens in the mask"]
    notes += [] if trace.valid else ["not valid"]
    notes += [] if trace.trainable else ["not trainable"]
    return "  |  ".join([*notes, *filter(None, [_failure(episode)])])


def _failure(episode: Episode) -> str | None:
    return None if episode.error is None else f"failed: {error_line(episode.error)}"


def _view(samples: Sequence[TrainingSample], decode_token: DecodeToken, *, fold: bool) -> _View:
    scales = {}
    for key in STREAMS:
        streams = [values for s in samples if (values := getattr(s, key)) is not None]
        if streams:
            values = np.abs(np.concatenate(streams).astype(np.float64))
            scales[key] = float(values[np.isfinite(values)].max(initial=0.0))
    places = [key for key in PLACES if any(getattr(s, key) is not None for s in samples)]
    ids = np.unique(np.concatenate([s.token_ids for s in samples])).tolist() if samples else []
    return _View(scales, places, {i: _token_markup(decode_token(i)) for i in ids}, fold)


def _token_markup(text: str) -> str:
    """Text, end of the element, and a line break after a token that holds a newline."""
    return escape(visible(text), quote=False) + ("</i>\n" if "\n" in text else "</i>")


def _legend(key: str, scale: float) -> str:
    stream = STREAMS[key]
    swatches = "".join(f'<b class="{stream.letter}{step}"></b>' for step in range(-STEPS, STEPS + 1) if step)
    unit = f" {stream.unit}" if stream.unit else ""
    ends = f"{-scale:.4g} {swatches} {scale:+.4g}{unit}" if scale else "0 everywhere"
    return f'<div class="g g{stream.letter}">{stream.label}: {ends}. Boxed: in the mask. Grey italic: context.</div>'


def _sample_html(sample: TrainingSample, view: _View) -> str:
    marks = _token_marks(sample, view)
    first = int(sample.loss_mask.argmax()) if sample.loss_mask.any() else 0
    prompt, rest = "".join(marks[:first]), "".join(marks[first:])
    if first:
        opened = "" if view.fold else " open"
        prompt = f'<details{opened}><summary>prompt, {first} tokens</summary><div class="x">{prompt}</div></details>'
    return f'{prompt}<div class="x">{rest}</div>'


def _token_marks(sample: TrainingSample, view: _View) -> list[str]:
    """The markup of each token: its text, a class per stream, the values as attributes."""
    n = len(sample)
    classes: list[Sequence[str]] = [np.where(sample.loss_mask, "t", "c").tolist()]
    if sample.roles is not None:
        classes.append([f" r{code}" for code in sample.roles.tolist()])
    values: list[Sequence[str]] = []
    for key, scale in view.scales.items():
        stream, letter = getattr(sample, key), STREAMS[key].letter
        values.append(_attributes(letter, stream, n))
        if stream is not None:
            names = [step_class(letter, step) for step in range(-STEPS, STEPS + 1)]
            classes.append([names[step + STEPS] for step in scale_steps(stream, scale).tolist()])
    values += [_attributes(PLACES[key].letter, getattr(sample, key), n) for key in view.places]
    joined = zip(map("".join, zip(*classes, strict=True)), sample.token_ids.tolist(), _joined(values, n), strict=True)
    return [
        f'<i tabindex=0 class="{c}" data-p={position} data-i={i}{v}>{view.text[i]}'
        for position, (c, i, v) in enumerate(joined)
    ]


def _joined(columns: list[Sequence[str]], n: int) -> Iterable[str]:
    return map("".join, zip(*columns, strict=True)) if columns else [""] * n


def _attributes(letter: str, values: Any, n: int) -> list[str]:
    if values is None:
        return [f" data-{letter}=none"] * n
    form = "d" if values.dtype.kind == "i" else ".4g"
    return [f" data-{letter}={value:{form}}" for value in values.tolist()]


def scale_steps(values: np.ndarray, scale: float) -> np.ndarray:
    """int [tokens]: the step of each value, -STEPS to STEPS; 0 only for 0 and for what is not a number."""
    if scale == 0:
        scale = 1.0
    share = np.clip(np.nan_to_num(values.astype(np.float64) / scale, nan=0.0), -1.0, 1.0)
    return (np.sign(share) * np.ceil(np.abs(share) * STEPS)).astype(np.int64)
