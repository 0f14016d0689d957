"""Quotas: limits of a principal's concurrent usage, and its current usage.

`calls` and `bytes` are counted here, by each process. `topics` and `partitions` are counted in
metadata, by the server's gate.
"""

import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Self

from wings_core.errors import InvalidArgument, ResourceExhausted, suggested

QUOTA_MAX = (1 << 63) - 1

RELEASE_SECONDS_MAX = 600.0
"""Longest wait of a call for the release of its own bytes."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits of a principal; None for no limit.

    Attributes:
        calls: Concurrent Flight and HTTP calls at a node, open streams and long polls included.
        bytes: Bytes in flight at a node: received and not yet committed, or read and not yet sent.
            A single call may exceed it if no other call of the principal has bytes in flight.
        topics: Topics that it may administer, checked when it creates another.
        partitions: Partitions of keyed topics that it may write to, checked when it begins another.
    """

    calls: int | None = None
    bytes: int | None = None
    topics: int | None = None
    partitions: int | None = None

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Parse texts of the form `NAME=NUMBER`.

        Raises:
            InvalidArgument: A text is malformed, duplicate, or out of range.
        """
        found: dict[str, int] = {}
        for text in texts:
            name, _, number = text.partition("=")
            if name not in NAMES or not (number.isascii() and number.isdecimal()):
                raise InvalidArgument(
                    f"{text[:80]!r} is not a quota: expected NAME=NUMBER with one of "
                    f"{', '.join(NAMES)}"
                )
            if name in found:
                raise InvalidArgument(f"the quota {name!r} is given twice")
            found[name] = int(number[:20])
        return cls.of(found)

    @classmethod
    def of(cls, found: Mapping[str, int]) -> Self:
        """Construct quotas from numbers by name.

        Raises:
            InvalidArgument: A name is unknown, or a number out of range.
        """
        for name in found:
            if name not in NAMES:
                raise InvalidArgument(f"{name[:80]!r} is not a quota{suggested(name, NAMES)}")
        quotas = cls(**found)
        quotas.check()
        return quotas

    def check(self) -> None:
        """Check that the numbers are in range.

        Raises:
            InvalidArgument: A number is out of range: `calls` and `bytes` must be at least 1, the
                others at least 0.
        """
        for name, number in self.to_json().items():
            least = 1 if name in {"calls", "bytes"} else 0
            if not least <= number <= QUOTA_MAX:
                raise InvalidArgument(
                    f"the quota {name!r} must be {least} to {QUOTA_MAX}, not {number}"
                )

    def to_json(self) -> dict[str, int]:
        """Return the set quotas, by name."""
        found = {name: getattr(self, name) for name in NAMES}
        return {name: number for name, number in found.items() if number is not None}

    def __bool__(self) -> bool:
        """Return whether any quota is set."""
        return self != NO_QUOTAS


NAMES = tuple(field.name for field in fields(Quotas))

NO_QUOTAS = Quotas()


def exhausted(principal: str, quota: str, most: int, used: str) -> ResourceExhausted:
    """Return the error of a call that exceeds a quota, with facts `quota` (its name) and `most`."""
    return ResourceExhausted(
        f"the quota {quota!r} of {principal} is {most}: {used}", quota=quota, most=most
    )


class Usage:
    """Usage of one principal at this node. Thread-safe.

    Args:
        principal: Name of the principal, for errors.
        quotas: Its quotas; may be replaced at any time, for later calls.
    """

    def __init__(self, principal: str, quotas: Quotas) -> None:
        self.principal = principal
        self.quotas = quotas
        self._changed = threading.Condition()
        # Guarded by the condition above.
        self._calls = 0
        self._bytes = 0

    @property
    def calls(self) -> int:
        """Number of calls in progress."""
        return self._calls

    @property
    def bytes(self) -> int:
        """Bytes in flight."""
        return self._bytes

    @contextmanager
    def call(self) -> Generator["CallUsage"]:
        """Count one call, and its bytes, until the block ends.

        Raises:
            ResourceExhausted: The quota of calls is reached.
        """
        most = self.quotas.calls
        with self._changed:
            if most is not None and self._calls >= most:
                raise exhausted(self.principal, "calls", most, f"{self._calls} run already")
            self._calls += 1
        call = CallUsage(self)
        try:
            yield call
        finally:
            with self._changed:
                self._calls -= 1
            call.close()

    def take(self, call: "CallUsage", size: int, *, waits: bool) -> None:
        """Count bytes of a call as in flight; see `CallUsage.take`."""
        with self._changed:
            while (most := self.quotas.bytes) is not None and self._bytes + size > most:
                may_wait = waits and call.bytes > 0
                if not may_wait and self._bytes == call.bytes:
                    break
                if not (may_wait and self._is_released(call)):
                    used = f"{self._bytes} are in flight, and {size} more were to be"
                    raise exhausted(self.principal, "bytes", most, used)
            self.add(call, size)

    def _is_released(self, call: "CallUsage") -> bool:
        """Wait until bytes are released; returns False if none are in time."""
        held, others = call.bytes, self._bytes
        return self._changed.wait_for(
            lambda: call.bytes < held or self._bytes < others, RELEASE_SECONDS_MAX
        )

    def add(self, call: "CallUsage", change: int) -> None:
        """Add to the bytes in flight of a call; negative to release."""
        with self._changed:
            change = max(change, -call.bytes)
            call.bytes += change
            self._bytes += change
            if change < 0:
                self._changed.notify_all()


class CallUsage:
    """Usage of one call of a principal.

    Attributes:
        bytes: Its bytes in flight; only changed by `Usage`.
    """

    __slots__ = ("_usage", "bytes")

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self.bytes = 0

    def take(self, size: int, *, waits: bool = False) -> None:
        """Count bytes as in flight until `release`, or the end of the call.

        Args:
            size: Number of bytes.
            waits: If this call has bytes in flight, which another thread releases, block until they
                are fewer instead of raising. A call without any may exceed the quota by itself.

        Raises:
            ResourceExhausted: The bytes exceed the quota, together with those of other calls; or
                none of this call were released for `RELEASE_SECONDS_MAX`.
        """
        self._usage.take(self, size, waits=waits)

    def hold(self, size: int) -> None:
        """Count bytes as in flight, even beyond the quota."""
        self._usage.add(self, size)

    def release(self, size: int) -> None:
        """Release bytes in flight."""
        self._usage.add(self, -size)

    def close(self) -> None:
        """Release all remaining bytes."""
        self._usage.add(self, -self.bytes)
