"""Bounded, thread-safe caches: one evicts the least recently used entries, one is by schema."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import pyarrow as pa

from wings_core.model import Topic

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """A mapping that evicts its least recently used entries above a bound.

    Its lock is held for a few dictionary operations, never during a callback.

    Args:
        weight_max: Most total weight; entries weigh 1 unless put with another weight. The most
            recently used entry is kept whatever it weighs.
        on_forget: Called with each evicted key, without the lock.
        group_of: The group of a key, for `discard_group`.
    """

    def __init__(
        self,
        weight_max: int,
        on_forget: Callable[[K], None] | None = None,
        group_of: Callable[[K], Hashable] | None = None,
    ) -> None:
        self._weight_max = weight_max
        self._on_forget = on_forget
        self._group_of = group_of
        self._groups: dict[Hashable, set[K]] = {}
        """Keys by group; empty without `group_of`."""
        self._weight = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return the value of a key and mark it as used; None if it is absent."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Store a value as the most recently used; may evict the oldest entries."""
        forgotten: list[tuple[K, V]] = []
        with self._lock:
            replaced = self._pop(key) if key in self._entries else None
            self._entries[key] = (value, weight)
            self._weight += weight
            if self._group_of is not None:
                self._groups.setdefault(self._group_of(key), set()).add(key)
            while self._weight > self._weight_max and len(self._entries) > 1:
                oldest = next(iter(self._entries))
                popped = self._pop(oldest)
                assert popped is not None
                forgotten.append((oldest, popped[0]))
        # Both may be costly to destroy (a mapped file): not under the lock.
        del replaced
        for oldest, _ in forgotten:
            if self._on_forget is not None:
                self._on_forget(oldest)

    def discard(self, key: K) -> bool:
        """Remove a key; returns whether it was present."""
        with self._lock:
            discarded = self._pop(key)
        return discarded is not None

    def discard_group(self, group: Hashable) -> None:
        """Remove the keys of a group, in time proportional to the group."""
        with self._lock:
            discarded = [self._pop(key) for key in list(self._groups.get(group, ()))]
        del discarded

    def discard_where(self, condition: Callable[[K], bool]) -> list[K]:
        """Remove and return the keys that satisfy a condition, in time proportional to all keys."""
        with self._lock:
            keys = [key for key in self._entries if condition(key)]
            discarded = [self._pop(key) for key in keys]
        del discarded
        return keys

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            entries, self._entries = self._entries, OrderedDict()
            self._groups.clear()
            self._weight = 0
        entries.clear()

    def __contains__(self, key: K) -> bool:
        """Return whether a key is present, without marking it as used."""
        return key in self._entries

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    @property
    def weight(self) -> int:
        """Total weight of all entries."""
        return self._weight

    def _pop(self, key: K) -> tuple[V, int] | None:
        """Remove an entry; called with the lock held."""
        popped = self._entries.pop(key, None)
        if popped is None:
            return None
        self._weight -= popped[1]
        if self._group_of is not None:
            group = self._group_of(key)
            keys = self._groups[group]
            keys.discard(key)
            if not keys:
                del self._groups[group]
        return popped


class BySchema(Generic[V]):
    """Values derived from topics' schemas, recomputed when a schema is another object.

    Thread-safe; concurrent callers may compute the same value twice.

    Args:
        make: Computes the value for a topic.
        topics_max: Most topics and schema versions cached.
    """

    def __init__(self, make: Callable[[Topic], V], topics_max: int) -> None:
        self._make = make
        self._kept: Lru[tuple[str, int], tuple[pa.Schema, V]] = Lru(topics_max)
        self._last: tuple[Topic, V] | None = None
        """The last topic asked for, and its value: a stream asks for the same repeatedly."""

    def get(self, topic: Topic) -> V:
        """Return the value for a topic's schema."""
        last = self._last
        if last is not None and last[0] is topic:
            return last[1]
        key = topic.uuid, topic.schema_version
        kept = self._kept.get(key)
        if kept is None or kept[0] is not topic.schema:
            kept = topic.schema, self._make(topic)
            self._kept.put(key, kept)
        self._last = topic, kept[1]
        return kept[1]
