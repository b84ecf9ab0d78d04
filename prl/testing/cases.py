"""Seeded inputs for the laws, small first, at the values where functions go wrong."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

Streams: TypeAlias = dict[str, Tensor]

COUNTS = {"lengths": (1, 50), "output_tokens": (1, 400), "input_tokens": (0, 400), "turns": (1, 9)}
ADVANTAGE_STREAMS = ("rewards", *COUNTS)
RL_STREAMS = ("trainer_logprobs", "inference_logprobs", "advantages")
LEAVES = {
    "rewards": "gradient", "trainer_logprobs": "gradient", "topk_trainer_logprobs": "gradient of topk_trainer_logprobs",
}  # fmt: skip
"""Streams that get a gradient, and what the laws call it."""
LOSS_STREAMS = (*RL_STREAMS, "ref_logprobs", "topk_trainer_logprobs", "topk_inference_logprobs")

CASES = tuple((size, seed) for size in (1, 2, 3, 4, 6, 9) for seed in range(4))
"""(size, seed) of each case; any other seed is as good."""

JUNK = (float("nan"), float("inf"), -float("inf"), 1e9, -1e9)
CONSTANTS = (0.0, 1.0, 0.1, 0.3, -0.7, 1e6, 1e-6)
TIES = ((0.0, 1.0), (0.0, 0.1, 0.25, 1.0), (-3.0, -0.5, 0.0, 0.25, 2.0))  # negative ones add up exactly, in any order
WIDE = (-1e-3, -0.1, -0.7, -2.0, -5.0, -20.0, -60.0, -91.0, -100.0)
OVERFLOWS = {  # (trainer, inference): a kept ratio, and a dropped one, above the float32 maximum
    (1, 0): ([-2.0], [-91.0]),
    (2, 0): ([-0.6931, -1.0], [-0.9163, -100.0]),
}
TOPK = 3


def generator(size: int, seed: int) -> torch.Generator:
    """Each case's own randomness."""
    return torch.Generator().manual_seed(16 * seed + size)


def rollouts(streams: Sequence[str], size: int, seed: int) -> Streams:
    """One group, float64: rewards with ties, negative ones, two-decimal ones; counts are whole numbers."""
    g = generator(size, seed)
    rewards = _pick(TIES[seed % 4], g, size) if seed % 4 < 3 else _uniform(g, size)
    counts = {name: torch.randint(low, high + 1, (size,), generator=g).double() for name, (low, high) in COUNTS.items()}
    return {name: rewards if name == "rewards" else counts[name] for name in streams}


def extreme_rollouts(streams: Sequence[str], size: int, seed: int) -> Streams:
    """A group whose rewards differ by a millionth, or by millions."""
    g = generator(size, seed)
    base = CONSTANTS[seed % len(CONSTANTS)]
    step = 1e-6 * max(abs(base), 1e-6) if seed % 2 else 1e6
    rewards = base + step * torch.randint(-2, 3, (size,), generator=g)
    return {name: rewards.double() if name == "rewards" else s for name, s in rollouts(streams, size, seed).items()}


def switch(size: int, seed: int) -> Bool[Tensor, " size"]:
    """Which rollouts are valid, or tokens masked in: some; at the fourth seed all, none, all, ... by size."""
    if seed % 4 == 3:
        return torch.full((size,), size % 2 == 1)
    return torch.rand(size, generator=generator(size, seed + 1)) < 0.6


def tokens(streams: Sequence[str], size: int, seed: int) -> Streams:
    """Tokens of a policy that drifted by about e^0.5, float64; every fourth is on-policy, some advantages are 0."""
    g = generator(size, seed)
    inference = -3 * _uniform(g, size) - 0.05
    drift = torch.where(torch.rand(size, generator=g) < 0.25, 0.0, _two_decimals(torch.randn(size, generator=g) / 2))
    return _token_streams(streams, g, (inference + drift).clamp(max=-0.01), inference, 1.0)


def wide_tokens(streams: Sequence[str], size: int, seed: int) -> Streams:
    """Tokens of any log-probability from -0.001 to -100, with ratios that overflow."""
    g = generator(size, seed)
    trainer, inference = _pick(WIDE, g, size), _pick(WIDE, g, size)
    if (size, seed) in OVERFLOWS:
        trainer, inference = (torch.tensor(values, dtype=torch.float64) for values in OVERFLOWS[size, seed])
    values = _token_streams(streams, g, trainer, inference, 20.0)
    return values | {"ref_logprobs": _pick(WIDE, g, size)} if "ref_logprobs" in values else values


def drifted_tokens(streams: Sequence[str], size: int, seed: int) -> Streams:
    """`tokens`, and two more that moved by 0.94 in probability, one up and one down: outside every band."""
    far = {"trainer_logprobs": [-0.05, -5.0], "inference_logprobs": [-5.0, -0.05], "advantages": [1.0, -1.0]}
    values = tokens(streams, size + 2, seed)
    for name, entries in far.items():
        if name in values:
            values[name][-2:] = torch.tensor(entries, dtype=torch.float64)
    return values


def junked(values: Mapping[str, Tensor], on: Tensor, seed: int) -> Iterator[Streams]:
    """The same streams with NaN, inf or a huge number where the switch is off: in all of them, then in each alone."""
    junk = {name: JUNK[(seed + len(on) + i) % len(JUNK)] for i, name in enumerate(values)}
    for dirty in (set(values), *({name} for name in values)):
        yield {name: torch.where(over(on, v), v, junk[name]) if name in dirty else v for name, v in values.items()}


def over(on: Tensor, stream: Tensor) -> Tensor:
    """The switch beside a stream that may have a `topk` axis."""
    return on.reshape(on.shape + (1,) * (stream.ndim - on.ndim))


def take(values: Mapping[str, Tensor], index: Tensor) -> Streams:
    """Every stream at `index`, positions or booleans."""
    return {name: value[index] for name, value in values.items()}


def stack(rows: Sequence[Mapping[str, Tensor]]) -> Streams:
    """Rows of streams as streams with an axis in front."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def cast(values: Mapping[str, Tensor], dtype: torch.dtype) -> Streams:
    """Every stream in `dtype`."""
    return {name: value.to(dtype) for name, value in values.items()}


def _token_streams(
    streams: Sequence[str], g: torch.Generator, trainer: Tensor, inference: Tensor, spread: float
) -> Streams:
    size = len(trainer)
    values = {"trainer_logprobs": trainer, "inference_logprobs": inference}
    values["advantages"] = _pick((-1.0, -0.5, 0.0, 0.5, 1.0, 2.0), g, size)
    values["ref_logprobs"] = -3 * _uniform(g, size) - 0.05
    if any(name.startswith("topk") for name in streams):
        values |= _with_topk(g, size, spread)
    return {name: values[name] for name in streams}


def _with_topk(g: torch.Generator, size: int, spread: float) -> Streams:
    """Two distributions over TOPK + 3 tokens, the inference side's TOPK best of them, and one token sampled from all.

    The last entry is now and then missing.
    """
    inference, moves = spread * torch.randn(2, size, TOPK + 3, generator=g, dtype=torch.float64)
    inference, trainer = inference.log_softmax(-1), (inference + moves / 2).log_softmax(-1)
    best = inference.topk(TOPK).indices
    topk = inference.gather(-1, best)
    topk[torch.rand(size, generator=g) < 0.2, -1] = -float("inf")
    sampled = torch.randint(TOPK + 3, (size, 1), generator=g)
    return {
        "trainer_logprobs": trainer.gather(-1, sampled).squeeze(-1),
        "inference_logprobs": inference.gather(-1, sampled).squeeze(-1),
        "topk_trainer_logprobs": trainer.gather(-1, best),
        "topk_inference_logprobs": topk,
    }


def _pick(menu: Sequence[float], g: torch.Generator, size: int) -> Tensor:
    return torch.tensor(menu, dtype=torch.float64)[torch.randint(len(menu), (size,), generator=g)]


def _uniform(g: torch.Generator, size: int) -> Tensor:
    return _two_decimals(torch.rand(size, generator=g))


def _two_decimals(values: Tensor) -> Tensor:
    return values.double().round(decimals=2)
