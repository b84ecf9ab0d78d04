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

from prl.config import FrozenModel
from prl.engines import answers
from prl.engines.answers import Answer
from prl.engines.base import Completion, Request
from prl.engines.head import EXTRA
from prl.engines.http import Endpoint, PerLoop, together
from prl.engines.limits import check_same_tensors, check_sampling, check_score_room, completion_room, request_seed
from prl.errors import ConfigError, EngineError

_EXTENSION = "prl.engines.vllm.Reload"
_PLAIN = {
    "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "ignore_eos": True, "return_token_ids": True, "return_tokens_as_token_ids": True,
}  # fmt: skip
"""Said in every request: what is left out, vLLM takes from the model's generation_config.json."""


class ServerEngine:
    """A client of the vLLM server at `base_url` (with its version part, "/v1"). Each request goes at once.

    Frozen by default: its weights never change, its version is always 0. With `policy` it samples for
    the model that is trained: the server runs with VLLM_SERVER_DEV_MODE=1 and starts from the same
    weights, on a CPU with `--worker-extension-cls prl.engines.vllm.Reload`, and `weights_dir` is a folder
    that both can read, for new ones.

    Log-probabilities must be of the distribution that was sampled: the server needs `--logprobs-mode
    processed_logprobs`, which the first request checks, and `--max-logprobs` of at least
    `Sampling.topk_logprobs` + 2 for candidates, which come three times as fast with `--skip-tokenizer-init`.
    `concurrency`, `timeout_s` (seconds of one request) and `retries` are those of `prl.engines.http.Endpoint`.

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
        self._model, self._weights_dir = model, None if weights_dir is None else Path(weights_dir).absolute()
        self._asking = PerLoop(asyncio.Lock)
        self._context: int | None = None
        self._processed = False
        self._shapes: dict[str, torch.Size] | None = None
        self._folder: Path | None = None
        self._reload: str | None = None
        self.version, self._salt = 0, _salt(0) if policy else "prl-frozen"

    @classmethod
    def from_frozen(cls, model: FrozenModel, **settings: Any) -> "ServerEngine":
        """The engine of a frozen model reference; `settings` as in the constructor.

        Raises:
          ConfigError: the variable that holds the key is not set.
        """
        return cls(model.base_url, model.name, api_key=model.api_key(), **settings)

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request. Its version is the one at sending.

        Weights that change while a request is in flight sample the rest of its tokens; the older
        version is the safe side: no token is further from the policy than it says.

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

        Later requests have a cache salt of their own, so that they use no prompt of older weights,
        also where the server cannot forget those because requests are running.

        Raises:
          EngineError: the server is frozen; names or shapes differ from those of the call before; the
            server could not be asked or refused, and may hold either weights.
        """
        if self._weights_dir is None:
            raise EngineError(
                f"ServerEngine.load_weights: {self._model!r} is frozen. A server for the policy is "
                "ServerEngine(..., policy=True, weights_dir=...)."
            )
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in named_tensors}
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        check_same_tensors("ServerEngine", tensors, self._shapes or shapes)
        salt = _salt(version)
        self._reload = self._reload or self._reload_method()
        folder = _written(tensors, self._weights_dir / salt)
        rpc = {"method": self._reload, "kwargs": {"weights_path": str(folder)}}
        self._endpoint.ask_and_wait("/collective_rpc", rpc)
        self._endpoint.ask_and_wait("/reset_prefix_cache", {})
        self.version, self._salt, self._shapes = version, salt, shapes
        if self._folder is not None:
            shutil.rmtree(self._folder)
        self._folder = folder

    def _reload_method(self) -> str:
        """What the server calls to read weights."""
        path = "/server_info?config_format=json"
        info = self._endpoint.ask_and_wait(path)
        try:
            config = info["vllm_config"]
            device, extension = config["device_config"]["device"], config["parallel_config"]["worker_extension_cls"]
        except (TypeError, KeyError) as error:
            what = f"answered {self._endpoint.shown(info)}; need vllm_config, as vLLM 0.32 sends it."
            raise self._endpoint.fault(path, what) from error
        if extension == _EXTENSION:
            return "prl_reload"
        if device == "cpu":
            raise self._endpoint.fault(
                path,
                "on a CPU vLLM's own reload_weights keeps the old output head where embeddings are shared. "
                f"Start the server with --worker-extension-cls {_EXTENSION}, in an environment that has prl.",
            )
        return "reload_weights"

    async def _complete(self, request: Request) -> Completion:
        sampling, prompt = request.sampling, request.prompt_ids.tolist()
        check_sampling("ServerEngine", sampling)
        limit = min(sampling.max_tokens, completion_room("ServerEngine", len(prompt), await self._room()))
        await self._check_logprobs_mode(prompt[0])
        topk = sampling.topk_logprobs
        answer, version = await self._ask(
            prompt, max_tokens=limit, temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k or 0,
            stop_token_ids=list(sampling.stop), seed=request_seed(request.key), logprobs=topk + EXTRA if topk else 0,
        )  # fmt: skip
        tokens, reason = answer.tokens(prompt, sampling.stop, limit)
        logprobs = answer.logprobs(len(tokens))
        if sampling.temperature == 0:
            logprobs = np.zeros_like(logprobs)  # a point; the server reports those of temperature 1
        head = answer.head(len(tokens), topk) if topk else None
        return Completion(np.array(tokens, np.int32), logprobs, head, reason, version)

    async def _score(self, sequence: np.ndarray) -> np.ndarray:
        if len(sequence) < 2:
            return np.zeros(len(sequence), np.float32)
        check_score_room("ServerEngine", len(sequence), await self._room())
        prompt = sequence.tolist()
        answer, _ = await self._ask(prompt, max_tokens=1, temperature=0.0, prompt_logprobs=0)
        return answer.prefill(prompt)

    async def _ask(self, prompt: list[int], **settings: Any) -> tuple[Answer, int]:
        """The answer and the version at sending."""
        version = self.version

        def body() -> dict[str, Any]:
            nonlocal version
            version = self.version
            return {"model": self._model, "prompt": prompt, "cache_salt": self._salt, **_PLAIN, **settings}

        return Answer(self._endpoint, await self._endpoint.ask(answers.PATH, body)), version

    async def _room(self) -> int:
        """The served context in tokens, asked once."""
        async with self._asking():
            if self._context is None:
                self._context = self._served_context(await self._endpoint.ask("/models"))
        return self._context

    def _served_context(self, answer: Any) -> int:
        try:
            contexts = {str(entry["id"]): entry.get("max_model_len") for entry in answer["data"]}
        except (TypeError, KeyError, AttributeError) as error:
            shown = self._endpoint.shown(answer)
            raise self._endpoint.fault("/models", f"answered {shown}; need a list of models.") from error
        context = contexts.get(self._model)
        if not isinstance(context, int):
            served = f"no max_model_len for {self._model!r}; it serves {sorted(contexts)}"
            raise self._endpoint.fault("/models", f"{served}. Need the name under which a vLLM server serves it.")
        return context

    async def _check_logprobs_mode(self, token: int) -> None:
        """Let the server draw from one candidate, once: in that distribution it has log-probability 0.0.

        Raw log-probabilities are of the model's own distribution, which is another one at any
        temperature but 1; raw and processed logits are none at all.
        """
        async with self._asking():
            if self._processed:
                return
            asked = {"max_tokens": 1, "temperature": 1.0, "logprobs": 0, "allowed_token_ids": [token]}
            answer, _ = await self._ask([token], **asked)
            if (value := float(answer.logprobs(1)[0])) != 0:
                raise answer.fault(
                    f"a token drawn from one candidate has log-probability {value:.4f}, need 0: it is not of the "
                    "distribution that was sampled. Start the server with --logprobs-mode processed_logprobs."
                )
            self._processed = True


def _salt(version: int) -> str:
    """Names a set of weights; two that get the same version, as after a resume, differ."""
    return f"prl-{version}-{secrets.token_hex(8)}"


def _written(tensors: dict[str, Tensor], folder: Path) -> Path:
    """The tensors as a checkpoint in `folder`, which appears whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".aside-", dir=folder.parent))
    save_file(tensors, aside / "model.safetensors")
    aside.chmod(0o755)  # the server may run as another user
    return aside.rename(folder)
