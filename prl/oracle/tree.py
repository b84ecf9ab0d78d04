"""Tabular policies over short token sequences: logits per prefix, every sequence enumerated."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from prl.errors import DataError


def depth(logits: Float[Tensor, "*nodes vocab"]) -> int:
    """Tokens per sequence of the policy that `logits` holds.

    [vocab] is a bandit: one token. [nodes, vocab] is a complete tree, breadth first: row 0
    belongs to the empty prefix, then one row for each first token, for each pair, and so on.

    Raises:
      DataError: the number of rows is none of 1, 1 + vocab, 1 + vocab + vocab^2, ...
    """
    vocab, rows = logits.shape[-1], len(logits) if logits.ndim > 1 else 1
    length, nodes, width = 0, 0, 1
    while nodes < rows:
        length, nodes, width = length + 1, nodes + width, width * vocab
    if logits.ndim > 2 or nodes != rows or length == 0:
        need = ", ".join(str(sum(vocab**i for i in range(t))) for t in (1, 2, 3))
        raise DataError(
            f"oracle: logits have shape {list(logits.shape)}; need [{vocab}], or [nodes, {vocab}] with one row for "
            f"each prefix: {need}, ... nodes for 1, 2, 3, ... tokens."
        )
    return length


def node(prefix: Sequence[int], vocab: int) -> int:
    """Row of the logits that predicts the token after `prefix`."""
    row = 0
    for token in prefix:
        row = row * vocab + token + 1
    return row


def sequences(logits: Float[Tensor, "*nodes vocab"]) -> Int[Tensor, "sequences seq"]:
    """Every sequence of the tree in dictionary order: the order of all `[sequences]` tensors of the oracle."""
    vocab, length = logits.shape[-1], depth(logits)
    return torch.arange(vocab**length)[:, None] // vocab ** torch.arange(length - 1, -1, -1) % vocab


def vocab_logprobs(logits: Float[Tensor, "*nodes vocab"]) -> Float[Tensor, "sequences seq vocab"]:
    """log p(token | prefix) of the whole vocabulary at each position of each sequence, in nats."""
    tokens, vocab = sequences(logits), logits.shape[-1]
    rows = [torch.zeros(len(tokens), dtype=torch.long)]
    for column in tokens.T[:-1]:
        rows.append(rows[-1] * vocab + column + 1)
    return logits.reshape(-1, vocab).log_softmax(-1)[torch.stack(rows, -1)]


def token_logprobs(logits: Float[Tensor, "*nodes vocab"]) -> Float[Tensor, "sequences seq"]:
    """log p(token t | tokens < t) of each sequence's own tokens, in nats."""
    return vocab_logprobs(logits).gather(-1, sequences(logits)[..., None]).squeeze(-1)


def distribution(logits: Float[Tensor, "*nodes vocab"]) -> Float[Tensor, " sequences"]:
    """Probability of each sequence."""
    return token_logprobs(logits).sum(-1).exp()


def gradient_of(
    logits: Float[Tensor, "*nodes vocab"], value: Callable[[Tensor], Tensor]
) -> Float[Tensor, "*nodes vocab"]:
    """Exact gradient in the logits of a function of the distribution [sequences], in float64.

    With 0/1 rewards r: `lambda d: d @ r` is the pass rate, `lambda d: 1 - (1 - d @ r) ** k`
    pass@k, `lambda d: (d @ r).log()` the log-likelihood of being right.
    """
    return torch.func.grad(lambda z: value(distribution(z)))(logits.detach().double())
