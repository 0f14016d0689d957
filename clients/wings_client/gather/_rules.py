"""When a gather ends."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from wings_client._arguments import checked
from wings_client.gather._request import Reply
from wings_core.errors import InvalidArgument
from wings_core.times import WAIT_SECONDS_MAX

STALL_SECONDS_MIN = 0.001
"""A shorter stall timer counts as none."""


class Empty(Enum):
    """The type of `EMPTY`."""

    EMPTY = "empty"


EMPTY = Empty.EMPTY
"""The sentinel that ends a gather at the first empty reply, which is not delivered."""

Sentinel = Callable[[Reply], bool] | Literal[Empty.EMPTY]
"""A predicate, true to continue (the first reply it is false for is the last one), or `EMPTY`."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A usual way to end: `wait`, `stall` or `first(n)`."""

    stalls: bool = False
    """Whether the default stall timer runs."""
    max_messages: int | None = None


wait = Strategy()
"""Until every source has ended, or the time is up."""

stall = Strategy(stalls=True)
"""Until no reply comes for the lesser of a tenth of the total and the connection's time-out."""


@checked
def first(count: int) -> Strategy:
    """Return the strategy that ends after `count` replies."""
    return Strategy(max_messages=count)


@dataclass(frozen=True, slots=True)
class Rules:
    """Conditions that end a gather, checked.

    Args:
        timeout: Seconds of waiting in all.
        stall_timeout: Seconds of each wait but the first; None: no bound of their own.
        max_messages: How many replies.
        sentinel: Which reply.
        ends_on_error: Whether the first failing source ends all.
    """

    timeout: float
    stall_timeout: float | None
    max_messages: int | None
    sentinel: Sentinel | None
    ends_on_error: bool

    @classmethod
    def of(
        cls,
        *,
        timeout: float | None,
        stall_timeout: float | None,
        max_messages: int | None,
        sentinel: Sentinel | None,
        on_error: str,
        strategy: Strategy,
        client_timeout: float,
    ) -> "Rules":
        """Check a caller's options and fill in the defaults.

        Raises:
            InvalidArgument: A value is out of range.
        """
        total = min(client_timeout if timeout is None else timeout, WAIT_SECONDS_MAX)
        if not total > 0:
            raise InvalidArgument(f"timeout must be positive; got {total}")
        if strategy.max_messages is not None:
            if max_messages is not None:
                raise InvalidArgument("give max_messages or the strategy first(n), not both")
            max_messages = strategy.max_messages
        if max_messages is not None and max_messages < 1:
            raise InvalidArgument(f"max_messages must be at least 1; got {max_messages!r:.80}")
        if sentinel is not None and sentinel is not EMPTY and not callable(sentinel):
            raise InvalidArgument("sentinel must be a predicate or EMPTY")
        if stall_timeout is None and strategy.stalls:
            stall_timeout = min(total / 10, client_timeout)
        if stall_timeout is not None and not STALL_SECONDS_MIN <= stall_timeout < total:
            stall_timeout = None
        return cls(total, stall_timeout, max_messages, sentinel, on_error == "end")
