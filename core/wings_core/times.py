"""Times: timestamps of messages, deadlines of waits, and durations in settings.

A timestamp is an int of microseconds since 1970-01-01T00:00:00Z. On the wire it is RFC 3339 in UTC
with six digits of fraction. A deadline is a time of the monotonic clock, computed once on arrival,
so that setting the wall clock does not affect waits. A duration is `500ms`, `30s`, `2h`, or a
number in a known unit.
"""

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Self

from pydantic import BeforeValidator

from wings_core.errors import InvalidArgument

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_RFC3339 = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:\d{2})(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


TIMESTAMP_MIN = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
TIMESTAMP_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""Latest timestamp: RFC 3339 has the years 0001 to 9999, also after conversion to UTC."""

WAIT_SECONDS_MAX = 10 * 366 * 86_400.0
"""Longest wait, to which later deadlines are cut: system calls reject very long timeouts."""


_ahead_us = 0
"""How far tests have moved this process's clocks."""


def now_us() -> int:
    """Return the wall clock's time in microseconds since the epoch."""
    return time.time_ns() // 1000 + _ahead_us


def monotonic() -> float:
    """Return the monotonic clock's time in seconds, which `move_clocks` moves too."""
    return time.monotonic() + _ahead_us / 1e6


def move_clocks(seconds: float) -> None:
    """Move `now_us` and `monotonic` of this process forward, for tests of what happens later.

    Waits and deadlines stay real. Whoever waits for such a time is to be woken by the caller.
    """
    global _ahead_us
    assert seconds >= 0
    _ahead_us += round(seconds * 1e6)


def moment_of(timestamp: int) -> datetime:
    """Return a timestamp as a datetime in UTC.

    Raises:
        OverflowError: It is outside the years 0001 to 9999.
    """
    return _EPOCH + timedelta(microseconds=timestamp)


def parse_timestamp(text: str, *, up: bool = False) -> int:
    """Parse an RFC 3339 time with a zone into microseconds since the epoch.

    Args:
        text: The time, with any number of fractional digits.
        up: Round up to the next microsecond, so that no earlier time is at or after the result.
            Otherwise further digits are truncated.

    Raises:
        InvalidArgument: The text is not RFC 3339, or has no zone.
    """
    match = _RFC3339.fullmatch(text)
    if match is not None:
        fraction = (match[3] or ".0")[1:7].ljust(6, "0")
        zone = "+00:00" if match[4] in "Zz" else match[4]
        try:
            moment = datetime.fromisoformat(f"{match[1]}T{match[2]}.{fraction}{zone}")
            timestamp = (moment - _EPOCH) // _MICROSECOND
            if TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
                cut = (match[3] or "")[7:].strip("0")
                return min(timestamp + 1, TIMESTAMP_MAX) if up and cut else timestamp
        except (ValueError, OverflowError):
            pass
    raise InvalidArgument(
        f"{text[:80]!r} is not a time: expected RFC 3339 with a zone, "
        "like 2026-11-20T12:00:00.000000Z"
    )


@lru_cache(256)  # All messages of a flush have the same timestamp.
def format_timestamp(timestamp: int) -> str:
    """Format microseconds since the epoch as RFC 3339: `2026-11-20T12:00:00.000000Z`."""
    second, microsecond = divmod(timestamp, 1_000_000)
    return f"{_format_second(second)}.{microsecond:06}Z"


@lru_cache(16)  # Most are from the last few seconds.
def _format_second(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).isoformat().removesuffix("+00:00")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time of this process's monotonic clock, in seconds; `at` is None for never."""

    at: float | None

    @classmethod
    def after(cls, seconds: float) -> Self:
        """Return the deadline `seconds` from now, which may be negative."""
        return cls(time.monotonic() + min(seconds, WAIT_SECONDS_MAX))

    @classmethod
    def at_timestamp(cls, timestamp: int) -> Self:
        """Return the deadline at a wall clock time, in microseconds since the epoch."""
        return cls.after((timestamp - now_us()) / 1e6)

    @staticmethod
    def never() -> "Deadline":
        """Return the deadline that never passes."""
        return _NEVER

    def remaining(self) -> float | None:
        """Return the seconds left, at least 0; None without an end."""
        if self.at is None:
            return None
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the deadline is in the past."""
        return self.at is not None and time.monotonic() >= self.at


_NEVER = Deadline(None)


_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(rf"([0-9]+(?:[.][0-9]+)?)({'|'.join(_UNITS_MS)})?")


def duration_in(unit: str, text: str) -> float | None:
    """Return a duration in a unit, which is also that of a plain number; None if it is none."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    return float(found[1]) * _UNITS_MS[found[2] or unit] / _UNITS_MS[unit]


def _seconds(value: object) -> object:
    seconds = duration_in("s", value) if isinstance(value, str) else None
    return value if seconds is None else seconds


DURATION = BeforeValidator(_seconds)
"""Lets a setting in seconds be given with a unit as well."""
