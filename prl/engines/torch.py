"""The embedded engine: a transformers causal LM decoded in process with a KV cache."""

import asyncio
import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prl.engines.base import Completion, Request
from prl.engines.head import EXTRA, captured_head
from prl.engines.limits import check_same_tensors, completion_room
from prl.engines.sampling import sample
from prl.errors import EngineError
from prl.ops import next_token_logprobs
from prl.randomness import uniforms
from prl.types import TopK

_SCORE_TOKENS = 16_384  # cells of one scoring forward
_LEAVE_SHARE = 8  # finished rows leave once they are 1/8 of the batch: each leave copies the cache


class TorchEngine:
    """Runs its own copy of the policy's module, so weights change only through `load_weights`.

    Results depend on weights, requests and their order in the call only. Yields to the
    event loop between decode steps, so an interrupt takes one step.
    """

    lockstep = True

    def __init__(self, module: nn.Module, *, version: int = 0) -> None:
        self._module: Any = copy.deepcopy(module).eval().requires_grad_(False)
        self.version = version

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request; a prompt that several share is prefilled once.

        Raises:
          EngineError: a prompt leaves no room in the model's context, or is empty.
        """
        for request in requests:
            completion_room("TorchEngine", len(request.prompt_ids), self._module.config.max_position_embeddings)
        alike: dict[tuple[float, int | None, int], list[int]] = {}
        for i, request in enumerate(requests):
            s = request.sampling
            alike.setdefault((s.top_p, s.top_k, s.topk_logprobs or 0), []).append(i)
        done: dict[int, Completion] = {}
        for kind, members in alike.items():
            decode = _Decode(self._module, [requests[i] for i in members], *kind)
            while decode.live:
                decode.step()
                await asyncio.sleep(0)
            done |= zip(members, decode.completions(self.version), strict=True)
        return [done[i] for i in range(len(requests))]

    async def score(self, sequences: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Prefill log-probabilities at temperature 1, longest sequences first.

        Raises:
          EngineError: a sequence is longer than the model's context.
        """
        longest, context = max(map(len, sequences), default=0), self._module.config.max_position_embeddings
        if longest > context:
            raise EngineError(f"TorchEngine.score: a sequence has {longest} tokens; the model's context is {context}.")
        scores: dict[int, np.ndarray] = {}
        order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
        while order:
            width = max(len(sequences[order[0]]), 1)
            part, order = order[: max(1, _SCORE_TOKENS // width)], order[max(1, _SCORE_TOKENS // width) :]
            ids, _ = _padded([sequences[i] for i in part], self._module.device, left=False)
            with torch.inference_mode():
                rows = next_token_logprobs(self._module(input_ids=ids, use_cache=False).logits, ids).cpu().numpy()
            scores |= {i: row[: len(sequences[i])] for i, row in zip(part, rows, strict=True)}
            await asyncio.sleep(0)
        return [scores[i] for i in range(len(sequences))]

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy every named tensor into the module.

        Raises:
          EngineError: names or shapes differ from the module's own; nothing is copied then.
        """
        own, given = dict(self._module.named_parameters()), dict(named_tensors)
        check_same_tensors("TorchEngine", given, {name: tensor.shape for name, tensor in own.items()})
        with torch.no_grad():
            for name, tensor in given.items():
                own[name].copy_(tensor)
        self.version = version


class _Decode:
    """The state of one batch of completions. `rows` are the requests still decoding, in cache order."""

    def __init__(self, module: Any, requests: Sequence[Request], top_p: float, top_k: int | None, topk: int) -> None:
        self._module, self._topk = module, topk
        self._options: dict[str, Any] = {"top_p": top_p, "top_k": top_k, "candidates": topk + EXTRA if topk else 0}
        device, sampling = module.device, [r.sampling for r in requests]
        room = [module.config.max_position_embeddings - len(r.prompt_ids) for r in requests]
        limits = [min(s.max_tokens, space) for s, space in zip(sampling, room, strict=True)]
        self._limit = torch.tensor(limits)
        draws = np.zeros((len(requests), max(limits)), np.float32)
        for row, request, limit in zip(draws, requests, limits, strict=True):
            row[:limit] = uniforms(request.key, limit)
        self._draws = torch.from_numpy(draws)
        self._temperature = torch.tensor([s.temperature for s in sampling], device=device)
        width = max(1, *(len(s.stop) for s in sampling))
        self._stop = torch.tensor([[*s.stop, *[-1] * (width - len(s.stop))] for s in sampling])
        self._tokens = torch.zeros(draws.shape, dtype=torch.long)
        self._logprobs = torch.zeros(draws.shape)
        width = min(topk + EXTRA, module.config.vocab_size) if topk else 0
        self._head_ids = torch.zeros((*draws.shape, width), dtype=torch.int32)
        self._head_logprobs = torch.zeros((*draws.shape, width))
        self._length = torch.zeros(len(requests), dtype=torch.long)
        self._stopped = torch.zeros(len(requests), dtype=torch.bool)
        self.rows, self.t = torch.arange(len(requests)), 0
        self._prefill([r.prompt_ids for r in requests])

    @property
    def live(self) -> bool:
        return len(self.rows) > 0

    @torch.inference_mode()
    def _prefill(self, prompts: Sequence[np.ndarray]) -> None:
        """Each different prompt once, then one cache row per request."""
        index: dict[bytes, int] = {}
        owner = [index.setdefault(prompt.tobytes(), len(index)) for prompt in prompts]
        distinct = [prompts[owner.index(i)] for i in range(len(index))]
        ids, mask = _padded(distinct, self._module.device, left=True)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        given = {"attention_mask": mask, "position_ids": positions} if not bool(mask.all()) else {}
        out = self._module(input_ids=ids, use_cache=True, logits_to_keep=1, **given)
        expand = torch.tensor(owner, device=ids.device)
        self._cache = out.past_key_values
        self._cache.batch_select_indices(expand)
        self._logits, self._mask = out.logits[expand, -1], mask[expand]
        self._next_position = mask.sum(-1)[expand]

    @torch.inference_mode()
    def step(self) -> None:
        """Draw one token for every live row, let finished rows leave, run the model on the rest."""
        uniform = self._draws[self.rows, self.t].to(self._logits.device)
        tokens, logprobs, head = sample(self._logits, uniform, self._temperature[self.rows], **self._options)
        chosen = tokens.cpu()
        going = ~self._finished[self.rows]
        if head is not None:
            self._head_ids[self.rows[going], self.t] = head.indices.int().cpu()[going]
            self._head_logprobs[self.rows[going], self.t] = head.values.cpu()[going]
        self._tokens[self.rows[going], self.t] = chosen[going]
        self._logprobs[self.rows[going], self.t] = logprobs.cpu()[going]
        self._length[self.rows[going]] += 1
        self._stopped[self.rows] |= (chosen[:, None] == self._stop[self.rows]).any(-1)
        self.t += 1
        finished = self._finished[self.rows]
        if bool(finished.all()):
            self.rows = self.rows[:0]
            return
        keep = ~finished if _LEAVE_SHARE * int(finished.sum()) >= len(finished) else torch.ones_like(finished)
        self._advance(tokens, keep)

    @property
    def _finished(self) -> Tensor:
        return self._stopped | (self._length >= self._limit)

    def _advance(self, tokens: Tensor, keep: Tensor) -> None:
        if not bool(keep.all()):
            at = keep.nonzero().squeeze(-1).to(tokens.device)
            self.rows = self.rows[keep]
            self._cache.batch_select_indices(at)
            tokens, self._mask, self._next_position = tokens[at], self._mask[at], self._next_position[at]
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        given = {} if bool(self._mask.all()) else {"attention_mask": self._mask}
        out = self._module(
            input_ids=tokens[:, None], position_ids=self._next_position[:, None], past_key_values=self._cache,
            use_cache=True, **given,
        )  # fmt: skip
        self._logits = out.logits[:, -1]
        # Finished rows that have not left yet run on: their tokens count for nothing, but their positions must exist.
        self._next_position = (self._next_position + 1).clamp(max=self._module.config.max_position_embeddings - 1)

    def completions(self, version: int) -> list[Completion]:
        tokens, logprobs = self._tokens.numpy().astype(np.int32), self._logprobs.numpy()
        reasons = ["stop" if stopped else "length" for stopped in self._stopped.tolist()]
        lengths = self._length.tolist()
        return [
            Completion(tokens[i, :n], logprobs[i, :n], self._head(i, n), reasons[i], version)
            for i, n in enumerate(lengths)
        ]

    def _head(self, row: int, length: int) -> TopK | None:
        if not self._topk:
            return None
        return captured_head(self._head_ids[row, :length], self._head_logprobs[row, :length], self._topk)


def _padded(sequences: Sequence[np.ndarray], device: torch.device, *, left: bool) -> tuple[Tensor, Tensor]:
    """Token ids [batch, seq], padded with 0 on one side, and their 0/1 mask."""
    width = max(len(s) for s in sequences)
    ids, mask = np.zeros((len(sequences), width), np.int64), np.zeros((len(sequences), width), np.int64)
    for row, seen, sequence in zip(ids, mask, sequences, strict=True):
        at = slice(width - len(sequence), None) if left else slice(len(sequence))
        row[at], seen[at] = sequence, 1
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)
