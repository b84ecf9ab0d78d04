"""The trainable model: rows in, one component-weighted loss out; and its optimiser step."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from prl.config import AdamW
from prl.errors import ConfigError
from prl.ops import candidate_logprobs, target_logprobs
from prl.types import Rows

Objective = Callable[[Tensor, Mapping[str, Tensor]], tuple[Tensor, Any]]
"""(trainer log-probabilities [tokens], flat streams [tokens] each) -> (scalar loss, aux)."""

_STREAMS = (
    "inference_logprobs", "ref_logprobs", "advantages", "rl_weights", "ce_weights", "ref_kl_weights", "sample", "token",
)  # fmt: skip


class Policy(nn.Module):
    """A transformers causal LM with its tokenizer and renderer.

    Raises:
      ConfigError: the tokenizer knows ids that the model has no embedding for.
    """

    def __init__(self, module: Any, tokenizer: Any, renderer: Any) -> None:
        super().__init__()
        # eval() for good: dropout would make pi differ from the policy that sampled.
        self.module: Any = module.eval()
        self.tokenizer, self.renderer = tokenizer, renderer
        embeddings = module.get_input_embeddings().num_embeddings
        if len(tokenizer) > embeddings:
            raise ConfigError(
                f"Policy: the tokenizer has {len(tokenizer)} tokens, the model embeds {embeddings}. "
                "Take the tokenizer that belongs to the model, or resize the model's embeddings."
            )
        self._plain_head = _head_is_plain(module)

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def context(self) -> int:
        """Most tokens that the model can hold."""
        return self.module.config.max_position_embeddings

    @property
    def full_attention(self) -> bool:
        """True where every layer sees the whole context, so that rows may hold several samples under a mask."""
        kinds = getattr(self.module.config, "layer_types", None) or ["full_attention"]
        return set(kinds) == {"full_attention"}

    def forward(self, rows: Rows, objective: Objective) -> tuple[Tensor, Any]:
        """objective(log-probabilities of the trained tokens, their streams), the head run on those tokens only.

        Where the rows hold the sampler's candidates, streams have `topk_trainer_logprobs` and
        `topk_inference_logprobs` [tokens, topk] too.
        Tokens are flat, row by row; log-probabilities are of the tempered distribution, at least float32.
        """
        parameter = next(self.module.parameters())
        rows = rows.to(parameter.device, torch.promote_types(parameter.dtype, torch.float32))
        at = rows.trained.nonzero(as_tuple=True)
        logits, temperature = self._logits(rows, (at[0], rows.source[at])), rows.temperatures[at]
        streams = {name: getattr(rows, name)[at] for name in _STREAMS}
        if rows.topk_ids is None or rows.topk_logprobs is None:
            return objective(target_logprobs(logits, rows.token_ids[at], temperature=temperature), streams)
        wanted = torch.cat([rows.token_ids[at].unsqueeze(-1), rows.topk_ids[at]], -1)
        found = candidate_logprobs(logits, wanted, temperature=temperature)
        heads = {"topk_trainer_logprobs": found[:, 1:], "topk_inference_logprobs": rows.topk_logprobs[at]}
        return objective(found[:, 0], streams | heads)

    def _logits(self, rows: Rows, at: tuple[Tensor, Tensor]) -> Tensor:
        inputs: dict[str, Any] = {"input_ids": rows.token_ids, "use_cache": False}
        if not rows.one_sample_per_row:
            inputs |= {"position_ids": rows.positions, "attention_mask": attention_mask(rows, self.module.dtype)}
        if not self._plain_head:
            return _at(self.module(**inputs).logits, at)
        return self.module.get_output_embeddings()(_at(self.module.base_model(**inputs).last_hidden_state, at))


def _at(states: Tensor, at: tuple[Tensor, Tensor]) -> Tensor:
    """states[at]. Several tokens share a source, and the gradient of plain indexing adds theirs in racing threads."""
    return states.flatten(0, 1).index_select(0, at[0] * states.shape[1] + at[1])


def attention_mask(rows: Rows, dtype: torch.dtype) -> Tensor:
    """Additive mask [row, 1, seq, seq]: a token sees earlier tokens of its own segment and of that segment's parent."""
    own, parent = rows.segment, rows.parent
    seen = (own[:, :, None] == own[:, None, :]) | (parent[:, :, None] == own[:, None, :])
    seen &= torch.ones(seen.shape[-2:], dtype=torch.bool, device=seen.device).tril()
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)[:, None]


def _head_is_plain(module: Any) -> bool:
    """Whether logits are just head(last hidden state). Soft-capped or scaled heads are not, and go the long way."""
    ids = torch.tensor([[0, 1, 2]], device=next(module.parameters()).device)
    with torch.no_grad():
        hidden = module.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return torch.equal(module.get_output_embeddings()(hidden), module(input_ids=ids, use_cache=False).logits)


def build_optimizer(policy: Policy, config: AdamW) -> torch.optim.Optimizer:
    """torch's AdamW over the policy's trainable parameters, in one fused kernel."""
    trainable = [p for p in policy.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        trainable, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )  # fmt: skip


def optimizer_step(policy: Policy, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> float:
    """Clip the accumulated gradient to `max_grad_norm` in total L2 norm, step, clear; returns the norm before clipping.

    A norm that is not finite changes nothing but the gradients, which are cleared.
    """
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    if norm.isfinite():
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm.item()
