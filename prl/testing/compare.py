"""Where two results differ, in words and numbers."""

from collections.abc import Mapping

import torch
from torch import Tensor


def show(values: Mapping[str, Tensor]) -> str:
    """`rewards=[0, 0.25], lengths=[3, 1]`, six digits each."""
    return ", ".join(f"{name}={numbers(value)}" for name, value in values.items())


def numbers(value: Tensor) -> str:
    """The entries, six digits each."""
    return _nested(value.detach().tolist())


def apart(got: Mapping[str, Tensor], want: Mapping[str, Tensor], tolerance: float = 1e-9) -> str | None:
    """The worst difference as `per_token[2] is 0.5, not 0.25`; None where all is near.

    Near: within tolerance * (1 + largest wanted size), NaN equal to NaN. Tolerance 0 compares bits but for -0.0.
    """
    if got.keys() != want.keys():
        return f"it returned {', '.join(got)}, not {', '.join(want)}"
    return next((found for name in want if (found := _one_apart(name, got[name], want[name], tolerance))), None)


def _one_apart(name: str, got: Tensor, want: Tensor, tolerance: float) -> str | None:
    if got.shape != want.shape:
        return f"{name} has shape {list(got.shape)}, not {list(want.shape)}"
    a, b = got.detach().double(), want.detach().double()
    same = (a == b) | (a.isnan() & b.isnan())
    gap = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)
    size = torch.where(b.isfinite(), b.abs(), 0.0)
    if not (gap > tolerance * (1 + (size.max() if size.numel() else 0.0))).any():
        return None
    at = torch.unravel_index(gap.argmax(), gap.shape)
    entry = f"{name}[{', '.join(str(int(i)) for i in at)}]"
    return f"{entry} is {numbers(got[at])}, not {numbers(want[at])}{_closer(got[at], want[at])}"


def _closer(got: Tensor, want: Tensor) -> str:
    """The gap, where six digits do not show it."""
    return f" (off by {numbers(got - want)})" if numbers(got) == numbers(want) else ""


def _nested(value: list | float | int | bool) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_nested, value))}]"
    return str(value) if isinstance(value, bool) else f"{value + 0:.6g}"  # + 0: no minus zero
