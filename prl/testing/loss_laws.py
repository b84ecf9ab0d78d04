"""What holds for every unreduced loss, whatever it computes."""

import torch
from torch import Tensor

from prl.testing import common_laws
from prl.testing.advantage_laws import DTYPES
from prl.testing.cases import LEAVES, cast, drifted_tokens, take, tokens, wide_tokens
from prl.testing.compare import apart, numbers, show
from prl.testing.laws import Law, NotApplicable, Outcome
from prl.testing.results import named, slopes
from prl.testing.subject import Subject
from prl.types import TokenLoss


def returns(subject: Subject, size: int, seed: int) -> Outcome:
    """TokenLoss with one entry per token: per_token of the streams' dtype, kept boolean, metrics by name."""
    for dtype in DTYPES.values():
        values = cast(tokens(subject.streams, size, seed), dtype)
        out = subject(values)
        if not isinstance(out, TokenLoss):
            return f"{show(values)} gave a {type(out).__name__}."
        for name, stream in named(out).items():
            if not isinstance(stream, Tensor):
                return f"{show(values)}: {name} is no tensor but a {type(stream).__name__}."
            want = {"per_token": dtype, "kept": torch.bool}.get(name, stream.dtype)
            if stream.shape != (size,) or stream.dtype != want:
                got = f"shape {list(stream.shape)} of {stream.dtype}"
                return f"{show(values)}: {name} has {got}; need [{size}] of {want}."
    return None


def split(subject: Subject, size: int, seed: int) -> Outcome:
    """A batch in two parts gives what it gives in one."""
    values, cut = tokens(subject.streams, size, seed), seed % size
    parts = [take(values, part) for part in (torch.arange(cut), torch.arange(cut, size)) if len(part)]
    found = [slopes(subject, part) for part in parts]
    joined = {name: torch.cat([part[name] for part in found]) for name in found[0]}
    wrong = apart(joined, slopes(subject, values))
    return wrong and f"{show(values)} cut before token {cut}: {wrong} as in one piece."


def dropped_loss(subject: Subject, size: int, seed: int) -> Outcome:
    """A token that is not kept gives exactly 0 loss."""
    return _dropped(subject, size, seed, ("per_token",))


def dropped_gradient(subject: Subject, size: int, seed: int) -> Outcome:
    """A token that is not kept gives exactly 0 gradient."""
    return _dropped(subject, size, seed, tuple(LEAVES.values()))


def on_policy(subject: Subject, size: int, seed: int) -> Outcome:
    """At pi = mu nothing is dropped and the gradient per token is known: -A for an rl loss."""
    if subject.slope is None:
        return NotApplicable("pass on_policy_slope= to say what the gradient is at pi = mu")
    values = tokens(subject.streams, size, seed)
    for name in LEAVES:
        if (twin := name.replace("trainer", "inference")) in values:
            values[twin] = values[name].clone()
    got = slopes(subject, values)
    if not got["kept"].all():
        return f"{show(values)}: kept is {numbers(got['kept'])}."
    wrong = apart({"gradient": got["gradient"]}, {"gradient": subject.slope(values)})
    return wrong and f"{show(values)}: {wrong}."


def gradient(subject: Subject, size: int, seed: int) -> Outcome:
    """The trainer's log-probabilities get a gradient, no other policy's do, and metrics carry none."""
    values = {name: stream.requires_grad_() for name, stream in tokens(subject.streams, size, seed).items()}
    out = subject(values)
    if not out.per_token.requires_grad:
        return f"{show(values)}: per_token has no gradient."
    found = torch.autograd.grad(out.per_token.sum(), list(values.values()), allow_unused=True, materialize_grads=True)
    for name, slope in zip(values, found, strict=True):
        if name != "advantages" and name not in LEAVES and (slope != 0).any():
            return f"{show(values)}: the gradient with respect to {name} is {numbers(slope)}."
    attached = [name for name, metric in out.metrics.items() if metric.requires_grad]
    return f"{show(values)}: a gradient hangs on metrics {', '.join(attached)}." if attached else None


def finite(subject: Subject, size: int, seed: int) -> Outcome:
    """Loss, gradient and metrics are finite for log-probabilities from -0.001 to -100, in float32 too."""
    for dtype_name, dtype in DTYPES.items():
        values = cast(wide_tokens(subject.streams, size, seed), dtype)
        for name, got in slopes(subject, values).items():
            if not got.isfinite().all():
                return f"{show(values)} of {dtype_name}: {name} is {numbers(got)}."
    return None


def not_a_number(subject: Subject, size: int, seed: int) -> Outcome:
    """A log-probability that is NaN or infinite never passes a trust region, and never becomes a NaN."""
    values = drifted_tokens(subject.streams, size, seed)
    bad = (torch.inf, torch.nan, -torch.inf)[size % 3]
    for name in (name for name in ("trainer_logprobs", "inference_logprobs") if name in values):
        broken = {**values, name: values[name].index_fill(0, torch.tensor([0]), bad)}
        got = slopes(subject, broken)
        if got["kept"][0] and subject(values).kept.all():
            return NotApplicable("it keeps every token")
        if got["kept"][0]:
            return f"{show(broken)}: kept is {numbers(got['kept'])}."
        for key in ("per_token", "gradient"):
            if not got[key].isfinite().all():
                return f"{show(broken)}: {key} is {numbers(got[key])}."
    return None


def shapes(subject: Subject, size: int, seed: int) -> Outcome:
    """Streams of unequal shape are refused."""
    values = tokens(subject.streams, size, seed)
    if size < 2 or len(values) + subject.switched < 2:
        return NotApplicable("only one stream")
    mask = torch.ones(size, dtype=torch.bool) if subject.switched else None
    short = {name: ({**values, name: values[name][:1]}, mask) for name in values}
    if mask is not None:
        short["mask"] = (values, mask[:1])
    taken = [name for name, given in short.items() if _accepts(subject, *given)]
    return f"{size} tokens, and a single entry is taken of {', '.join(taken)}." if taken else None


def _dropped(subject: Subject, size: int, seed: int, names: tuple[str, ...]) -> Outcome:
    silent: Outcome = NotApplicable("it keeps every token")
    for make in (drifted_tokens, wide_tokens):
        values = make(subject.streams, size, seed)
        got = slopes(subject, values)
        dropped = ~got["kept"]
        silent = None if dropped.any() else silent
        for name in (name for name in got if name in names):
            if (got[name][dropped] != 0).any():
                return f"{show(values)}: kept is {numbers(got['kept'])}, and {name} is {numbers(got[name])}."
    return silent


def _accepts(subject: Subject, values: dict[str, Tensor], mask: Tensor | None) -> bool:
    try:
        subject(values, mask)
    except Exception:  # any error is a refusal
        return False
    return True


LAWS = (
    Law("returns", returns, "It must give TokenLoss(per_token, kept, metrics), unreduced: one entry per token."),
    Law("permutation", common_laws.permutation, "A token's loss must not depend on where the token stands."),
    Law(
        "split", split,
        "Micro-batches cut a batch anywhere; use no mean and no maximum over tokens, since weights and 1/N come later.",
    ),
    Law("batch axis", common_laws.batch_axis, "Tokens come flat or in rows; work element by element."),
    Law(
        "vmap", common_laws.vmap,
        "Use no .item(), no `if` on values, no boolean index, and do not write into a new tensor.",
    ),
    Law("mask leak", common_laws.leak, "0 * inf is NaN; select with torch.where(mask, stream, 0.0) first of all."),
    Law("left out", common_laws.left_out, "A masked token must not count, in a mean's denominator too."),
    Law("dropped loss", dropped_loss, "0 * inf is NaN; select before exp, and give 0 where a token is not kept."),
    Law(
        "dropped gradient", dropped_gradient,
        "0 * inf is NaN; select before exp, torch.where(kept, log_ratio, 0.0), and 0 where a token is not kept.",
    ),
    Law(
        "on-policy", on_policy,
        "At pi = mu the ratio is 1: nothing is outside a trust region, and the gradient is -A times what scales the "
        "loss; give on_policy_slope= where another one is meant.",
    ),
    Law("gradient", gradient, "Train the trainer's log-probabilities; detach every other policy's, and the metrics."),
    Law(
        "finite", finite,
        "Ratios overflow; select dropped tokens before exp, and bound the ratio of kept ones in log space.",
    ),
    Law(
        "nan", not_a_number,
        "A comparison with NaN is False: say what is kept, log_ratio.isfinite() included, and not what is dropped; "
        "then select before arithmetic.",
    ),
    Law("float32", common_laws.float32, "Training runs in float32; subtract log-probabilities before exp."),
    Law("shapes", shapes, "It would broadcast, to a wrong loss; compare shapes and raise.", cases=((2, 0),)),
    Law("purity", common_laws.purity, "A loss is a function of its arguments and of nothing else."),
    Law("compile", common_laws.compiles, "Use tensor operations only, without a branch on values.", cases=((4, 0),)),
)  # fmt: skip
