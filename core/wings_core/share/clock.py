"""The clock that holds expire by: monotonic, so that setting the wall's does them no harm."""

import uuid
from pathlib import Path
from typing import Protocol

from wings_core.times import monotonic, now_us

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """A monotonic clock."""

    @property
    def boot_id(self) -> str:
        """Names the span of time in which readings compare, over restarts of a process too."""
        ...

    def now(self) -> float:
        """Return the time in seconds from any beginning."""
        ...

    def wall_us(self) -> int:
        """Return the time of day, in microseconds since the epoch."""
        ...


class MonotonicClock:
    """The system's monotonic clock."""

    def __init__(self) -> None:
        try:
            self.boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            self.boot_id = str(uuid.uuid4())  # Readings of other processes are not to be trusted.

    now = staticmethod(monotonic)
    wall_us = staticmethod(now_us)
