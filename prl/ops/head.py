"""One chunk of the language-model head: logits in one buffer, what is wanted of them, and their gradient in place."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK_NUMBERS = 25_000_000
"""Logits held at once where the caller does not say: 100 MB in float32."""


class Wanted(NamedTuple):
    """What is asked of each token's distribution; entries are [tokens, ...], or None for all alike."""

    targets: Tensor
    temperature: Tensor | None
    topk_ids: Tensor | None
    entropy: bool

    def at(self, chunk: slice) -> "Wanted":
        temperature, topk_ids = (None if x is None else x[chunk] for x in (self.temperature, self.topk_ids))
        return Wanted(self.targets[chunk], temperature, topk_ids, self.entropy)


class Softmax(NamedTuple):
    """softmax = exp / total, row by row. `shifted` is log(exp), kept where the entropy's gradient needs it."""

    exp: Tensor
    total: Tensor
    shifted: Tensor | None
    entropy: Tensor | None


def chunks(tokens: int, vocab: int, chunk_tokens: int | None) -> Iterator[slice]:
    """Slices that cover the tokens."""
    size = chunk_tokens or max(1, CHUNK_NUMBERS // vocab)
    return (slice(start, min(start + size, tokens)) for start in range(0, tokens, size))


def buffer(hidden: Tensor, vocab: int, chunk_tokens: int | None) -> Tensor:
    """Room for one chunk of logits, at least float32."""
    size = min(chunk_tokens or max(1, CHUNK_NUMBERS // vocab), max(hidden.shape[0], 1))
    return hidden.new_empty(size, vocab, dtype=torch.promote_types(hidden.dtype, torch.float32))


def logits(hidden: Tensor, weight: Tensor, temperature: Tensor | None, into: Tensor) -> Tensor:
    """hidden @ weight.T / temperature, written into the first rows of `into`."""
    out = into[: hidden.shape[0]]
    if out.dtype == weight.dtype:
        torch.mm(hidden, weight.T, out=out)
    else:
        out.copy_(hidden @ weight.T)
    return out if temperature is None else out.div_(temperature.unsqueeze(-1))


def measure(logits: Tensor, wanted: Wanted) -> tuple[dict[str, Tensor], Softmax]:
    """Log-probabilities of targets and candidates, and the entropy, in nats; `logits` is overwritten."""
    target = logits.gather(1, wanted.targets.unsqueeze(1))
    candidates = None if wanted.topk_ids is None else logits.gather(1, wanted.topk_ids)
    top = logits.amax(1, keepdim=True)
    shifted = logits.sub_(top)
    exp = shifted.exp() if wanted.entropy else shifted.exp_()
    total = exp.sum(1)
    normaliser = top + total.log().unsqueeze(1)
    found = {"logprobs": (target - normaliser).squeeze(1)}
    if candidates is not None:
        found["topk_trainer_logprobs"] = candidates - normaliser
    if not wanted.entropy:
        return found, Softmax(exp, total, None, None)
    # where: at a logit of -inf, p log p is 0 and not 0 * inf
    mean = torch.einsum("tv,tv->t", exp, torch.where(exp > 0, shifted, 0.0)) / total
    found["entropy"] = total.log() - mean
    return found, Softmax(exp, total, shifted, found["entropy"])


def logits_gradient(softmax: Softmax, wanted: Wanted, upstream: Mapping[str, Tensor]) -> Tensor:
    """Gradient with respect to the undivided logits, in the softmax's own memory.

    d log p_a / dz_v = 1[v = a] - p_v;  dH / dz_v = -p_v (log p_v + H).
    """
    target = upstream["logprobs"]
    head = upstream.get("topk_trainer_logprobs")
    pulled = target if head is None else target + head.sum(1)
    share = -pulled / softmax.total
    if softmax.shifted is None or softmax.entropy is None:
        gradient = softmax.exp.mul_(share.unsqueeze(1))
    else:
        weight = (upstream["entropy"] / softmax.total).unsqueeze(1)
        level = (softmax.entropy - softmax.total.log()).unsqueeze(1)  # log p + H = shifted + level
        surprise = torch.where(softmax.exp > 0, softmax.shifted, 0.0).add_(level).mul_(weight)
        gradient = softmax.exp.mul_(share.unsqueeze(1) - surprise)
    gradient.scatter_add_(1, wanted.targets.unsqueeze(1), target.unsqueeze(1))
    if head is not None and wanted.topk_ids is not None:
        gradient.scatter_add_(1, wanted.topk_ids, head)
    return gradient if wanted.temperature is None else gradient.div_(wanted.temperature.unsqueeze(1))


class Gradients:
    """Gradients of hidden states and head weight, added up chunk by chunk; the sum over tokens in at least float32."""

    def __init__(self, hidden: Tensor, weight: Tensor, wanted: tuple[bool, bool]) -> None:
        wide = torch.promote_types(weight.dtype, torch.float32)
        self.hidden = torch.empty_like(hidden) if wanted[0] else None
        self.weight = torch.zeros_like(weight, dtype=wide) if wanted[1] else None

    def add(self, chunk: slice, gradient: Tensor, hidden: Tensor, weight: Tensor) -> None:
        gradient = gradient.to(weight.dtype)
        if self.hidden is not None:
            torch.mm(gradient, weight, out=self.hidden[chunk])
        if self.weight is None:
            return
        if self.weight.dtype == weight.dtype:
            self.weight.addmm_(gradient.T, hidden)
        else:
            self.weight += gradient.T @ hidden

    def result(self, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return self.hidden, None if self.weight is None else self.weight.to(like.dtype)
