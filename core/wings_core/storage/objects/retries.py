"""Retries with back-off and full jitter, bounded in number and in time.

After https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/. The client
library's own retries are not used, so that a put whose response was lost is distinguished from
another writer's, and every attempt is counted.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from wings_core.errors import Unavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryBounds:
    """Bounds of retries: `seconds_max`, and the time of one further attempt."""

    attempts_max: int = 12
    seconds_max: float = 60.0
    """Time after which no further attempt begins."""
    attempt_seconds_max: float = 30.0
    """Timeout of one attempt."""
    pause_seconds: float = 0.05
    """Upper bound of the first, random pause; it doubles with each attempt."""
    pause_seconds_max: float = 5.0


def retry(attempt: Callable[[], T], bounds: RetryBounds) -> T:
    """Call `attempt` until it does not raise Unavailable, within `bounds`.

    Raises:
        Unavailable: The last attempt failed.
    """
    ends_at = time.monotonic() + bounds.seconds_max
    pause_max = bounds.pause_seconds
    for number in range(1, bounds.attempts_max + 1):
        try:
            return attempt()
        except Unavailable as error:
            pause = random.uniform(0, pause_max)
            if number == bounds.attempts_max or time.monotonic() + pause >= ends_at:
                attempts = "once" if number == 1 else f"{number} times"
                raise Unavailable(f"{error.message} (tried {attempts})") from error
        time.sleep(pause)
        pause_max = min(2 * pause_max, bounds.pause_seconds_max)
    raise AssertionError("at least one attempt is made")
