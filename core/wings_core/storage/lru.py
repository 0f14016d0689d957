"""A small bounded memory of what was used last, safe from many threads."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """A mapping that forgets the entry unused for longest once it holds more than its bound.

    Its lock is held for a few dictionary operations and never while anything else is called.

    Args:
        entries_max: Most entries kept, at least one.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries_max = max(1, entries_max)
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return the value of a key and count it as used, or None."""
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Keep a value as the one used last; the oldest entry may be forgotten for it."""
        evicted: V | None = None
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            if len(self._entries) > self._entries_max:
                _, evicted = self._entries.popitem(last=False)
        # What was evicted may be costly to take down (a file's map): not under the lock.
        del evicted

    def discard(self, key: K) -> None:
        """Forget a key, if it is there."""
        with self._lock:
            discarded = self._entries.pop(key, None)
        del discarded

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            entries, self._entries = self._entries, OrderedDict()
        entries.clear()

    def __len__(self) -> int:
        """Return the number of entries kept."""
        return len(self._entries)
