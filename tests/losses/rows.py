"""Columns of numbers through a loss, and the golden rows."""

import json
from pathlib import Path

import torch

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())


def run(loss, *columns, dtype=torch.float64, **options):
    """(per_token, d sum / d first column, kept, metrics), all as lists."""
    trainer, *rest = (torch.tensor(column, dtype=dtype) for column in columns)
    out = loss(trainer.requires_grad_(), *rest, **options)
    (gradient,) = torch.autograd.grad(out.per_token.sum(), trainer)
    metrics = {name: stream.tolist() for name, stream in out.metrics.items()}
    return out.per_token.tolist(), gradient.tolist(), out.kept.tolist(), metrics
