"""Log-probabilities straight from hidden states and the head's weight, without a [tokens, vocab] tensor."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import Function

from prl.ops import head
from prl.ops.head import Wanted


def linear_logprobs(
    hidden: Float[Tensor, "*tokens dim"],
    weight: Float[Tensor, "vocab dim"],
    targets: Int[Tensor, "*tokens"],
    *,
    temperature: Float[Tensor, "*tokens"] | float = 1.0,
    topk_ids: Int[Tensor, "*tokens topk"] | None = None,
    entropy: bool = False,
    chunk_tokens: int | None = None,
) -> tuple[Float[Tensor, "*tokens"], Float[Tensor, "*tokens topk"] | None, Float[Tensor, "*tokens"] | None]:
    """log softmax(hidden weight^T / temperature) at the targets and at `topk_ids`, and the entropy.

    Logits are formed for `chunk_tokens` tokens at a time, once here and once more in the
    backward pass: four matrix products instead of three, and memory for one chunk.

    Args:
      hidden: last hidden states of the tokens to predict from; give those that train and no others.
      weight: the head, without bias.
      topk_ids: further tokens to look up, such as the sampler's candidates.
      entropy: also the entropy of each token's distribution, with its gradient; costs a
        second chunk of memory.
      chunk_tokens: by default as many as keep 25 M logits (100 MB in float32) at a time.

    Returns:
      (target, topk, entropy), the last two None where not asked for; nats, at least float32.

    Source: chunked heads with recomputation, as in prime-rl's; the shift is `next_token_logprobs`'s.
    """
    shape = targets.shape
    wanted = flat_wanted(hidden, targets, temperature, topk_ids, entropy)
    needed = (hidden.requires_grad, weight.requires_grad)
    found = list(_Logprobs.apply(hidden.flatten(0, -2), weight, *wanted[:3], entropy, chunk_tokens, needed))
    target = found.pop(0).view(shape)
    topk = None if topk_ids is None else found.pop(0).view(topk_ids.shape)
    return target, topk, found.pop(0).view(shape) if entropy else None


def flat_wanted(
    hidden: Tensor, targets: Tensor, temperature: Tensor | float, topk_ids: Tensor | None, entropy: bool
) -> Wanted:
    """Everything over one token axis; a temperature of 1.0 for all costs nothing and is None."""
    ids = None if topk_ids is None else topk_ids.long().flatten(0, -2)
    if isinstance(temperature, Tensor):
        return Wanted(targets.long().flatten(), temperature.flatten(), ids, entropy)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    every = None if temperature == 1.0 else hidden.new_full((targets.numel(),), temperature, dtype=wide)
    return Wanted(targets.long().flatten(), every, ids, entropy)


def one_by_one(function: type[Function]) -> Callable[..., Any]:
    """A vmap rule: the function for each item in turn, since each works through chunks of its own."""

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        def item(i: int) -> list[Any]:
            return [a.select(d, i) if isinstance(d, int) else a for a, d in zip(args, in_dims, strict=True)]

        outputs = [function.apply(*item(i)) for i in range(info.batch_size)]
        joined = tuple(None if parts[0] is None else torch.stack(parts) for parts in zip(*outputs, strict=True))
        return joined, tuple(None if x is None else 0 for x in joined)

    return rule


class _Logprobs(Function):
    @staticmethod
    def forward(hidden, weight, targets, temperature, topk_ids, entropy, chunk_tokens, needed):
        wanted = Wanted(targets, temperature, topk_ids, entropy)
        room, parts = head.buffer(hidden, weight.shape[0], chunk_tokens), []
        for chunk in head.chunks(hidden.shape[0], weight.shape[0], chunk_tokens):
            of = wanted.at(chunk)
            parts.append(head.measure(head.logits(hidden[chunk], weight, of.temperature, room), of)[0])
        return tuple(torch.cat([part[name] for part in parts]) for name in _names(topk_ids, entropy))

    @staticmethod
    def setup_context(ctx, inputs, output):
        hidden, weight, targets, temperature, topk_ids, ctx.entropy, ctx.chunk_tokens, ctx.needed = inputs
        ctx.save_for_backward(hidden, weight, targets, temperature, topk_ids)

    @staticmethod
    def backward(ctx, *upstream):
        hidden, weight, targets, temperature, topk_ids = ctx.saved_tensors
        inputs = (hidden, weight, targets, temperature, topk_ids, ctx.entropy, ctx.chunk_tokens, ctx.needed)
        # Dynamo cannot trace a Function inside a backward, and under it there is no vmap to hear of.
        gradient = _LogprobsGradient.forward if torch.compiler.is_compiling() else _LogprobsGradient.apply
        return *gradient(*inputs, *upstream), *[None] * 6


class _LogprobsGradient(Function):
    """A function of its own, so that it too has a vmap rule."""

    @staticmethod
    def forward(hidden, weight, targets, temperature, topk_ids, entropy, chunk_tokens, needed, *upstream):
        wanted = Wanted(targets, temperature, topk_ids, entropy)
        room, sums = head.buffer(hidden, weight.shape[0], chunk_tokens), head.Gradients(hidden, weight, needed)
        for chunk in head.chunks(hidden.shape[0], weight.shape[0], chunk_tokens):
            of = wanted.at(chunk)
            _, softmax = head.measure(head.logits(hidden[chunk], weight, of.temperature, room), of)
            pulls = {name: u[chunk] for name, u in zip(_names(topk_ids, entropy), upstream, strict=True)}
            sums.add(chunk, head.logits_gradient(softmax, of, pulls), hidden[chunk], weight)
        return sums.result(weight)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError("linear_logprobs: its gradient has no gradient; use next_token_logprobs for that.")


_Logprobs.vmap = staticmethod(one_by_one(_Logprobs))
_LogprobsGradient.vmap = staticmethod(one_by_one(_LogprobsGradient))


def _names(topk_ids: Tensor | None, entropy: bool) -> list[str]:
    topk = [] if topk_ids is None else ["topk_trainer_logprobs"]
    return ["logprobs", *topk, *(["entropy"] if entropy else [])]
