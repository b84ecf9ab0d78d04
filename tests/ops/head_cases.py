"""A small head and the plain formulas that the chunked ones must equal."""

from typing import NamedTuple

import torch
from torch import Tensor

TOKENS, DIM, VOCAB, TOPK = 13, 6, 29, 4


class Case(NamedTuple):
    hidden: Tensor
    weight: Tensor
    targets: Tensor
    temperature: Tensor
    topk_ids: Tensor
    pulls: dict[str, Tensor]
    """Upstream gradients of log-probabilities, candidates and entropy."""


def case(seed=0, tokens=TOKENS, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)

    ids = torch.stack([torch.randperm(VOCAB, generator=g)[:TOPK] for _ in range(tokens)])
    temperature = (0.5 + torch.rand(tokens, generator=g, dtype=torch.float64)).to(dtype)
    pulls = {"logprobs": normal(tokens), "topk_trainer_logprobs": normal(tokens, TOPK), "entropy": normal(tokens)}
    targets = torch.randint(0, VOCAB, (tokens,), generator=g)
    return Case(normal(tokens, DIM), normal(VOCAB, DIM), targets, temperature, ids, pulls)


def eager(c, hidden=None, weight=None):
    """{name: [tokens, ...]} by log_softmax over the whole vocabulary."""
    hidden, weight = c.hidden if hidden is None else hidden, c.weight if weight is None else weight
    everything = (hidden @ weight.T / c.temperature.unsqueeze(-1)).log_softmax(-1)
    return {
        "logprobs": everything.gather(-1, c.targets.unsqueeze(-1)).squeeze(-1),
        "topk_trainer_logprobs": everything.gather(-1, c.topk_ids),
        "entropy": -(everything.exp() * everything).sum(-1),
    }


def pulled(found, pulls):
    return torch.stack([(pulls[name] * found[name]).sum() for name in found]).sum()


def gradients(fn, c):
    """(value, d hidden, d weight) of the pulled sum of fn(hidden, weight)."""
    hidden, weight = (x.detach().clone().requires_grad_() for x in (c.hidden, c.weight))
    value = pulled(fn(hidden, weight), c.pulls)
    return value.detach(), *torch.autograd.grad(value, (hidden, weight))


def close(got, want, tolerance):
    """Relative in norm."""
    for a, b in zip(got, want, strict=True):
        assert (a.double() - b.double()).norm() <= tolerance * b.double().norm()
