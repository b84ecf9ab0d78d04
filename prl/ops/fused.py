"""Loss and gradient in one pass over chunks of the head: logits are formed once and never kept."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch._C._autograd import _get_current_graph_task_keep_graph as keeps_graph
from torch.autograd import Function
from torch.utils._pytree import tree_flatten, tree_unflatten

from prl.ops import head
from prl.ops.head import Wanted
from prl.ops.linear import flat_wanted, one_by_one

Objective = Callable[[Tensor, Mapping[str, Tensor]], tuple[Tensor, Any]]
"""(log-probabilities [tokens], streams [tokens, ...]) -> (scalar, aux)."""


def fused_loss(
    hidden: Float[Tensor, "tokens dim"],
    weight: Float[Tensor, "vocab dim"],
    targets: Int[Tensor, " tokens"],
    streams: Mapping[str, Tensor],
    objective: Objective,
    *,
    temperature: Float[Tensor, " tokens"] | float = 1.0,
    topk_ids: Int[Tensor, "tokens topk"] | None = None,
    entropy: bool = False,
    chunk_tokens: int | None = None,
) -> tuple[Float[Tensor, ""], Any]:
    """objective(log softmax(hidden weight^T / temperature)[targets], streams), summed over chunks of tokens.

    The objective's derivative is taken inside each chunk, so the backward pass only
    scales what is there: three matrix products, and memory for one chunk of logits.

    Args:
      streams: what the objective reads, [tokens, ...] each.
      objective: a function of (log-probabilities, streams) that adds up over tokens:
        objective of all = sum of objectives of the parts. Weights and counts belong in it.
        With `topk_ids` and `entropy` its streams also hold `topk_trainer_logprobs`
        [tokens, topk] and `entropy` [tokens], whose gradients flow too.
      chunk_tokens: by default as many as keep 25 M logits (100 MB in float32) at a time.

    Returns:
      The loss, and aux: entries with a token axis joined, 0-dim ones summed, detached.

    Raises:
      ValueError: there are no tokens.
      NotImplementedError: called inside torch.compile.

    Source: gradients in the forward pass, as in Liger's fused linear losses.
    """
    if not len(targets):
        raise ValueError("fused_loss: `hidden` has no tokens; leave out a batch in which nothing trains.")
    if torch.compiler.is_compiling():
        raise NotImplementedError("fused_loss: torch.compile cannot trace the objective inside it; call it uncompiled.")
    wanted = flat_wanted(hidden, targets, temperature, topk_ids, entropy)
    needed = tuple(torch.is_grad_enabled() and x.requires_grad for x in (hidden, weight))
    shape_of_aux: list[Any] = []

    def flat_objective(found: Mapping[str, Tensor], values: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
        more = {name: x for name, x in found.items() if name != "logprobs"}
        loss, aux = objective(found["logprobs"], {**dict(zip(streams, values, strict=True)), **more})
        leaves, spec = tree_flatten(() if aux is None else aux)
        shape_of_aux[:] = [spec]
        return loss, leaves

    options = (flat_objective, entropy, chunk_tokens, needed)
    loss, _, _, *leaves = _Fused.apply(options, hidden, weight, *wanted[:3], *streams.values())
    return loss, tree_unflatten(leaves, shape_of_aux[0]) if leaves else None


class _Fused(Function):
    @staticmethod
    def forward(options, hidden, weight, targets, temperature, topk_ids, *streams):
        objective, entropy, chunk_tokens, needed = options
        wanted = Wanted(targets, temperature, topk_ids, entropy)
        room, sums = head.buffer(hidden, weight.shape[0], chunk_tokens), head.Gradients(hidden, weight, needed)
        values, parts = [], []
        for chunk in head.chunks(hidden.shape[0], weight.shape[0], chunk_tokens):
            of = wanted.at(chunk)
            found, softmax = head.measure(head.logits(hidden[chunk], weight, of.temperature, room), of)
            slope, (value, aux) = _slope(objective, found, tuple(s[chunk] for s in streams), any(needed))
            if any(needed):
                sums.add(chunk, head.logits_gradient(softmax, of, slope), hidden[chunk], weight)
            values.append(value)
            parts.append(aux)
        leaves = [torch.cat(xs) if xs[0].ndim else torch.stack(xs).sum() for xs in zip(*parts, strict=True)]
        return torch.stack(values).sum(), *sums.result(weight), *leaves

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, hidden_gradient, weight_gradient, *leaves = output
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.mark_non_differentiable(*(x for x in (hidden_gradient, weight_gradient, *leaves) if x is not None))
        ctx.set_materialize_grads(False)  # else the engine makes zeros as large as the two gradients
        ctx.inputs = len(inputs)

    @staticmethod
    def backward(ctx, upstream, *_):
        # In place unless the graph is kept: a second weight gradient would double the memory of the whole pass.
        scale = torch.mul if keeps_graph() else Tensor.mul_
        scaled = [None if g is None else scale(g, upstream.to(g.dtype)) for g in ctx.saved_tensors]
        return None, *scaled, *[None] * (ctx.inputs - 3)


_Fused.vmap = staticmethod(one_by_one(_Fused))


def _slope(objective: Any, found: dict[str, Tensor], streams: tuple[Tensor, ...], needed: bool) -> tuple[Any, Any]:
    """(gradients by name or None, (value, aux)), detached."""
    if not needed:
        return None, objective(found, streams)
    return torch.func.grad_and_value(objective, has_aux=True)(found, streams)
