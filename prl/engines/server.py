"""A vLLM server as an engine, over HTTP: token ids in, token ids and their log-probabilities out."""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from prl.config import FrozenModel, Sampling
from prl.engines.base import Completion, Request
from prl.engines.head import EXTRA, captured_head
from prl.engines.http import Endpoint, PerLoop, together
from prl.engines.vllm import (
    check_same_tensors, check_sampling, check_score_room, checked_logprobs, completion_room, request_seed,
)  # fmt: skip
from prl.errors import ConfigError, EngineError
from prl.types import TopK

_PLAIN = {
    "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "ignore_eos": True, "return_token_ids": True, "return_tokens_as_token_ids": True,
}  # fmt: skip
"""Said in every request: what is left out, vLLM takes from the model's generation_config.json."""

_COMPLETIONS = "/completions"


class ServerEngine:
    """A client of the vLLM server at `base_url` (with its version part, "/v1"). Each request goes at once.

    Frozen by default: its weights never change, its version is always 0. With `policy` it samples for the
    model that is trained: the server runs with VLLM_SERVER_DEV_MODE=1 on the same weights, and
    `weights_dir` is a folder that both can read, for new ones.

    Log-probabilities must be of the distribution that was sampled, so the server needs
    `--logprobs-mode processed_logprobs` (the first request checks it), and `--max-logprobs` of at
    least `Sampling.topk_logprobs` + 2 for candidates. `concurrency`, `timeout_s` (seconds of one
    request) and `retries` are as in `prl.engines.http.Endpoint`.

    Raises:
      ConfigError: a setting out of range; `policy` without `weights_dir`, or the reverse.
    """

    lockstep = False

    def __init__(
        self, base_url: str, model: str, *, api_key: str | None = None, concurrency: int = 64,
        timeout_s: float = 600.0, retries: int = 2, policy: bool = False, weights_dir: str | Path | None = None,
    ) -> None:  # fmt: skip
        if policy != (weights_dir is not None):
            raise ConfigError(
                f"ServerEngine: got policy={policy}, weights_dir={weights_dir!r}; a policy server needs a folder "
                "for its new weights, a frozen one gets none."
            )
        self._endpoint = Endpoint(
            "ServerEngine", base_url, api_key, concurrency=concurrency, timeout_s=timeout_s, retries=retries
        )
        self._model, self._weights_dir = model, None if weights_dir is None else Path(weights_dir)
        self._asking = PerLoop(asyncio.Lock)
        self._context: int | None = None
        self._processed = False
        self._shapes: dict[str, torch.Size] | None = None
        self._folder: Path | None = None
        self.version, self._salt = 0, f"prl-0-{secrets.token_hex(8)}" if policy else "prl-frozen"

    @classmethod
    def from_frozen(cls, model: FrozenModel, **settings: Any) -> "ServerEngine":
        """The engine of a frozen model reference; `settings` as in the constructor.

        Raises:
          ConfigError: the variable that holds the key is not set.
        """
        return cls(model.base_url, model.name, api_key=model.api_key(), **settings)

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request. Its version is the one at sending.

        Weights that change while a request is in flight sample the rest of its tokens: the
        older version is the one that says how far from the policy its first tokens can be.

        Raises:
          EngineError: a prompt is empty or leaves no room in the context; sampling that vLLM does
            not do; the server could not be asked, or its answer is not to be believed.
        """
        return await together(self._complete(request) for request in requests)

    async def score(self, sequences: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Prefill log-probabilities at temperature 1.

        Raises:
          EngineError: a sequence does not leave room for the one token that vLLM always draws; the
            server could not be asked, or its answer is not to be believed.
        """
        return await together(self._score(sequence) for sequence in sequences)

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Write the weights into `weights_dir`, and wait until the server has read them.

        Prompts cached before are not used again: later requests have a salt of their own,
        also where the server cannot forget them because requests are running.

        Raises:
          EngineError: the server is frozen; names or shapes differ from those of the last call; the
            server could not be asked or refused, so that it may hold either weights.
        """
        if self._weights_dir is None:
            raise EngineError(
                f"ServerEngine.load_weights: {self._model!r} is frozen. A server for the policy is "
                "ServerEngine(..., policy=True, weights_dir=...)."
            )
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in named_tensors}
        check_same_tensors("ServerEngine", tensors, self._shapes or {n: t.shape for n, t in tensors.items()})
        salt = f"prl-{version}-{secrets.token_hex(8)}"
        folder = _written(tensors, self._weights_dir / salt)
        rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(folder.absolute())}}
        self._endpoint.post_and_wait("/collective_rpc", rpc)
        self._endpoint.post_and_wait("/reset_prefix_cache", {})
        self._shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self.version, self._salt = version, salt
        if self._folder is not None:
            shutil.rmtree(self._folder)
        self._folder = folder

    async def _complete(self, request: Request) -> Completion:
        sampling, ids = request.sampling, request.prompt_ids
        limit = min(sampling.max_tokens, completion_room("ServerEngine", len(ids), await self._room()))
        check_sampling("ServerEngine", sampling)
        await self._check_logprobs_mode(int(ids[0]))
        topk, version = sampling.topk_logprobs, self.version
        choice = await self._choice(
            ids, max_tokens=limit, temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k or 0,
            stop_token_ids=list(sampling.stop), seed=request_seed(request.key), logprobs=topk + EXTRA if topk else 0,
        )  # fmt: skip
        tokens, reason = self._tokens(choice, ids, sampling, limit)
        said = choice.get("logprobs") or {}
        logprobs = self._logprobs(said.get("token_logprobs"), len(tokens))
        logprobs = checked_logprobs("ServerEngine", logprobs, sampling.temperature)
        head = self._head(said.get("top_logprobs"), len(tokens), topk) if topk else None
        return Completion(np.array(tokens, np.int32), logprobs, head, reason, version)

    async def _score(self, sequence: np.ndarray) -> np.ndarray:
        if len(sequence) < 2:
            return np.zeros(len(sequence), np.float32)
        check_score_room("ServerEngine", len(sequence), await self._room())
        choice = await self._choice(sequence, max_tokens=1, temperature=0, prompt_logprobs=0)
        entries = choice.get("prompt_logprobs")
        try:
            pairs = zip(sequence[1:].tolist(), entries[1:], strict=True)  # type: ignore[index]
            values = [entry[str(token)]["logprob"] for token, entry in pairs]
        except (TypeError, KeyError, ValueError) as error:
            what = (
                f"prompt_logprobs {self._endpoint.shown(entries)} do not fit the {len(sequence)} tokens of the prompt."
            )
            raise self._fault(what) from error
        return checked_logprobs("ServerEngine.score", self._logprobs([0.0, *values], len(sequence)))

    async def _choice(self, prompt_ids: np.ndarray, **settings: Any) -> dict[str, Any]:
        body = {"model": self._model, "prompt": prompt_ids.tolist(), "cache_salt": self._salt, **_PLAIN, **settings}
        answer = await self._endpoint.ask(_COMPLETIONS, body)
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise self._fault(f"answered {self._endpoint.shown(answer)}; need an object with one choice.")
        return choices[0]

    async def _room(self) -> int:
        """The served context in tokens, asked once."""
        async with self._asking():
            if self._context is None:
                answer = await self._endpoint.ask("/models")
                self._context = self._served_context(answer)
        return self._context

    def _served_context(self, answer: Any) -> int:
        try:
            contexts = {entry["id"]: entry.get("max_model_len") for entry in answer["data"]}
        except (TypeError, KeyError, AttributeError) as error:
            shown = self._endpoint.shown(answer)
            raise self._endpoint.fault("/models", f"answered {shown}; need a list of models.") from error
        context = contexts.get(self._model)
        if not isinstance(context, int):
            raise self._endpoint.fault(
                "/models",
                f"no max_model_len for model {self._model!r}; it serves {sorted(contexts)}. Need a vLLM server of it.",
            )
        return context

    async def _check_logprobs_mode(self, token: int) -> None:
        """Let the server draw from one candidate, once: of that distribution the log-probability is 0.0 exactly.

        Raw log-probabilities are of the model's own distribution. They differ wherever the
        temperature is not 1, and where they are logits.
        """
        async with self._asking():
            if self._processed:
                return
            choice = await self._choice(
                np.array([token]), max_tokens=1, temperature=1.0, logprobs=0, allowed_token_ids=[token]
            )
            (value,) = self._logprobs((choice.get("logprobs") or {}).get("token_logprobs"), 1)
            if value != 0:
                raise self._fault(
                    f"a token drawn from one candidate has log-probability {value}, need 0.0: they are not of the "
                    "distribution that is sampled. Start the server with --logprobs-mode processed_logprobs."
                )
            self._processed = True

    def _tokens(self, choice: dict[str, Any], prompt_ids: np.ndarray, sampling: Sampling, limit: int) -> Any:
        """The sampled ids and the reason why they end."""
        ids, reason, prompt = (choice.get(name) for name in ("token_ids", "finish_reason", "prompt_token_ids"))
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise self._fault(f"token_ids are {self._endpoint.shown(ids)}; need a vLLM that knows return_token_ids.")
        if prompt is not None and prompt != prompt_ids.tolist():
            raise self._fault(f"prompt_token_ids {self._endpoint.shown(prompt)} are not the prompt that was sent.")
        if reason not in ("stop", "length"):
            raise self._fault(f"finish_reason is {reason!r}; need 'stop' or 'length'.")
        if not 0 < len(ids) <= limit or (reason == "length" and len(ids) < limit):
            raise self._fault(f"{len(ids)} tokens came and finish_reason {reason!r}; max_tokens was {limit}.")
        if reason == "stop" and ids[-1] not in sampling.stop:
            raise self._fault(
                f"it stopped at token {ids[-1]}, which is none of stop={list(sampling.stop)}. "
                "Start the server with --generation-config vllm."
            )
        return ids, reason

    def _logprobs(self, values: Any, n: int) -> np.ndarray:
        """n numbers; what is missing or no number is NaN."""
        if not isinstance(values, list) or len(values) != n:
            raise self._fault(f"log-probabilities are {self._endpoint.shown(values)}; need {n}, one for each token.")
        return np.array([value if type(value) in (int, float) else np.nan for value in values], np.float32)

    def _head(self, rows: Any, n: int, topk: int) -> TopK:
        need = f"need {n} dicts of {topk + 1} or more entries. Start the server with --max-logprobs {topk + EXTRA}."
        try:
            fits = len(rows) == n and all(len(row) > topk for row in rows)
            width = max(len(row) for row in rows)
            ids = np.zeros((n, width), np.int32)
            logprobs = np.full((n, width), -np.inf, np.float32)
            for t, row in enumerate(rows):
                ids[t, : len(row)] = [int(name.removeprefix("token_id:")) for name in row]
                logprobs[t, : len(row)] = list(row.values())
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            raise self._fault(f"top_logprobs are {self._endpoint.shown(rows)}; {need}") from error
        if not fits:
            raise self._fault(f"top_logprobs are {self._endpoint.shown(rows)}; {need}")
        for t, row in enumerate(rows):
            checked_logprobs(f"ServerEngine: candidates of token {t}", logprobs[t, : len(row)])
        head = captured_head(ids, logprobs, topk)
        if (mass := np.exp(head.logprobs).sum(-1).max()) > 1 + 1e-3:
            raise self._fault(f"candidates of a token have probability {mass:.4f} together; need at most 1.")
        return head

    def _fault(self, what: str) -> EngineError:
        return self._endpoint.fault(_COMPLETIONS, what)


def _written(tensors: dict[str, Tensor], folder: Path) -> Path:
    """The tensors as a checkpoint in `folder`, which appears whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".aside-", dir=folder.parent))
    save_file(tensors, aside / "model.safetensors")
    aside.chmod(0o755)  # the server may be another user
    return aside.rename(folder)
