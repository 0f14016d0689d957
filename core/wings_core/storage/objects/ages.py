"""The age of objects, safe against wrong clocks, to decide which may be deleted."""

import threading
import time
from collections.abc import Iterable

from wings_core.storage.objects.interfaces import StoredObject

OFF_SECONDS_MAX = 3_600.0
"""Greatest assumed clock error; also the bound for producers' timestamps in the future."""


class Ages:
    """Separates old objects from those that may not be committed yet. Thread-safe.

    The store stamps objects with its own clock. A node whose clock is ahead by more than the grace
    would treat objects that other nodes have just stored as old, and their commits would be
    rejected. So an object counts as old only if another was stored `grace_seconds` later, if this
    process has seen it for that long by a monotonic clock, or if it is older than any clock error.

    Args:
        grace_seconds: Age from which an object is old.
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._lock = threading.Lock()
        self._first_seen: dict[str, float] = {}
        """Monotonic time of the first sight of objects that were young at the last listing."""

    def old(self, listed: Iterable[StoredObject]) -> set[str]:
        """Return the names of the old objects of a listing."""
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
