"""The answers of a vLLM server's /completions, checked before anything in them is believed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prl.engines.head import EXTRA, captured_head
from prl.engines.http import Endpoint
from prl.engines.limits import checked_logprobs
from prl.errors import EngineError
from prl.types import TopK

PATH = "/completions"
_MASS = 1e-3  # by which rounded probabilities of a head may exceed 1


class Answer:
    """The one choice of an answer. Every method raises EngineError where the answer is not what was asked for."""

    def __init__(self, endpoint: Endpoint, answer: Any) -> None:
        self._endpoint = endpoint
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise self.fault(f"answered {endpoint.shown(answer)}; need an object with one choice.")
        self._choice: dict[str, Any] = choices[0]
        logprobs = self._choice.get("logprobs")
        self._said = logprobs if isinstance(logprobs, dict) else {}

    def tokens(self, prompt_ids: list[int], stop: Sequence[int | str], limit: int) -> tuple[list[int], str]:
        """The sampled ids, at most `limit`, and why they end: "stop" at one of `stop`, "length" at the limit."""
        ids, reason, prompt = (self._choice.get(name) for name in ("token_ids", "finish_reason", "prompt_token_ids"))
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise self.fault(f"token_ids are {self._endpoint.shown(ids)}; need a vLLM that knows return_token_ids.")
        if prompt is not None and prompt != prompt_ids:
            raise self.fault(f"prompt_token_ids {self._endpoint.shown(prompt)} are not the prompt that was sent.")
        if reason not in ("stop", "length"):
            raise self.fault(f"finish_reason is {reason!r}; need 'stop' or 'length'.")
        if not 0 < len(ids) <= limit or (reason == "length" and len(ids) < limit):
            raise self.fault(f"{len(ids)} tokens came with finish_reason {reason!r}; max_tokens was {limit}.")
        if reason == "stop" and ids[-1] not in stop:
            raise self.fault(
                f"it stopped at token {ids[-1]}, which is none of stop={list(stop)}. "
                "Start the server with --generation-config vllm."
            )
        return ids, reason

    def logprobs(self, n: int) -> np.ndarray:
        """Those of the n sampled tokens."""
        return self._numbers(self._said.get("token_logprobs"), n)

    def head(self, n: int, topk: int) -> TopK:
        """The topk likeliest tokens at each of the n sampled positions."""
        rows = self._said.get("top_logprobs")
        if not isinstance(rows, list) or len(rows) != n or not all(isinstance(r, dict) and len(r) > topk for r in rows):
            raise self.fault(
                f"top_logprobs are {self._endpoint.shown(rows)}; need {n} objects of at least {topk + 1} entries. "
                f"Start the server with --max-logprobs {topk + EXTRA}."
            )
        width = max(len(row) for row in rows)  # one more where the sampled token is not among the likeliest
        ids, logprobs = np.zeros((n, width), np.int32), np.full((n, width), -np.inf, np.float32)
        for t, row in enumerate(rows):
            ids[t, : len(row)] = self._candidates(row)
            logprobs[t, : len(row)] = self._numbers(list(row.values()), len(row))
        head = captured_head(ids, logprobs, topk)
        if (mass := float(np.exp(head.logprobs).sum(-1).max())) > 1 + _MASS:
            raise self.fault(f"candidates of a token have probability {mass:.4f} together; need at most 1.")
        return head

    def prefill(self, prompt_ids: list[int]) -> np.ndarray:
        """log p of each prompt token, 0.0 for the first."""
        entries = self._choice.get("prompt_logprobs")
        try:
            pairs = zip(prompt_ids[1:], entries[1:], strict=True)  # type: ignore[index]
            values = [entry[str(token)]["logprob"] for token, entry in pairs]
        except (TypeError, KeyError, ValueError) as error:
            shown = self._endpoint.shown(entries)
            raise self.fault(f"prompt_logprobs {shown} do not fit the {len(prompt_ids)} prompt tokens.") from error
        return self._numbers([0.0, *values], len(prompt_ids))

    def fault(self, what: str) -> EngineError:
        """An error about this answer."""
        return self._endpoint.fault(PATH, what)

    def _candidates(self, row: dict[str, Any]) -> list[int]:
        try:
            return [int(name.removeprefix("token_id:")) for name in row]
        except ValueError as error:
            shown = self._endpoint.shown(list(row))
            raise self.fault(f"candidates are named {shown}; need return_tokens_as_token_ids.") from error

    def _numbers(self, values: Any, n: int) -> np.ndarray:
        if not isinstance(values, list) or len(values) != n:
            raise self.fault(f"log-probabilities are {self._endpoint.shown(values)}; need {n}, one for each token.")
        numbers = [value if type(value) in (int, float) else np.nan for value in values]
        return checked_logprobs(self._endpoint.where + PATH, np.array(numbers, np.float32))
