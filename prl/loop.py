"""One event loop in one thread: synchronous calls that also work where a loop is already running, as in Jupyter."""

import asyncio
import contextlib
import selectors
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any

from prl.errors import TrainingError

_ENDED = (
    "Runner: its thread has ended, by close() or by a failure printed above. "
    "Make a new Runner and load the last checkpoint."
)


class _Selector(selectors.DefaultSelector):
    """Asks `on_idle` before it would block for ever: no callback is ready and no timer is set."""

    on_idle: Callable[[], bool] | None = None

    def select(self, timeout: Any = None) -> Any:
        if timeout is None and self.on_idle is not None and self.on_idle():
            timeout = 0
        return super().select(timeout)


class Loop(asyncio.SelectorEventLoop):
    """An event loop that knows when nothing can happen any more.

    `on_stall` is called when no callback, timer, thread or socket can wake the loop.
    It returns True when it scheduled something. `stopped` ends the thread that serves it.
    """

    def __init__(self) -> None:
        self.on_stall: Callable[[], bool] | None = None
        self.stopped = False
        self._threads = 0
        selector = _Selector()
        super().__init__(selector)
        self._own_sockets = len(selector.get_map())
        selector.on_idle = lambda: self._stalled(selector)

    def _stalled(self, selector: selectors.BaseSelector) -> bool:
        busy = self._threads or len(selector.get_map()) > self._own_sockets
        return not busy and self.on_stall is not None and self.on_stall()

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """As in asyncio; a thread that works counts as work."""
        self._threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: Any) -> None:
        self._threads -= 1


class LoopThread:
    """Runs coroutines, one at a time, on a loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = Loop()
        self._thread = threading.Thread(target=_serve, args=(self.loop,), name="prl-loop", daemon=True)
        self._thread.start()
        self._close = weakref.finalize(self, _stop, self.loop, self._thread)

    def run(
        self,
        work: Coroutine[Any, Any, Any],
        *,
        hold_interrupt: bool = False,
        on_interrupt: Callable[[], object] = lambda: None,
    ) -> Any:
        """The coroutine's result.

        An interrupt cancels the work, waits until it has unwound, and is raised again; with
        `hold_interrupt` it calls `on_interrupt` in the loop and is raised after the work is done.
        A second one shortens nothing.

        Raises:
          TrainingError: the thread has ended, before or during the work.
        """
        if not self._thread.is_alive():
            work.close()
            raise TrainingError(_ENDED)
        outcome: Future[Any] = Future()
        tasks: list[asyncio.Task[Any]] = []

        def start() -> None:
            tasks.append(self.loop.create_task(work))
            tasks[0].add_done_callback(lambda task: _hand_over(task, outcome))

        self.loop.call_soon_threadsafe(start)
        try:
            self._wait(outcome)
        except KeyboardInterrupt:
            self.loop.call_soon_threadsafe(on_interrupt if hold_interrupt else lambda: tasks[0].cancel())
            while not outcome.done():
                with contextlib.suppress(KeyboardInterrupt):
                    self._wait(outcome)
            raise
        return outcome.result()

    def _wait(self, outcome: "Future[Any]") -> None:
        while not outcome.done():
            wait(
                [outcome], timeout=0.2
            )  # an interrupt that is no signal (`_thread.interrupt_main`, Windows) wakes nobody
            if not self._thread.is_alive() and not outcome.done():
                raise TrainingError(_ENDED)

    def close(self) -> None:
        """Stop the thread. Later calls of `run` fail."""
        self._close()


def _hand_over(task: "asyncio.Task[Any]", outcome: "Future[Any]") -> None:
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is None:
        outcome.set_result(task.result())
    else:
        outcome.set_exception(error)


def _serve(loop: Loop) -> None:
    asyncio.set_event_loop(loop)
    try:
        while not loop.stopped:
            # asyncio lets these two through run_forever after it has given them to whoever awaits the task.
            with contextlib.suppress(KeyboardInterrupt, SystemExit):
                loop.run_forever()
    finally:
        loop.close()


def _stop(loop: Loop, thread: threading.Thread) -> None:
    loop.stopped = True
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join()
