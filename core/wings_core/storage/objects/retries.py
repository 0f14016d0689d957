"""Retries with back-off and full jitter, bounded in number and in time.

After https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/. The loop is ours,
and not the client library's, so that a put whose answer was lost is told from another's, and every
attempt is counted.
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
    """How long something is tried, at most: `seconds_max` and one attempt more."""

    attempts_max: int = 12
    seconds_max: float = 60.0
    """After this no further attempt begins."""
    attempt_seconds_max: float = 30.0
    """An attempt without a whole answer by then has failed."""
    pause_seconds: float = 0.05
    """The first pause is a random part of this; each further bound is twice the last."""
    pause_seconds_max: float = 5.0


def retry(attempt: Callable[[], T], bounds: RetryBounds) -> T:
    """Call `attempt` until it does not raise Unavailable, or the bounds are reached.

    Raises:
        Unavailable: From the last attempt.
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
