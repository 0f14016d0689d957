"""Waits that Ctrl-C ends.

Python handles signals on the main thread, and only between its own instructions: not while that
waits in pyarrow. So where the main thread is about to wait for long, another makes the call for it.
"""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def interruptible(call: Callable[[], T], *, waits_long: bool) -> Generator[Callable[[], T]]:
    """Give back a call, for use within the block, as one that Ctrl-C can end.

    A call that is left by Ctrl-C goes on by itself: whoever handles that has to end it.

    Args:
        call: What blocks in pyarrow.
        waits_long: Whether it may; else, and on other threads than the main one, it is given back
            as it is.
    """
    if not waits_long or threading.current_thread() is not threading.main_thread():
        yield call
        return
    caller = ThreadPoolExecutor(1, thread_name_prefix="wings-read")
    try:
        yield lambda: caller.submit(call).result()
    finally:
        caller.shutdown(wait=False)
