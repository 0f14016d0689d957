"""Which objects are old enough to be deleted, though a clock may be off."""

import threading
import time
from collections.abc import Iterable

from wings_core.storage.objects.interfaces import StoredObject

OFF_SECONDS_MAX = 3_600.0
"""No clock is taken to be off by more: so far may a producer's time lie ahead, too."""


class Ages:
    """Tells old objects from those that may not be committed yet; all methods from any thread.

    The store stamps objects by its own clock. A node whose clock is ahead of it by more than the
    grace would take each object for old that another node has just stored, and have its commit
    refused. So an object is old only where another was stored that much later, or this process has
    seen it for as long by a monotonic clock, or it is older than clocks are wrong.

    Args:
        grace_seconds: An object younger than this is not old.
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._lock = threading.Lock()
        self._first_seen: dict[str, float] = {}
        """Those that were young at the last listing: at most what is stored in one grace."""

    def old(self, listed: Iterable[StoredObject]) -> set[str]:
        """Return the names of the objects of a listing that are old."""
        now, seen_at = time.time(), time.monotonic()
        stored = [(each.name, each.modified_at) for each in listed]
        newest = max((modified_at for _, modified_at in stored), default=now)
        certain = max(min(now, newest), now - OFF_SECONDS_MAX) - self._grace_seconds
        possible = now - self._grace_seconds
        with self._lock:
            self._first_seen = {
                name: self._first_seen.get(name, seen_at)
                for name, modified_at in stored
                if modified_at > certain
            }
            old_enough = seen_at - self._grace_seconds
            seen_long = {name for name, first in self._first_seen.items() if first <= old_enough}
        return {
            name
            for name, modified_at in stored
            if modified_at <= certain or (modified_at <= possible and name in seen_long)
        }
