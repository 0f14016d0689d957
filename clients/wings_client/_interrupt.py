"""Waits that Ctrl-C ends.

Python handles signals on the main thread, and only between its own instructions: not while that
blocks in pyarrow. So a call on the main thread that may block for long runs on another thread.
"""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

LOOK_SECONDS = 0.5
"""How late Ctrl-C may be heeded: one that comes just before the wait begins does not end it, and is
noticed when the wait is over."""


@contextmanager
def interruptible(call: Callable[[], T], *, waits_long: bool) -> Generator[Callable[[], T]]:
    """Yield a call, for use within the block, that Ctrl-C interrupts.

    An interrupted call continues on its thread: the handler of `KeyboardInterrupt` must end it.

    Args:
        call: Blocks in pyarrow.
        waits_long: Whether it may block for long. If not, and on other threads than the main one,
            `call` itself is yielded.
    """
    if not waits_long or threading.current_thread() is not threading.main_thread():
        yield call
        return
    caller = ThreadPoolExecutor(1, thread_name_prefix="wings-read")
    try:
        yield lambda: _result(caller.submit(call))
    finally:
        caller.shutdown(wait=False)


def _result(future: "Future[T]") -> T:
    while True:
        try:
            return future.result(LOOK_SECONDS)
        except TimeoutError:
            if future.done():  # Just now, or it is what the call itself raised.
                return future.result()
