"""Retries: how often, and how long to pause before each."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from wings_client._arguments import checked
from wings_client._errors import is_passing
from wings_core.errors import InvalidArgument, WingsError
from wings_core.times import Deadline

T = TypeVar("T")


@checked
@dataclass(frozen=True, slots=True)
class Retry:
    """Rules of what is retried after a transient failure, and for how long.

    A call is retried only where it cannot take effect twice: reads and idempotent writes after any
    transient failure, others only if they never reached the server or it refused them.
    """

    attempts: int = 5
    """Attempts of one call, the first included; 1: no retries."""
    delay: float = 0.05
    """Seconds before the second attempt; doubles from each to the next."""
    delay_max: float = 2.0
    """Seconds that a pause lasts at most."""
    reconnect_seconds: float = 60.0
    """How long an open producer, follow or consumer retries without progress."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or not 0 <= self.delay <= self.delay_max or self.reconnect_seconds < 0:
            raise InvalidArgument(f"not a retry policy: {self}")


class Backoff:
    """The pauses of one run of failures: each twice the last, with jitter, up to a bound."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._failures = 0

    @property
    def failures(self) -> int:
        """How many pauses there were since the start or the last reset."""
        return self._failures

    def next_delay(self) -> float:
        """Return the seconds to pause now, between a half and the whole of the nominal pause.

        Half of it is random, so that clients that failed together do not retry together.
        """
        exponent = min(self._failures, 30)  # Beyond it, the pause is at its bound anyway.
        self._failures += 1
        nominal = min(self._retry.delay_max, self._retry.delay * 2**exponent)
        return nominal * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin again with the shortest pause: there was progress."""
        self._failures = 0


def repeat_call(
    call: Callable[[float], T],
    retry: Retry,
    timeout: float,
    closed: threading.Event,
    *,
    repeatable: bool,
) -> T:
    """Call until it succeeds or fails for good; blocks up to `timeout` seconds.

    Args:
        call: Takes the seconds that are left.
        retry: How often.
        timeout: Seconds for all attempts and the pauses between them.
        closed: Ends a pause, and the attempts.
        repeatable: Whether the call may be carried out twice.

    Raises:
        WingsError: The error of the last attempt.
    """
    deadline = Deadline.after(timeout)
    backoff = Backoff(retry)
    remaining = timeout
    while True:
        try:
            return call(remaining)
        except WingsError as error:
            if backoff.failures + 1 >= retry.attempts:
                raise
            if not is_passing(error, repeatable=repeatable):
                raise
            delay = backoff.next_delay()
            remaining = (deadline.remaining() or 0.0) - delay
            if remaining <= 0 or closed.wait(delay):
                raise
