"""The deadline of the request that metadata is called for.

A call of metadata that cannot be reached is tried again, so that a short outage is not noticed. A
request with a deadline waits for that no longer than for messages.
"""

import math
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from wings_core.times import Deadline

HANGING_SECONDS_MAX = 5.0
"""How long a call that is under way may take, also after the deadline: one that was sent may only
be slow."""

T = TypeVar("T")

_ends: ContextVar[float] = ContextVar("_ends", default=math.inf)


@contextmanager
def calls_until(deadline: Deadline) -> Generator[None]:
    """Have calls of metadata in the block not be tried again after a deadline.

    No generator yields within the block: it may be resumed on another thread.
    """
    token = _ends.set(math.inf if deadline.at is None else deadline.at)
    try:
        yield
    finally:
        _ends.reset(token)


def each_until(deadline: Deadline, items: Iterator[T]) -> Generator[T]:
    """Yield items, each of which is made within `calls_until`."""
    while True:
        with calls_until(deadline):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def tries_end() -> float:
    """Return when tries of the present call end, by `time.monotonic`; infinity: no deadline."""
    return _ends.get()


def look_ends() -> float:
    """Return when the present call, which begins now, is to end if it only looks, as `tries_end`.

    At the deadline, or later, so that one that is only slow has `HANGING_SECONDS_MAX`.
    """
    return max(tries_end(), time.monotonic() + HANGING_SECONDS_MAX)
