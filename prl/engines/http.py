"""What engines that talk HTTP share: bounded, timed, retried requests, and errors that say what came back."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from prl.config.base import at_least
from prl.errors import ConfigError, EngineError

_BACKOFF_S = 0.5  # before the first retry; each later one waits twice as long
_SHOWN = 300  # characters of an answer that an error repeats


class _Passing(EngineError):
    """A failure that may be gone at the next try."""


class Endpoint:
    """One server at `base_url`, asked on behalf of `who`.

    At most `concurrency` requests are in flight. One that takes longer than `timeout_s` seconds
    fails; one that meets a connection error, status 429 or 5xx is sent again up to `retries` times.
    Each has a connection of its own: an idle one would belong to the event loop that opened it, and
    would keep prl.loop from noticing that nothing can happen any more.

    Raises:
      ConfigError: a setting out of range.
    """

    def __init__(
        self, who: str, base_url: str, api_key: str | None, *, concurrency: int, timeout_s: float, retries: int
    ) -> None:
        at_least(who, 1, concurrency=concurrency)
        at_least(who, 0, retries=retries)
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"{who}: got base_url={base_url!r}; need an address such as 'http://localhost:8000/v1'.")
        if not timeout_s > 0:
            raise ConfigError(f"{who}: got timeout_s={timeout_s!r}; need seconds above 0.")
        base_url = base_url.rstrip("/")
        self._base_url, self._api_key, self._timeout_s, self._retries = base_url, api_key, timeout_s, retries
        self.where = f"{who} {re.sub('//[^/@]*@', '//', base_url)}"  # without user and password
        self._slots = PerLoop(lambda: asyncio.Semaphore(concurrency))
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        no_idle = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        # Certificates take 0.1 s to read, and plain http has none to check; redirects are not followed.
        certificates = httpx.create_ssl_context() if base_url.startswith("https://") else False
        shared: Any = {"headers": headers, "limits": no_idle, "verify": certificates}
        self._client = httpx.AsyncClient(**shared, timeout=None)
        self._blocking_client = httpx.Client(**shared, timeout=timeout_s)

    async def ask(self, path: str, body: Callable[[], Any] | None = None) -> Any:
        """The JSON that `base_url` + `path` answers: to a POST of body(), made when it is sent, or to a GET without it.

        Raises:
          EngineError: no answer in time, a refusal, a failure that outlived the retries, or no JSON.
        """
        async with self._slots():
            for attempt in range(self._retries):
                with contextlib.suppress(_Passing):
                    return await self._attempt(path, body)
                await asyncio.sleep(_BACKOFF_S * 2**attempt)
            try:
                return await self._attempt(path, body)
            except _Passing as error:
                raise EngineError(f"{error} Tries: {self._retries + 1}.") from error

    def ask_and_wait(self, path: str, body: Any = None) -> Any:
        """The same, for once and blocking the thread; `path` starts at the server's root, where /v1 starts.

        Raises:
          EngineError: as `ask`.
        """
        sent = {} if body is None else {"json": body}
        url = self._base_url.removesuffix("/v1") + path
        try:
            return self._read(path, self._blocking_client.request("POST" if sent else "GET", url, **sent))
        except httpx.TimeoutException as error:
            raise self._late(path) from error
        except httpx.RequestError as error:
            raise EngineError(str(self._unreached(path, error))) from error
        except _Passing as error:
            raise EngineError(str(error)) from error

    def fault(self, path: str, what: str) -> EngineError:
        """An error about this endpoint, without its key."""
        return EngineError(self._text(path, what))

    async def _attempt(self, path: str, body: Callable[[], Any] | None) -> Any:
        sent = {} if body is None else {"json": body()}
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._client.request("POST" if sent else "GET", self._base_url + path, **sent)
        except TimeoutError as error:
            raise self._late(path) from error
        except httpx.RequestError as error:
            raise self._unreached(path, error) from error
        return self._read(path, answer)

    def _read(self, path: str, answer: httpx.Response) -> Any:
        if answer.status_code == 429 or answer.status_code >= 500:
            hint = "Lower concurrency." if answer.status_code == 429 else "The server's log says why."
            raise _Passing(self._text(path, f"status {answer.status_code}: {self.shown(answer.text)}. {hint}"))
        if not answer.is_success:
            hint = _HINTS.get(answer.status_code, "The server does not take this request.")
            raise self.fault(path, f"status {answer.status_code}: {self.shown(answer.text)}. {hint}")
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise self.fault(path, f"answered {self.shown(answer.text)}; need JSON.") from error

    def _late(self, path: str) -> EngineError:
        return self.fault(
            path,
            f"no answer within {self._timeout_s:g} s. Raise timeout_s, ask for fewer tokens, or lower concurrency.",
        )

    def _unreached(self, path: str, error: Exception) -> _Passing:
        what = f"{type(error).__name__}: {self.shown(str(error))}. Is the server up, and is this its address?"
        return _Passing(self._text(path, what))

    def _text(self, path: str, what: str) -> str:
        return f"{self.where}: {path}: {what}"

    def shown(self, value: Any) -> str:
        """`value` as an error may repeat it: cut short, and without the key, which a server may send back."""
        text = str(value).replace(self._api_key, "***") if self._api_key else str(value)
        return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + " ...")


_HINTS = {
    401: "Is the key right? FrozenModel(api_key_var=...) names the variable that holds it.",
    403: "Is the key right? FrozenModel(api_key_var=...) names the variable that holds it.",
    404: "Does the address end with the version part, such as /v1, and does the server serve this model? "
    "Weights are loaded through endpoints that vLLM has with VLLM_SERVER_DEV_MODE=1 only.",
}


class PerLoop:
    """make() once for each event loop: asyncio's locks belong to the first loop that had to wait for them."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()

    def __call__(self) -> Any:
        return self._made.setdefault(asyncio.get_running_loop(), self._make())


async def together(work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Results in order. The first failure ends the others, and is raised when they have ended."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
